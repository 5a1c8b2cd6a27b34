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
        *[({"type": "ports", "id": each}, "ports") for each in (None, 1.5, ["f"])],
        *[
            ({"type": "file_open", "id": each, "path": "x", "mode": "read"}, "needs an id")
            for each in (None, True, 1.5, ["f"])
        ],
        ({"type": "listen", "port": 80}, "listen needs an id"),
        *[({"type": "listen", "id": "l", "port": each}, "port") for each in (0, 65536, "80", True)],
        *[
            ({"type": "listen", "id": "l", "port": 80, "variables": each}, "variables")
            for each in (["A"], {"A B": "x"}, {"A": 1}, {"A": "x\0y"}, {"A;touch x": "x"})
        ],
    ],
)
def test_a_wrong_request_is_answered_and_changes_nothing(
    shared: AgentProcess, frame: dict[str, Any], part: str
) -> None:
    shared.send(**frame)
    error = shared.receive()
    assert error["type"] == "error"
    assert part in error["message"]
    assert error.get("id") == frame.get("id") or frame.get("id") in (True, 1.5, ["f"])
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


def test_the_agent_ends_at_end_of_file_though_nobody_reads_its_answers(agent: AgentProcess) -> None:
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
    one_in(
        4,
        [
            ["--prestart", "perl"],
            ["--color", "red"],
            ["python"],
            ["--workspace"],
            ["--limits", '{"processes": 0}'],
            ["--limits", "{"],
            ["--limits", '{"descriptors": "many"}'],
        ],
    ),
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
    assert (done.returncode, done.stdout) == (1, "")
    assert ("--limits: " if "--limits" in arguments else "expected") in done.stderr


@pytest.mark.parametrize("interpreter", one_in(3, ["python", "bash", "node"]))
def test_prestart(tmp_path: Path, interpreter: Any) -> None:
    with direct_agent(tmp_path, "--prestart", interpreter) as agent:
        assert agent.status() == {"type": "status", "running": None, "background": 0}
        assert agent.run("", interpreter).exit_code == 0


@pytest.mark.parametrize(
    ("interpreter", "more"), [("node", []), ("bash", []), ("bash", ["--prestart", "bash"])]
)
def test_an_interpreter_that_is_missing_is_named(
    tmp_path: Path, interpreter: str, more: list[str]
) -> None:
    path = f"/nowhere/{interpreter}"
    with direct_agent(tmp_path, f"--{interpreter}", path, *more) as agent:
        agent.send(type="execute", id="1", interpreter=interpreter, code="1")
        answer = agent.receive()
        assert f"cannot start {path}" in answer.get("message", "") + answer.get("stderr", "")
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


# An agent in a fork of a process that did nothing yet, as a template's sessions have it.

TEMPLATE = """
import json, os, socket, sys
sys.path.insert(0, sys.argv[1])
import sandbox_agent
import decimal  # preloaded
from sandbox.framing import MessageReader, encode_frame
sys.path.pop(0)

results = []
agent = sandbox_agent.prepare(workspace=sys.argv[2])
worker = sandbox_agent.PythonWorker()
for number in range(3):
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        fd = theirs.detach()
        sandbox_agent.serve(agent, fd, fd, prestart="python", worker=worker)
    theirs.close()
    reader = MessageReader()
    def receive():
        while (frame := reader.next_message()) is None:
            reader.receive_data(ours.recv(65536))
        return frame
    assert receive()["type"] == "ready"
    for code in (
        f"number = {number}",
        "import sys; print(number, __name__, 'decimal' in sys.modules)",
        "import random; print(random.random())",
        "import inspect; print(len(inspect.stack()))",
    ):
        ours.sendall(encode_frame(
            {"type": "execute", "id": "1", "interpreter": "python", "code": code}))
        results.append(receive()["stdout"])
    ours.close()
    assert os.waitpid(pid, 0)[1] == 0
print(json.dumps(results))
"""


def test_a_fork_becomes_an_agent(tmp_path: Path) -> None:
    folder = str(Path(sandbox_agent.__file__).parent)
    done = subprocess.run(
        [PYTHON, "-I", "-c", TEMPLATE, folder, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=ANSWER_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results[1::4] == [f"{number} __main__ True\n" for number in range(3)]
    assert len(set(results[2::4])) == 3, "each has its own random numbers"
    # User code does not sit on top of the agent's loop: the worker's few frames are all there is.
    assert all(int(depth) <= 8 for depth in results[3::4])
