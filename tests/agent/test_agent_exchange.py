"""The base exchange: what an agent says and how it takes nonsense."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import sandbox_agent
from agent_process import ANSWER_TIMEOUT_S, PYTHON, AgentProcess, direct_agent
from processes import ending
from sandbox.framing import CAPABILITIES, MessageReader, encode_frame
from sandbox.polling import NonblockingStream, Poller
from selection import one_in


@pytest.mark.node
def test_ready_comes_first_and_says_what_the_agent_can(agent: AgentProcess) -> None:
    assert agent.ready["protocol"] == 1
    assert agent.ready["interpreters"] == ["bash", "node", "python"]
    assert set(agent.ready["capabilities"]) == set(CAPABILITIES)
    assert agent.ready["pid"] == agent.process.pid


def test_the_base_exchange_needs_no_capability(agent: AgentProcess) -> None:
    agent.send(type="execute", id="1", interpreter="python", code="print('hi')")
    result = agent.receive()
    base = {name: result[name] for name in ("type", "id", "stdout", "stderr", "exit_code")}
    assert base == {"type": "result", "id": "1", "stdout": "hi\n", "stderr": "", "exit_code": 0}
    agent.send(type="ping")
    assert agent.receive() == {"type": "pong"}
    agent.send(type="shutdown")
    assert agent.wait() == 0


@pytest.mark.parametrize(
    ("frame", "part"),
    [
        ({"type": "dance"}, "unknown type 'dance'"),
        ({"kind": "ping"}, "unknown type None"),
        ({"type": ["ping"]}, "unknown type"),
        ({"type": "execute", "interpreter": "python", "code": "1"}, "needs an id"),
        ({"type": "execute", "id": True, "interpreter": "python", "code": "1"}, "needs an id"),
        ({"type": "execute", "id": "a", "interpreter": "python"}, "code must be a text"),
        ({"type": "execute", "id": "a", "interpreter": "cobol", "code": ""}, "'cobol' is not"),
        ({"type": "execute", "id": "a", "interpreter": {}, "code": ""}, "is not in this session"),
        (
            {"type": "execute", "id": "a", "interpreter": "bash", "code": "", "timeout_s": -1},
            "must be a number of seconds",
        ),
        (
            {"type": "execute", "id": "a", "interpreter": "bash", "code": "", "grace_s": "2"},
            "must be a number of seconds",
        ),
        ({"type": "ack", "seq": "1"}, "seq must be a whole number"),
        ({"type": "hello", "token": "abc"}, "hello is not valid"),
        ({"type": "hello", "token": "ab" * 15}, "expected 16"),
        ({"type": "hello", "limits": {"processes": 0}}, "processes is 0"),
        ({"type": "hello", "limits": {"reply_bytes": "many"}}, "reply_bytes is 'many'"),
    ],
)
def test_a_wrong_request_is_answered_and_changes_nothing(
    shared: AgentProcess, frame: dict[str, Any], part: str
) -> None:
    shared.send(**frame)
    error = shared.receive()
    assert error["type"] == "error"
    assert part in error["message"]
    assert error.get("id") == frame.get("id") or frame.get("id") is True
    assert shared.python("print(1)").stdout == "1\n"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[" * 100_000,
        b'{"a":1}x',
        b"1" * 99,
    ],
)
def test_a_frame_that_is_no_message_is_answered(shared: AgentProcess, body: bytes) -> None:
    shared.socket.sendall(len(body).to_bytes(4, "big") + body)
    assert shared.receive()["type"] == "error"
    assert shared.python("print(1)").stdout == "1\n"


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x04\x00\x00\x01"])
def test_an_oversized_length_is_answered_and_ends_the_agent(
    agent: AgentProcess, length: bytes
) -> None:
    agent.socket.sendall(length + b"x" * 100)
    assert "exceeds the limit" in agent.receive()["message"]
    with pytest.raises(EOFError):
        agent.receive()
    assert agent.wait() == 0


def test_frames_in_single_bytes(agent: AgentProcess) -> None:
    frame = encode_frame({"type": "ping"})
    for index in range(len(frame)):
        agent.socket.sendall(frame[index : index + 1])
    assert agent.receive() == {"type": "pong"}


def test_a_second_execution_while_one_runs_is_refused(agent: AgentProcess) -> None:
    first = agent.begin("input_ = __import__('time').sleep(60)", timeout_s=60)
    second = agent.begin("1")
    error = agent.expect("error")
    assert error["id"] == second
    assert "another execution is running" in error["message"]
    agent.send(type="interrupt", id=first)
    assert agent.result(first).interrupted


def test_the_agent_ends_at_end_of_file_even_while_code_runs(agent: AgentProcess) -> None:
    agent.begin("print('up', flush=True)\nwhile True: pass", stream=True)
    agent.running("up")
    agent.socket.close()
    assert agent.wait() == 0


def test_the_agent_ends_at_end_of_file_though_nobody_reads_its_answers(
    agent: AgentProcess,
) -> None:
    """A supervisor that stopped reading and then died must not keep a session alive."""
    ping = encode_frame({"type": "status", "x": "y" * 1000})
    agent.socket.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:  # until the agent, its answers unread, takes no more
            sent += agent.socket.send(ping * 100)
    assert sent > 100_000
    agent.socket.close()
    assert agent.wait() == 0


def test_pipes_do_as_well_as_a_socket(tmp_path: Path) -> None:
    frames: list[dict[str, Any]] = [
        {"type": "execute", "id": 7, "interpreter": "python", "code": "print('piped')"},
        {"type": "shutdown"},
    ]
    command = [PYTHON, "-I", str(sandbox_agent.__file__), "--workspace", str(tmp_path)]
    with ending(
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        reader = MessageReader()
        seen: list[dict[str, Any]] = []
        process.stdin.write(encode_frame(frames[0]))
        process.stdin.flush()
        while len(seen) < 2:
            data = os.read(process.stdout.fileno(), 65536)
            assert data
            reader.receive_data(data)
            while (frame := reader.next_message()) is not None:
                seen.append(frame)
        assert [frame["type"] for frame in seen] == ["ready", "result"]
        assert seen[1]["id"] == 7
        assert seen[1]["stdout"] == "piped\n"
        process.stdin.write(encode_frame(frames[1]))
        process.stdin.flush()
        assert process.wait(ANSWER_TIMEOUT_S) == 0


@pytest.mark.parametrize(
    "arguments",
    one_in(4, [["--prestart", "perl"], ["--color", "red"], ["python"], ["--workspace"]]),
)
def test_a_wrong_command_line_says_what_is_expected(arguments: list[str]) -> None:
    done = subprocess.run(
        [PYTHON, "-I", str(sandbox_agent.__file__), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ANSWER_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "expected" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("interpreter", one_in(3, ["python", "bash", "node"]))
def test_prestart(tmp_path: Path, interpreter: Any) -> None:
    with direct_agent(tmp_path, "--prestart", interpreter) as agent:
        agent.send(type="status")
        assert agent.receive() == {"type": "status", "running": None, "background": 0}
        assert agent.run("", interpreter).exit_code == 0


def test_an_interpreter_that_is_missing_is_named(tmp_path: Path) -> None:
    with direct_agent(tmp_path, "--node", "/nowhere/node") as agent:
        reply = agent.node("1")
        assert reply.exit_code == 127
        assert "cannot start /nowhere/node" in reply.stderr
        assert agent.python("print(1)").stdout == "1\n"


def test_an_interpreter_that_is_missing_at_the_start_is_named_later(tmp_path: Path) -> None:
    with direct_agent(tmp_path, "--bash", "/nowhere/bash", "--prestart", "bash") as agent:
        agent.send(type="execute", id="1", interpreter="bash", code="")
        assert "cannot start /nowhere/bash" in agent.expect("error")["message"]
        assert agent.python("print(1)").stdout == "1\n"


def test_a_python_of_its_own(tmp_path: Path) -> None:
    """The environment's `python3` may be another than the one that runs the agent."""
    other = "/usr/bin/python3"
    with direct_agent(tmp_path, "--python", other) as agent:
        reply = agent.python("import sys; print(sys.executable, sys.path[0] == '')")
        assert reply.stdout == f"{other} True\n"
        assert agent.python("def f(): return 1\nf()").shown == ["1"]
        assert agent.python("1/0").stderr.count("sandbox_agent") == 0


def test_text_survives_both_ways(shared: AgentProcess) -> None:
    text = "\u00e4\u20ac\U0001f600\u2028\x00\x1b[1m\"'\\"
    assert shared.python(f"print({text!r}, end='')").stdout == text
    assert shared.python("print('\\ud800'.encode('utf-8', 'surrogatepass'))").exit_code == 0
    assert shared.python("'\\ud800'").shown == ["'\\ud800'"]
    assert shared.python("'\ud800'").shown == ["'?'"]  # the code itself has what is no text
    assert json.dumps(shared.seen)


def test_bytes_that_are_no_text_become_lone_surrogates(shared: AgentProcess) -> None:
    reply = shared.python("import os; os.write(1, b'a\\xff\\xc3b')")
    assert reply.stdout == "a\udcff\udcc3b"


def test_dropped_bytes_are_not_waited_for() -> None:
    """A new holder has read all that its predecessor left: nothing is left to be written, and a
    poll for room to write would return at once for ever."""
    ours, theirs = socket.socketpair()
    with theirs:
        poller = Poller()
        fd = ours.detach()
        link = NonblockingStream(poller, fd, fd, lambda _: None, lambda: None)
        while not link.unsent_bytes:
            link.send(bytes(1 << 16))
        theirs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while theirs.recv(1 << 20):
                pass
        link.drop_unsent()
        link.send(b"all at once")
        over: list[bool] = []
        poller.at("end", time.monotonic() + 0.02, lambda: over.append(True))
        turns = 0
        while not over:
            poller.turn()
            turns += 1
        link.close()
    assert turns <= 2


def test_descriptors_that_wait_go_with_their_own_bytes() -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with theirs:
        poller = Poller()
        fd = ours.detach()
        link = NonblockingStream(poller, fd, fd, lambda _: None, lambda: None)
        with link.together():
            link.send(b"before ")
            link.send(b"first ", read)
            link.send(b"second ", write)
        link.send(b"after")
        got: list[tuple[bytes, int]] = []
        while sum(len(data) for data, _ in got) < len(b"before first second after"):
            data, fds, _, _ = socket.recv_fds(theirs, 100, 5)
            got.append((data, len(fds)))
            for each in fds:
                os.close(each)
        link.close()
    assert b"".join(data for data, _ in got) == b"before first second after"
    first, second = (data for data, count in got if count)
    assert first.endswith(b"first ")
    assert second.startswith(b"second ")
