"""An agent as a subprocess, driven frame by frame; each wait has a hard limit.

`AgentProcess.direct` runs it bare, which is harmless with our own code. Hostile code gets
`AgentProcess.jailed`: a throw-away jail, as an unprivileged user, the agent as PID 1.
`NSM_TEST_AGENT_PYTHON` names another Python for agents that run bare.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

import trio

import sandbox_agent
from nsmd.jail.program_code import AGENT as AGENT_PROGRAM
from nsmd.jail.program_code import ProgramCode
from realjail import BWRAP, SYSTEM_PATH
from sandbox.framing import RESUMED, MessageReader, encode_frame, resume_marker

ANSWER_TIMEOUT_S = 120.0
"""Time limit for one frame, on a machine that runs everything at once."""

UNPRIVILEGED_UID = 65530

JAILED_PYTHON = "/usr/bin/python3"

PYTHON = os.environ.get("NSM_TEST_AGENT_PYTHON", sys.executable)

AGENT = Path(sandbox_agent.__file__)

TOKEN = "ab" * 16
"""Token of a channel that another supervisor may take over."""

Interpreter = Literal["python", "bash", "node"]


SET: dict[Interpreter, str] = {"python": "kept = 5", "bash": "kept=5", "node": "let kept = 5"}
GET: dict[Interpreter, str] = {
    "python": "print(kept)",
    "bash": "echo $kept",
    "node": "console.log(kept)",
}
"""Code that makes state, and code that prints it: 5."""


class RefusedError(Exception):
    """An error in place of an answer.

    Attributes:
        code: as in the frame.
    """

    def __init__(self, frame: Mapping[str, Any]) -> None:
        super().__init__(frame["message"])
        self.code: str = frame.get("code", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A `result` frame, and what came before it."""

    stdout: str
    stderr: str
    exit_code: int
    displays: list[dict[str, Any]]
    truncated: dict[str, dict[str, Any]]
    timed_out: bool
    interrupted: bool
    interpreter_restarted: bool
    restart_reason: str
    duration_s: float
    frame: Mapping[str, Any] = field(repr=False)
    outputs: list[tuple[str, str]] = field(repr=False)

    @property
    def shown(self) -> list[str]:
        """The displays as plain text."""
        return [bundle.get("text/plain", "") for bundle in self.displays]


class AgentProcess:
    """The supervisor's side of an agent, blocking.

    Attributes:
        ready: the first frame.
        seen: every frame received, in order.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        workspace: Path,
        arguments: Sequence[str] = (),
        user: int | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.workspace = workspace
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(ANSWER_TIMEOUT_S)
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": str(workspace), **_libraries()},
            cwd="/",
        )
        theirs.close()
        self.reader = MessageReader()
        self.seen: list[dict[str, Any]] = []
        self._executions = 0
        self.ready = self.receive()
        assert self.ready["type"] == "ready", self.ready

    # Frames.

    def send(self, **frame: Any) -> None:
        """Send one frame."""
        self.socket.sendall(encode_frame(frame))

    def receive(self) -> dict[str, Any]:
        """The next frame; EOFError at the end of the channel."""
        while (frame := self.reader.next_message()) is None:
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError(self.log())
            self.reader.receive_data(data)
        self.seen.append(frame)
        return frame

    def expect(self, kind: str) -> dict[str, Any]:
        """The next frame of this type; frames before it are in `seen`."""
        while True:
            frame = self.receive()
            if frame["type"] == kind:
                return frame

    def ask(self, kind: str, request: int | str = "q", **fields: Any) -> dict[str, Any]:
        """Ask for something; output of executions may come before the answer.

        Raises:
            RefusedError: the answer is an error.
        """
        self.send(type=kind, id=request, **fields)
        while True:
            frame = self.receive()
            if frame.get("id") == request and frame["type"] != "output":
                if frame["type"].endswith("error"):
                    raise RefusedError(frame)
                return frame

    def expect_with_descriptor(self, kind: str) -> tuple[dict[str, Any], int]:
        """The next frame of this type, and the descriptor that comes along.

        Raises:
            RefusedError: an error comes first.
        """
        passed: list[int] = []
        while True:
            while (frame := self.reader.next_message()) is None:
                data, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 20, 8)
                assert data
                passed += descriptors
                self.reader.receive_data(data)
            if frame["type"].endswith("error"):
                raise RefusedError(frame)
            if frame["type"] == kind:
                (descriptor,) = passed
                return frame, descriptor

    def status(self) -> dict[str, Any]:
        """Ask what runs, and how much in the background."""
        self.send(type="status")
        return self.expect("status")

    # The channel.

    def hello(self, **limits: int) -> None:
        """Say what a supervisor says first."""
        self.send(type="hello", protocol=1, token=TOKEN, limits=limits)

    def take_over(self) -> dict[str, Any]:
        """Take the channel over as a supervisor that starts again; what the agent tells it."""
        self.socket.sendall(resume_marker(TOKEN))
        self.reader = MessageReader()
        self.reader.marker = resume_marker(TOKEN)
        self.reader.skip_to_marker()
        assert self.receive() is RESUMED
        resumed = self.receive()
        assert resumed["type"] == "resumed"
        return resumed

    # Executions.

    def begin(self, code: str, interpreter: Interpreter = "python", **options: Any) -> str:
        """Have code run; returns the execution's id."""
        self._executions += 1
        request_id = f"e{self._executions}"
        self.send(type="execute", id=request_id, interpreter=interpreter, code=code, **options)
        return request_id

    def result(self, request_id: str) -> Reply:
        """Wait for the result of an execution."""
        outputs: list[tuple[str, str]] = []
        while True:
            frame = self.receive()
            if frame["type"] == "output" and frame["id"] == request_id:
                outputs.append((frame["stream"], frame["text"]))
            if frame["type"] == "error" and frame.get("id") == request_id:
                raise AssertionError(frame["message"])
            if frame["type"] == "result" and frame["id"] == request_id:
                names = {each.name for each in fields(Reply)} & frame.keys()
                known = {name: frame[name] for name in names}
                return Reply(frame=frame, outputs=outputs, **known)

    def run(
        self,
        code: str,
        interpreter: Interpreter = "python",
        *,
        timeout_s: float = ANSWER_TIMEOUT_S / 2,
        **options: Any,
    ) -> Reply:
        """Run code to its end."""
        return self.result(self.begin(code, interpreter, timeout_s=timeout_s, **options))

    def python(self, code: str, **options: Any) -> Reply:
        return self.run(code, "python", **options)

    def bash(self, code: str, **options: Any) -> Reply:
        return self.run(code, "bash", **options)

    def node(self, code: str, **options: Any) -> Reply:
        return self.run(code, "node", **options)

    def running(self, text: str) -> None:
        """Wait until the streamed output has this text: the code is that far."""
        streamed = "".join(frame["text"] for frame in self.seen if frame["type"] == "output")
        while text not in streamed:
            streamed += self.expect("output")["text"]

    # The process.

    def log(self) -> str:
        """End the agent; what it wrote to its log."""
        self.process.kill()
        log: bytes = self.process.communicate(timeout=ANSWER_TIMEOUT_S)[1]
        return log.decode(errors="replace")

    def wait(self) -> int:
        """Wait for the agent's end; its exit status."""
        status: int = self.process.wait(ANSWER_TIMEOUT_S)
        return status

    def close(self) -> None:
        """End it by end-of-file, as a supervisor that goes would."""
        self.socket.close()
        try:
            self.process.wait(ANSWER_TIMEOUT_S)
        finally:
            self.process.kill()
            self.process.wait()
            assert self.process.stderr is not None
            self.process.stderr.close()


@contextmanager
def direct_agent(workspace: Path, *arguments: str) -> Generator[AgentProcess]:
    """An agent without a jail, for code that does no harm."""
    command = [PYTHON, "-I", str(AGENT), "--workspace", str(workspace)]
    agent = AgentProcess(command, workspace=workspace, arguments=arguments)
    try:
        yield agent
    finally:
        agent.close()


@cache
def compiled_agent() -> bytes:
    """The agent as jails get it: compiling it would take as long as all else of its start."""
    return trio.run(ProgramCode(AGENT_PROGRAM, "/agent.py").for_python, JAILED_PYTHON)


@contextmanager
def jailed_agent(
    *arguments: str, weak: Sequence[str] = (), within: Sequence[str] = ()
) -> Generator[AgentProcess]:
    """An agent in a throw-away jail that hostile code may wreck.

    Args:
        weak: further arguments of bwrap.
        within: a command that becomes the agent, which follows it.
    """
    assert BWRAP is not None
    source = os.memfd_create("agent")
    try:
        os.write(source, compiled_agent())
        os.lseek(source, 0, os.SEEK_SET)
        command = [
            *(str(BWRAP), "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-net"),
            *("--unshare-uts", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"),
            *("--new-session", "--as-pid-1", "--die-with-parent"),
            *("--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"),
            *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
            *("--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/workspace"),
            *("--ro-bind-data", str(source), "/agent.py", *weak, "--chdir", "/workspace"),
            *(*within, JAILED_PYTHON, "-I", "/agent.py"),
        ]
        user = UNPRIVILEGED_UID if os.getuid() == 0 else None
        agent = AgentProcess(
            command,
            workspace=Path("/workspace"),
            arguments=arguments,
            user=user,
            pass_fds=(source,),
        )
    finally:
        os.close(source)
    try:
        yield agent
    finally:
        agent.close()


@contextmanager
def short_directory() -> Generator[Path]:
    """A directory that is gone at the end, with all that agents left in it."""
    with tempfile.TemporaryDirectory(prefix="nsm-agent-") as name:
        yield Path(name)


def becomes_true(condition: Callable[[], object], what: str) -> None:
    """Wait for something that no descriptor tells, for a bounded time."""
    limit = time.monotonic() + ANSWER_TIMEOUT_S
    while not condition():
        assert time.monotonic() < limit, f"still not: {what}"
        select.select([], [], [], 0.005)


def json_of(reply: Reply) -> Any:
    """Parse the output of the code as JSON."""
    assert reply.exit_code == 0, reply
    return json.loads(reply.stdout)


def _libraries() -> dict[str, str]:
    """A Python of `NSM_TEST_AGENT_PYTHON` may need its libraries named."""
    path = os.environ.get("LD_LIBRARY_PATH")
    return {} if path is None else {"LD_LIBRARY_PATH": path}
