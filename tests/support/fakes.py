"""Stand-ins at the launcher's seam: jails that are socket pairs, agents that are tasks."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import trio

from nsm.wire.errors import NsmError
from nsmd.agent_link.frames import JobFacts
from nsmd.jail import Jail
from nsmd.model.policy import policy_of
from nsmd.model.values import Environment, JailSizes, JailSpec, SessionLimits
from sandbox.framing import MessageReader, encode_frame

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nsmd.agent_link.frames import Noted, ResumedFrame
    from nsmd.host.processes import Usage
    from nsmd.sessions.execution import Execution
    from nsmd.sessions.session import Session

CAPABILITIES = [
    "sequence",
    "execute.timeout",
    "execute.result",
    "stream",
    "interrupt",
    "status",
    "limits",
    "stream.late",
    "files",
    "complete",
    "check",
]

PYTHON = Environment(
    name="python", interpreter="python", program="/usr/bin/python3", agent_python="/usr/bin/python3"
)
BASH = Environment(name="bash", interpreter="bash", program="/bin/bash")
BROKEN = Environment(name="node", interpreter="node", problem="no `node` on PATH")


def spec(environment: Environment = PYTHON) -> JailSpec:
    """A jail specification without project."""
    return JailSpec(environment=environment, project=None, sizes=JailSizes())


class FakeAgent:
    """The agent's end of a channel. Tests script it frame by frame."""

    def __init__(self, end: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._reader = MessageReader()
        self._sequence = 0
        self.acknowledged = 0
        self.hello: Mapping[str, Any] | None = None

    async def send(self, frame: Mapping[str, Any], descriptor: int | None = None) -> None:
        """Send one frame, numbered once the supervisor has said hello."""
        if self.hello is not None:
            self._sequence += 1
            frame = {**frame, "seq": self._sequence}
        data = encode_frame(frame)
        if descriptor is not None:
            rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor])
            data = data[await self._stream.socket.sendmsg([data], [rights]) :]
        await self._stream.send_all(data)

    def begin_after(self, number: int) -> None:
        """Number frames from there on."""
        self._sequence = number

    async def send_raw(self, data: bytes) -> None:
        """Send bytes that are no frame."""
        await self._stream.send_all(data)

    async def be_ready(self, capabilities: list[str] | None = None) -> None:
        """Introduce itself and take the supervisor's hello."""
        offered = CAPABILITIES if capabilities is None else capabilities
        await self.send({"type": "ready", "protocol": 1, "python": "3", "capabilities": offered})
        if "sequence" in offered:
            self.hello = await self.receive()
            assert self.hello["type"] == "hello"

    async def take_marker(self, marker: bytes) -> None:
        """Wait for a new holder of the channel; what follows its marker are frames."""
        self._reader.marker = marker
        self._reader.skip_to_marker()
        while self._reader.next_message() is None:
            data = await self._stream.receive_some(65536)
            if not data:
                raise EOFError
            self._reader.receive_data(bytes(data))

    async def receive(self) -> Mapping[str, Any]:
        """The next frame that is not an acknowledgement; raises EOFError at the end."""
        while True:
            while (frame := self._reader.next_message()) is None:
                data = await self._stream.receive_some(65536)
                if not data:
                    raise EOFError
                self._reader.receive_data(bytes(data))
            self.acknowledged = frame.get("ack", self.acknowledged)
            if frame["type"] != "ack":
                return frame
            self.acknowledged = frame["seq"]

    async def answer(self, frame: Mapping[str, Any], stdout: str = "", **fields: Any) -> None:
        """Send the result of an `execute` frame."""
        result = {"type": "result", "id": frame["id"], "stdout": stdout, "stderr": ""}
        await self.send({**result, "exit_code": 0, **fields})

    async def aclose(self) -> None:
        """End the channel."""
        await trio.aclose_forcefully(self._stream)


class Watcher:
    """The part of a `SessionManager` that a session calls; it has none taken up."""

    def __init__(self) -> None:
        self.leaving = False
        self.ended: list[Session] = []
        self.changed: list[Session] = []
        self.resumed: list[tuple[Session, ResumedFrame]] = []

    def session_ready(self, session: Session) -> None:
        pass

    def session_ended(self, session: Session) -> None:
        self.ended.append(session)

    def session_changed(self, session: Session) -> None:
        self.changed.append(session)

    def session_resumed(self, session: Session, resumed: ResumedFrame) -> None:
        self.resumed.append((session, resumed))

    def execution_resumed(self, session: Session, noted: Noted) -> Execution:
        raise AssertionError(f"{session} runs {noted}")


class FakeJail(Jail):
    """A jail that is a socket pair; it is gone when killed."""

    def __init__(self, pid: int, spec: JailSpec) -> None:
        channel, self.agent_end = socket.socketpair()
        channel.setblocking(False)
        self.agent_end.setblocking(False)
        policy = policy_of(spec, SessionLimits(), "cold")
        super().__init__(channel, os.eventfd(0), pid, policy=policy)
        self.killed = False
        self.words = ""
        self._gone = trio.Event()

    @property
    def released(self) -> bool:
        return self._released

    def kill(self) -> None:
        self.killed = True
        self._gone.set()
        if not self.released:
            os.eventfd_write(self.pidfd, 1)
        with suppress(OSError):  # the agent has let go of it already
            self.agent_end.shutdown(socket.SHUT_RDWR)

    async def wait(self) -> None:
        await self._gone.wait()

    def stderr_text(self) -> str:
        return self.words


Behaviour = Callable[[FakeAgent, FakeJail], Awaitable[None]]


class FakeLauncher:
    """Makes fake jails and runs an agent in each; `fail` makes the next starts fail."""

    def __init__(self, nursery: trio.Nursery, behave: Behaviour) -> None:
        self.jails: list[FakeJail] = []
        self.fail: NsmError | None = None
        self._nursery = nursery
        self._behave = behave

    async def prepare(self, spec: JailSpec) -> None:
        del spec

    async def launch(self, spec: JailSpec, group: int | None = None) -> FakeJail:
        await trio.lowlevel.checkpoint()
        if self.fail is not None:
            raise self.fail
        jail = FakeJail(1_000_000 + len(self.jails), spec)
        self.jails.append(jail)
        self._nursery.start_soon(self._run, jail)
        return jail

    async def _run(self, jail: FakeJail) -> None:
        agent = FakeAgent(jail.agent_end)
        try:
            await self._behave(agent, jail)
        except (EOFError, trio.BrokenResourceError):
            pass  # the supervisor let go
        finally:
            await agent.aclose()
            jail.kill()


async def echo(agent: FakeAgent, jail: FakeJail) -> None:
    """An agent whose interpreter prints its code, and is interruptible when the code is `wait`."""
    del jail
    await agent.be_ready()
    waiting: Mapping[str, Any] | None = None
    while True:
        frame = await agent.receive()
        match frame["type"]:
            case "execute" if frame["code"] == "wait":
                waiting = frame
            case "execute":
                await agent.answer(frame, stdout=frame["code"])
            case "interrupt" if waiting is not None:
                await agent.answer(waiting, interrupted=True, exit_code=130)
                waiting = None
            case "status":
                await agent.send({"type": "status", "running": None, "background": 0})
            case _:
                pass


async def outcomes(agent: FakeAgent, jail: FakeJail) -> None:
    """An agent whose code says what becomes of it; `die` is the end of the jail."""
    del jail
    await agent.be_ready()
    while True:
        frame = await agent.receive()
        if frame["type"] != "execute":
            continue
        match frame["code"]:
            case "die":
                return
            case "error":
                await agent.answer(frame, exit_code=1)
            case "timeout":
                await agent.answer(frame, exit_code=124, timed_out=True)
            case "interrupted":
                await agent.answer(frame, exit_code=130, interrupted=True)
            case code:
                await agent.answer(frame, stdout=code)


@asynccontextmanager
async def launching(behave: Behaviour = echo) -> AsyncGenerator[FakeLauncher]:
    """A launcher whose agents end with the block."""
    async with trio.open_nursery() as nursery:
        yield FakeLauncher(nursery, behave)
        nursery.cancel_scope.cancel()


async def no_usage(pids: Sequence[int]) -> Mapping[int, Usage]:
    """Instead of /proc: fake jails are no processes, and a thread would confuse virtual time."""
    del pids
    return {}


def job_facts(job: str = "1", **changes: Any) -> JobFacts:
    """Facts of a job that has ended with 0."""
    facts = JobFacts(
        job=job,
        argv=("make", "the test"),
        cwd="/workspace",
        pid=7,
        tty=False,
        running=False,
        takes_input=False,
        age_s=2.5,
        duration_s=1.5,
        exit_code=0,
        signal=0,
        timed_out=False,
        stopped=False,
        user_s=0.1,
        system_s=0.1,
        max_rss_bytes=1,
        output_bytes=300,
        input_bytes=0,
    )
    return facts._replace(**changes)
