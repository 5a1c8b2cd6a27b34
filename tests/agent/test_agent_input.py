"""Standard input of executions, with real interpreters."""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest

from agent_process import AgentProcess, Interpreter, Reply, becomes_true
from sandbox.framing import encode_frame
from sandbox.input import INPUT_BYTES

PIECE_BYTES = 256 * 1024

READ_ALL: dict[Interpreter, str] = {
    "python": "import sys; print(sys.stdin.read(), end='')",
    "bash": "cat",
    "node": "process.stdout.write(require('fs').readFileSync(0, 'utf8'))",
}
COUNT: dict[Interpreter, str] = {
    "python": "import sys; print(len(sys.stdin.buffer.read()))",
    "bash": "wc -c",
    "node": "console.log(require('fs').readFileSync(0).length)",
}
WAIT: dict[Interpreter, str] = {
    "python": "print('waits', flush=True); line = input(); print('got', line)",
    "bash": "echo waits; read line; echo got $line",
    "node": "console.log('waits'); const line = "
    "await new Promise((resolve) => process.stdin.once('data', resolve)); "
    "console.log('got', String(line))",
}
KINDS = [pytest.param(kind, id=kind) for kind in READ_ALL]


class Input:
    """The supervisor's side of an execution's input."""

    def __init__(self, agent: AgentProcess, execution: str) -> None:
        self.agent = agent
        self.execution = execution
        self.offset = 0
        self._asked = 0

    def post(self, data: bytes = b"", *, eof: bool = False, **fields: Any) -> str:
        self._asked += 1
        request = f"i{self._asked}"
        fields = {"offset": self.offset, **fields}
        text = base64.b64encode(data).decode()
        self.agent.send(
            type="input", id=request, execution=self.execution, data=text, eof=eof, **fields
        )
        return request

    def answer(self, request: str) -> dict[str, Any]:
        while True:
            frame = self.agent.receive()
            if frame.get("id") == request:
                return frame

    def write(self, data: bytes = b"", *, eof: bool = False) -> bool:
        """Write all; returns whether more is taken."""
        for start in range(0, max(1, len(data)), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            last = start + PIECE_BYTES >= len(data)
            answer = self.answer(self.post(piece, eof=eof and last))
            assert answer["type"] == "input_taken", answer
            if not answer["open"]:
                return False
            self.offset = answer["offset"]
        return True


def begin(agent: AgentProcess, kind: Interpreter, code: str, **options: Any) -> Input:
    return Input(agent, agent.begin(code, kind, timeout_s=20.0, stdin=True, **options))


def given(agent: AgentProcess, kind: Interpreter, code: str, data: bytes, **options: Any) -> Reply:
    """Run code with this input."""
    source = begin(agent, kind, code, **options)
    source.write(data, eof=True)
    return result(agent, source)


def result(agent: AgentProcess, source: Input) -> Reply:
    """The result, which may have come before an answer about input."""
    for frame in agent.seen:
        if frame["type"] == "result" and frame["id"] == source.execution:
            agent.reader.receive_data(encode_frame(frame))
    return agent.result(source.execution)


NAMED: dict[Interpreter, str] = {
    "python": "import time; print(len(open('/dev/stdin', 'rb').read()))",
    "bash": "wc -c < /dev/stdin",
    "node": "console.log(require('fs').readFileSync('/dev/stdin').length)",
}


@pytest.mark.parametrize("kind", KINDS)
def test_input_comes_whole_to_the_execution_that_is_given_it(
    agent: AgentProcess, kind: Interpreter
) -> None:
    assert agent.run(READ_ALL[kind], kind).stdout == ""
    for one_shot in (False, True):
        reply = given(agent, kind, READ_ALL[kind], "Größe 1\ntwo".encode(), one_shot=one_shot)
        assert (reply.stdout, reply.stderr, reply.exit_code) == ("Größe 1\ntwo", "", 0)
    assert agent.run(READ_ALL[kind], kind).stdout == ""
    assert given(agent, kind, "1", b"nobody reads this").exit_code in (0, 127)
    assert agent.run(READ_ALL[kind], kind).stdout == ""
    assert given(agent, kind, COUNT[kind], b"").stdout == "0\n"
    assert given(agent, kind, COUNT[kind], os.urandom(5_000_000)).stdout == "5000000\n"
    # By its name, also after its end.
    assert given(agent, kind, NAMED[kind], b"12345").stdout == "5\n"
    assert given(agent, kind, NAMED[kind], b"").stdout == "0\n"
    assert agent.run("ls -l /proc/self/fd/0", "bash").stdout.endswith("/dev/null\n")


def test_input_prompts_and_reads_lines(agent: AgentProcess) -> None:
    reply = given(agent, "python", "a = input('? '); b = input(); (a, b)", b"1\n2\n")
    assert (reply.stdout, reply.shown) == ("? ", ["('1', '2')"])
    reply = given(agent, "python", "input()", b"")
    assert reply.stderr.endswith("EOFError: EOF when reading a line\n")


def test_python_has_its_own_input_back_afterwards(agent: AgentProcess) -> None:
    agent.python("import io, sys; sys.stdin = io.StringIO('mine')")
    assert given(agent, "python", "sys.stdin.read()", b"given").shown == ["'given'"]
    assert agent.python("sys.stdin.read()").shown == ["'mine'"]


@pytest.mark.parametrize("one_shot", [False, True])
def test_node_reads_lines(agent: AgentProcess, one_shot: bool) -> None:
    code = """
    const lines = require('readline').createInterface({ input: process.stdin });
    for await (const line of lines) console.log(line.toUpperCase());
    """
    reply = given(agent, "node", code, b"one\ntwo\nthree", one_shot=one_shot)
    assert (reply.stdout, reply.stderr) == ("ONE\nTWO\nTHREE\n", "")


def test_node_reads_by_events_and_hands_its_input_to_children(agent: AgentProcess) -> None:
    child = "require('child_process').execSync('wc -c', { stdio: [0, 'inherit', 'inherit'] })"
    assert given(agent, "node", f"{child};", b"12345").stdout == "5\n"
    events = "process.stdin.on('data', (data) => console.log(String(data).length))"
    assert given(agent, "node", events, b"four", one_shot=True).stdout == "4\n"


def test_node_that_does_not_read_its_input_ends(agent: AgentProcess) -> None:
    source = begin(agent, "node", "process.stdin; console.log(1)", one_shot=True)
    assert result(agent, source).stdout == "1\n"


@pytest.mark.parametrize("kind", KINDS)
def test_input_that_nobody_reads_waits_for_the_end(agent: AgentProcess, kind: Interpreter) -> None:
    codes = {
        "python": "import time; print('up', flush=True); time.sleep(0.3)",
        "bash": "echo up; sleep 0.3",
        "node": "console.log('up'); await new Promise((done) => setTimeout(done, 300))",
    }
    source = begin(agent, kind, codes[kind], stream=True)
    agent.running("up")
    assert not source.write(bytes(4 * INPUT_BYTES))
    assert result(agent, source).exit_code == 0
    assert not source.write(b"more"), "nobody will read it"


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_while_code_waits_for_input(agent: AgentProcess, kind: Interpreter) -> None:
    source = begin(agent, kind, WAIT[kind], stream=True)
    agent.running("waits")
    agent.send(type="interrupt", id=source.execution)
    reply = result(agent, source)
    assert (reply.exit_code, reply.interrupted, reply.interpreter_restarted) == (130, True, False)
    after = agent.run("1", kind)
    assert "got" not in after.stdout, "the code did not go on with the end of its input"
    assert after.stderr == "" or kind == "bash"


def test_node_is_interrupted_where_it_waits_in_a_read(agent: AgentProcess) -> None:
    code = "console.log('waits'); require('fs').readFileSync(0); console.log('got')"
    source = begin(agent, "node", code, stream=True)
    agent.running("waits")
    agent.send(type="interrupt", id=source.execution)
    reply = result(agent, source)
    assert (reply.exit_code, reply.interpreter_restarted) == (130, False)
    assert "got" not in agent.node("1").stdout


def test_a_time_limit_while_code_waits_for_input(agent: AgentProcess) -> None:
    execution = agent.begin(WAIT["python"], "python", timeout_s=0.2, stdin=True)
    reply = agent.result(execution)
    assert (reply.exit_code, reply.timed_out) == (124, True)


def test_input_is_taken_once_however_often_it_is_sent(agent: AgentProcess) -> None:
    source = begin(agent, "bash", "cat")
    for offset, data in ((0, b"one "), (0, b"one "), (2, b"e two "), (8, b"three")):
        answer = source.answer(source.post(data, offset=offset))
        assert answer["offset"] == max(4, offset + len(data))
    refused = source.answer(source.post(b"gap", offset=100))
    assert (refused["type"], refused["message"]) == (
        "error",
        "offset must be a whole number, 0 to 13",
    )
    source.post(eof=True, offset=13)
    source.post(eof=True, offset=13)
    assert result(agent, source).stdout == "one two three"


def test_a_new_owner_of_the_channel_goes_on_with_the_input(agent: AgentProcess) -> None:
    agent.hello()
    source = begin(agent, "bash", "wc -c")
    data = bytes(3 * INPUT_BYTES)
    source.write(data[:100])
    frame = encode_frame({"type": "input", "id": "torn", "data": "A" * 1000})
    agent.socket.sendall(frame[:500])
    agent.take_over()
    source.offset = 50  # what was not answered is sent again
    source.write(data[50:], eof=True)
    assert result(agent, source).stdout == f"{len(data)}\n"


def test_no_process_is_left_of_it(agent: AgentProcess) -> None:
    source = begin(agent, "bash", "echo /proc/[0-9]*/task/1/children; read", stream=True)
    agent.running("children")
    children = set(_children(agent.process.pid))
    source.write(b"\n")
    result(agent, source)
    becomes_true(lambda: len(_children(agent.process.pid)) < len(children), "one is gone")


def test_background_processes_are_not_counted_with_it(agent: AgentProcess) -> None:
    source = begin(agent, "bash", "read", one_shot=False)
    source.write(b"not yet")
    assert agent.status()["background"] == 0
    source.write(b"\n")
    assert result(agent, source).exit_code == 0


def test_the_end_of_the_code_is_the_end_of_input_for_what_it_left(agent: AgentProcess) -> None:
    code = "exec 7<&0; (cat <&7 >/dev/null; echo over) & echo up; exec 7<&-"
    source = begin(agent, "bash", code)
    begun = result(agent, source).stdout
    assert "up" in begun
    assert "over" in begun + agent.bash("wait").stdout


def test_input_waits_for_the_set_up_of_its_interpreter(agent: AgentProcess) -> None:
    steps = [{"name": "slow", "code": "import time; time.sleep(0.2)"}]
    setup = {"interpreter": "python", "steps": steps, "timeout_s": 9, "grace_s": 1}
    agent.send(type="hello", token="cd" * 16, setup=setup)
    assert given(agent, "python", READ_ALL["python"], b"patience").stdout == "patience"


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


@pytest.mark.node
@pytest.mark.parametrize("one_shot", [True, False])
def test_node_ends_what_awaits_empty_input(agent: AgentProcess, one_shot: bool) -> None:
    lines = "createInterface({ input: process.stdin })"
    code = f"await require('readline/promises').{lines}.question('name? ')"
    for _ in range(2):
        reply = agent.node(code, one_shot=one_shot)
        assert (reply.exit_code, reply.timed_out) == (13, False)
        assert "awaits standard input, which is empty" in reply.stderr
        if one_shot:
            break
        # What goes on by itself after the end of the input is waited for.
        later = "await new Promise((go) => process.stdin.resume().on('end', () => later(go)))"
        for how in (
            "setTimeout(go, 50, 7)",
            "require('zlib').gzip(Buffer.alloc(1e6), () => go(7))",
        ):
            assert agent.node(f"later = (go) => {how}; {later}").shown == ["7"]
