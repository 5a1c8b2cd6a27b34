"""Streamed output, acknowledgements and resuming a channel."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from agent_process import TOKEN, AgentProcess, becomes_true
from sandbox.framing import encode_frame, resume_marker


def texts(outputs: list[tuple[str, str]]) -> dict[str, str]:
    joined = {"stdout": "", "stderr": ""}
    for stream, text in outputs:
        joined[stream] += text
    return joined


def test_output_arrives_while_the_code_runs(agent: AgentProcess) -> None:
    os.mkfifo(agent.workspace / "go")
    request = agent.begin("print('first')\nopen('go').read()\nprint('second')", stream=True)
    # The first bytes come at once: nothing else is going to happen until we act.
    first = agent.expect("output")
    assert (first["id"], first["stream"]) == (request, "stdout")
    assert first["text"] in {"first", "first\n"}
    (agent.workspace / "go").write_text("")
    assert agent.result(request).stdout == "first\nsecond\n"


def test_the_stream_is_the_result(agent: AgentProcess) -> None:
    code = """
import sys
for i in range(200):
    print('\u00e4', i)
    print('\u20ac', i, file=sys.stderr)
"""
    for _ in range(3):
        reply = agent.python(code, stream=True)
        assert texts(reply.outputs) == {"stdout": reply.stdout, "stderr": reply.stderr}


def test_at_most_twenty_updates_a_second(agent: AgentProcess) -> None:
    code = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: print('x')"
    reply = agent.python(code, stream=True)
    assert 2 <= len(reply.outputs) <= 20 * reply.duration_s + 3


def test_characters_are_not_torn_between_updates(agent: AgentProcess) -> None:
    code = """
import os, time
for byte in '\u20ac\U0001f600'.encode():
    os.write(1, bytes([byte]))
    time.sleep(0.06)
"""
    reply = agent.python(code, stream=True)
    assert texts(reply.outputs)["stdout"] == "\u20ac\U0001f600"
    assert all("\ufffd" not in text for _, text in reply.outputs)


def test_a_flood_is_streamed_in_parts_that_say_so(agent: AgentProcess) -> None:
    reply = agent.bash("yes | head -c 50000000; echo end", stream=True, timeout_s=20)
    streamed = texts(reply.outputs)["stdout"]
    assert "bytes left out" in streamed
    assert streamed.endswith("end\n")
    assert len(streamed) < 25_000_000  # how much there is time for, depends


def test_output_of_background_processes_is_streamed_with_the_next(agent: AgentProcess) -> None:
    agent.bash("mkfifo go done; { read < go; echo late; echo > done; } & true")
    reply = agent.bash("echo > go; read < done; echo now", stream=True)
    assert texts(reply.outputs)["stdout"] == reply.stdout


def test_output_from_between_is_streamed_with_the_next(agent: AgentProcess) -> None:
    agent.bash("mkfifo go; { read < go; printf '\\xe2\\x82'; echo done > go; } & true")
    (agent.workspace / "go").write_text("\n")
    assert (agent.workspace / "go").read_text() == "done\n"  # nothing runs meanwhile
    reply = agent.bash("printf '\\xac'; echo now", stream=True)
    assert texts(reply.outputs)["stdout"] == reply.stdout == "\u20acnow\n"


# A stream that is asked for late.


def begun(agent: AgentProcess, code: str) -> str:
    """Have Python code run up to where it makes the file `there` and waits for the pipe `go`."""
    os.mkfifo(agent.workspace / "go")
    request = agent.begin(f"{code}\nopen('there', 'w')\nopen('go').read()\nprint('second')")
    becomes_true((agent.workspace / "there").exists, "code is there")
    return request


def streamed(agent: AgentProcess) -> dict[str, str]:
    """Collect the output streamed since the agent began, by stream."""
    frames = [frame for frame in agent.seen if frame["type"] == "output"]
    return texts([(frame["stream"], frame["text"]) for frame in frames])


def test_a_late_stream_begins_with_what_there_is(agent: AgentProcess) -> None:
    request = begun(agent, "import sys\nprint('first')\nprint('\u00e4', file=sys.stderr)")
    agent.send(type="stream", id=request)
    while streamed(agent) != {"stdout": "first\n", "stderr": "\u00e4\n"}:
        agent.expect("output")
    agent.send(type="stream", id=request)  # a second time is no other stream
    (agent.workspace / "go").write_text("")
    reply = agent.result(request)
    assert streamed(agent) == {"stdout": reply.stdout, "stderr": reply.stderr}


def test_a_late_stream_of_much_says_what_it_leaves_out(agent: AgentProcess) -> None:
    request = begun(agent, "print('\u20ac' * 1_000_000)")
    agent.send(type="stream", id=request)
    (agent.workspace / "go").write_text("")
    agent.result(request)
    text = streamed(agent)["stdout"]
    gaps = re.findall(r"\n\[\.\.\. (\d+) bytes left out \.\.\.\]\n", text)
    assert gaps
    rest = re.sub(r"\n\[\.\.\. \d+ bytes left out \.\.\.\]\n", "", text)
    assert rest.strip("\u20ac") == "\nsecond\n"
    # A character that was cut through is left out of both.
    missing = 3_000_000 + len("\nsecond\n") - sum(map(int, gaps)) - len(rest.encode())
    assert 0 <= missing <= 4 * len(gaps)


def test_a_late_stream_of_nothing_begins_when_there_is_something(agent: AgentProcess) -> None:
    request = begun(agent, "")
    agent.send(type="stream", id=request)
    (agent.workspace / "go").write_text("")
    assert agent.result(request).stdout == streamed(agent)["stdout"] == "second\n"


def test_a_late_stream_of_another_execution_is_none(agent: AgentProcess) -> None:
    for request_id in ("other", None, 3, ["e1"]):
        agent.send(type="stream", id=request_id)
    request = begun(agent, "print('first')")
    agent.send(type="stream", id="other")
    (agent.workspace / "go").write_text("")
    assert agent.result(request).outputs == []
    agent.send(type="stream", id=request)
    agent.send(type="ping")
    assert agent.receive()["type"] == "pong"


def test_a_flood_is_not_torn_inside_characters(agent: AgentProcess) -> None:
    code = "import sys\nfor _ in range(300): sys.stdout.write('\u20ac' * 40_000)"
    reply = agent.python(code, stream=True)
    assert "bytes left out" in texts(reply.outputs)["stdout"]
    assert all("\ufffd" not in text for _, text in reply.outputs)


# Sequence numbers and acknowledgements.


def test_frames_are_numbered_from_hello_on(agent: AgentProcess) -> None:
    assert "seq" not in agent.ready
    agent.hello()
    agent.python("print(1)")
    agent.send(type="ping")
    agent.expect("pong")
    assert [frame["seq"] for frame in agent.seen[1:]] == [1, 2]


def test_streaming_stops_while_acknowledgements_lag(agent: AgentProcess) -> None:
    agent.hello()
    request = agent.begin(
        "import os\nwhile not os.path.exists('enough'): print('x' * 5000)", stream=True
    )
    total = 0
    last: dict[str, Any] = {}
    while total <= 1024 * 1024:
        last = agent.expect("output")
        total += len(last["text"])
    agent.send(type="ping")
    frame = agent.receive()
    while frame["type"] == "output":  # at most what was under way
        total += len(frame["text"])
        frame = agent.receive()
    assert total < 1024 * 1024 + 4 * 65536
    agent.send(type="ack", seq=frame["seq"])
    again = agent.expect("output")
    (agent.workspace / "enough").touch()
    assert "bytes left out" in again["text"]
    agent.send(type="ack", seq=again["seq"])
    assert agent.result(request).exit_code == 0


def test_an_execution_carries_an_acknowledgement(agent: AgentProcess) -> None:
    agent.hello()
    first = agent.python("1")
    agent.python("2", ack=first.frame["seq"])
    assert new_holder(agent)[0]["executions"] == {"e2": "finished"}


def test_a_caller_says_what_room_it_has(agent: AgentProcess) -> None:
    code = "import sys; print('x' * 5000); print('y' * 50, file=sys.stderr)"
    reply = agent.python(code, reply_bytes=1000)
    assert reply.truncated["stdout"]["omitted_bytes"] == 4001
    assert len(Path(reply.truncated["stdout"]["file"]).read_text()) == 5001
    assert reply.stderr == "y" * 50 + "\n"
    assert agent.python(code).truncated == {}
    tiny = agent.python(code, reply_bytes=1)
    assert tiny.truncated["stdout"]["omitted_bytes"] == 5001
    for room in ("reply_bytes", "reply_chars"):
        agent.send(type="execute", id="x", interpreter="python", code="", **{room: 0})
        assert room in agent.expect("error")["message"]


def test_a_callers_room_may_be_counted_in_characters(agent: AgentProcess) -> None:
    room = {"reply_bytes": 4000, "reply_chars": 1000}
    assert agent.python("print('\u20ac' * 999)", **room).stdout == "\u20ac" * 999 + "\n"
    for count in (1000, 5000):  # what has room in bytes, and what has not
        reply = agent.python(f"print('\u20ac' * {count})", **room)
        left_out = reply.truncated["stdout"]
        assert left_out["omitted_bytes"] == 3 * count + 1 - (999 * 3 + 1)
        assert Path(left_out["file"]).read_text() == "\u20ac" * count + "\n"
        mark = f"\n[... {left_out['omitted_bytes']} bytes left out ...]\n"
        assert reply.stdout == "\u20ac" * 500 + mark + "\u20ac" * 499 + "\n"


# Resume.


def new_holder(agent: AgentProcess) -> list[dict[str, Any]]:
    """Take the channel over as a supervisor that restarts; the frames that are repeated."""
    frames = [agent.take_over()]
    probe = f"probe {len(agent.seen)}"
    agent.send(type="interrupt", id=probe)
    while frames[-1].get("id") != probe:
        frames.append(agent.receive())
    return frames[:-1]


def test_resume_repeats_what_was_not_acknowledged(agent: AgentProcess) -> None:
    agent.hello()
    agent.python("print(1)")
    second = agent.python("print(2)")
    third = agent.python("print(3)")
    agent.send(type="ack", seq=1)
    frames = new_holder(agent)
    executions = {"e2": "finished", "e3": "finished"}
    assert frames[0] == {
        "type": "resumed",
        "executions": executions,
        "files": [],
        "jobs": [],
        "notes": {},
        "recent": ["e1", "e2", "e3"],
        "count": 3,
        "checkpoints": 0,
    }
    assert frames[1:] == [second.frame, third.frame]
    agent.send(type="ack", seq=third.frame["seq"])
    assert [frame["type"] for frame in new_holder(agent)[1:]] == ["idle"]  # to the first probe


def test_resume_in_the_middle_of_an_execution(agent: AgentProcess) -> None:
    agent.hello()
    agent.python("kept = 1")
    request = agent.begin(
        "print('up')\nwhile not __import__('os').path.exists('go'): pass", stream=True
    )
    agent.running("up")
    frames = new_holder(agent)
    assert frames[0]["executions"] == {"e1": "finished", request: "running"}
    assert [frame["type"] for frame in frames[1:]].count("result") == 1
    (agent.workspace / "go").touch()
    reply = agent.result(request)
    assert (reply.stdout, reply.exit_code) == ("up\n", 0)
    assert agent.python("kept").shown == ["1"]


def test_a_new_holder_is_told_the_notes_of_what_it_may_have_to_answer_for(
    agent: AgentProcess,
) -> None:
    agent.hello()
    first = agent.python("1", note={"who": "one"})
    second = agent.python("2", note={"who": "two"}, ack=first.frame["seq"])
    code = "print('up')\nwhile not __import__('os').path.exists('go'): pass" + "\n" * 5000
    request = agent.begin(code, stream=True, note={"who": "three"})
    agent.running("up")
    resumed = new_holder(agent)[0]
    assert resumed["notes"] == {
        "e2": {"note": {"who": "two"}, "code": "2"},
        request: {"note": {"who": "three"}, "code": code[:2000]},
    }
    assert (resumed["recent"], resumed["count"]) == (["e1", "e2"], 3)
    (agent.workspace / "go").touch()
    agent.send(type="ack", seq=second.frame["seq"])
    assert agent.result(request).exit_code == 0
    for _ in range(70):
        agent.python("")
    assert len(new_holder(agent)[0]["recent"]) == 64


def test_a_new_holder_is_told_of_executions_and_not_of_steps_of_a_set_up(
    agent: AgentProcess,
) -> None:
    steps = [{"name": name, "code": "pass"} for name in ("one", "two")]
    setup = {"interpreter": "python", "steps": steps, "timeout_s": 10.0}
    agent.send(type="hello", protocol=1, token=TOKEN, setup=setup)
    agent.python("1")
    assert new_holder(agent)[0]["count"] == 1


def test_a_torn_request_is_dropped(agent: AgentProcess) -> None:
    agent.hello()
    frame = encode_frame(
        {"type": "execute", "id": "torn", "interpreter": "python", "code": "open('torn', 'w')"}
    )
    for cut in (1, 3, 4, 5, 20, len(frame) - 21, len(frame) - 3, len(frame) - 1):
        agent.socket.sendall(frame[:cut])
        frames = new_holder(agent)
        assert (frames[0]["executions"], frames[0]["recent"], frames[0]["count"]) == ({}, [], 0)
        agent.send(type="ack", seq=10**9)
    assert agent.python("import os; os.path.exists('torn')").shown == ["False"]


def test_an_answer_torn_by_a_reader_that_died_comes_again(agent: AgentProcess) -> None:
    agent.hello()
    request = agent.begin("print('x' * 900_000)")
    assert agent.socket.recv(1000)  # and no more: the rest is lost with the reader
    becomes_true(lambda: len(agent.socket.recv(1 << 20, 0)) < (1 << 20), "some is taken")
    frames = new_holder(agent)
    results = [frame for frame in frames if frame["type"] == "result"]
    assert [frame["id"] for frame in results] == [request]
    assert len(results[0]["stdout"]) == 900_001


def test_resume_without_hello_is_an_oversized_length(agent: AgentProcess) -> None:
    agent.socket.sendall(resume_marker(TOKEN))
    assert "exceeds the limit" in agent.receive()["message"]
    assert agent.wait() == 0


def test_hello_again_changes_limits_but_not_the_token(agent: AgentProcess) -> None:
    agent.hello()
    agent.hello(reply_bytes=100)
    assert "stdout" in agent.python("print('x' * 200)").truncated
    agent.send(type="hello", token="cd" * 16)
    assert "another token" in agent.expect("error")["message"]
