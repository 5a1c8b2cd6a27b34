"""Agent of artifacts that can only run one piece of code: a task of the supervisor.

It is at the other end of a socket pair, and speaks as an agent in a jail would
(`docs/contributing/agent-protocol.md`, base exchange, `execute.timeout`, `execute.result`,
`interrupt`). Each execution is a jail of its own, made by the artifact's `run`, which reads the
code from its standard input. Output and time are bounded here.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from typing import Any

import trio

from nsm.wire.errors import NsmError
from nsmd.jail.process import (
    Jail,
    discard,
    end_starter,
    open_descendant,
    wait_for_starter,
)
from nsmd.jail.project import open_project
from nsmd.jail.starting import (
    hand_over,
    open_info_pipe,
    read_child_pid,
    spawn,
    with_limits,
)
from nsmd.jail.user import JailUser
from nsmd.model.policy import Policy, jail_variables
from nsmd.model.text import HeadTail
from nsmd.model.values import JailSpec, SessionLimits
from sandbox.framing import MessageReader, encode_frame

CAPABILITIES = ("execute.timeout", "execute.result", "interrupt")

REPLY_BYTES = 1024 * 1024
MOST_REPLY_BYTES = 4 * 1024 * 1024
"""Largest part of a stream to keep, as agents do."""

TIMED_OUT, INTERRUPTED = 124, 130
"""Exit codes, the same as agents'."""

CHUNK_BYTES = 64 * 1024
MOST_LEFT_BYTES = 1024 * 1024
"""Bytes to read of a stream after its jail has ended: more than a pipe holds."""


class RunOnlyJail(Jail):
    """Jail for artifacts that only run one piece of code: between executions there is no jail. It
    owns the channel and `ended_fd`, which becomes readable when the task has ended.
    """

    __slots__ = ("_scope",)

    def __init__(
        self, channel: socket.socket, ended_fd: int, scope: trio.CancelScope, policy: Policy
    ) -> None:
        super().__init__(channel, ended_fd, 0, policy=policy)
        self._scope = scope

    def kill(self) -> None:
        self._scope.cancel()


async def start_run_only(
    spec: JailSpec,
    policy: Policy,
    user: JailUser,
    variables: Mapping[str, str],
    limits: SessionLimits,
    nursery: trio.Nursery,
) -> RunOnlyJail:
    """Start the agent of a session, a task of the nursery: it takes executions, each in a new jail.
    The variables are those of the program, without the project's path.
    """
    if spec.project is not None:  # now, not at the first execution
        os.close(open_project(user, spec.project)[1])
    with ExitStack() as owned:
        channel, agent_end = socket.socketpair()
        owned.enter_context(channel).setblocking(False)
        owned.enter_context(agent_end)
        ended_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        owned.callback(os.close, ended_fd)
        task = _RunOnlyAgent(spec, policy, user, variables, limits, agent_end, os.dup(ended_fd))
        owned.pop_all()
    nursery.start_soon(task.run)
    jail = RunOnlyJail(channel, ended_fd, task.scope, policy)
    try:
        await trio.lowlevel.wait_readable(channel)
    except BaseException:
        await discard(jail)
        raise
    return jail


class _RunOnlyAgent:
    """Agent of one session. `run` owns its end of the channel, and `ended_fd`."""

    def __init__(
        self,
        spec: JailSpec,
        policy: Policy,
        user: JailUser,
        variables: Mapping[str, str],
        limits: SessionLimits,
        end: socket.socket,
        ended_fd: int,
    ) -> None:
        assert spec.environment.artifact is not None
        self.scope = trio.CancelScope()
        self._spec = spec
        self._policy = policy
        self._artifact = spec.environment.artifact
        self._user = user
        self._variables = variables
        self._limits = limits
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(end))
        self._writing = trio.Lock()
        self._ended_fd = ended_fd
        self._running: _Execution | None = None

    async def run(self) -> None:
        """Converse until the supervisor's session closes the channel."""
        try:
            with self.scope:
                async with trio.open_nursery() as executions:
                    with suppress(trio.BrokenResourceError):
                        await self._converse(executions)
                    executions.cancel_scope.cancel()
        finally:
            await trio.aclose_forcefully(self._stream)
            os.eventfd_write(self._ended_fd, 1)
            os.close(self._ended_fd)

    async def _converse(self, executions: trio.Nursery) -> None:
        await self._send(
            {
                "type": "ready",
                "protocol": 1,
                "interpreters": [self._spec.environment.interpreter],
                "capabilities": list(CAPABILITIES),
            }
        )
        reader = MessageReader()
        while True:
            while (frame := reader.next_message()) is not None:
                if not await self._handle_frame(frame, executions):
                    return
            data = await self._stream.receive_some(CHUNK_BYTES)
            if not data:
                return
            reader.receive_data(data)

    async def _handle_frame(self, frame: Mapping[str, Any], executions: trio.Nursery) -> bool:
        """Handle a frame; False to stop. Frames come from the supervisor itself and
        need no checks.
        """
        kind, id_ = frame["type"], frame.get("id")
        match kind:
            case "execute" if self._running is not None:
                await self._refuse(id_, "an execution is running")
            case "execute":
                self._running = _Execution(frame)
                executions.start_soon(self._execute, self._running)
            case "interrupt" if self._running is not None and self._running.id == id_:
                self._running.interrupt()
            case "interrupt":
                await self._send({"type": "idle", "id": id_})
            case "ping":
                await self._send({"type": "pong"})
            case "shutdown":
                return False
            case _:
                await self._refuse(id_, f"nothing is known here of {kind!r}")
        return True

    async def _execute(self, execution: _Execution) -> None:
        try:
            answer = await execution.run(self._start, tells=self._artifact.schema > 0)
        except NsmError as error:
            answer = {"type": "error", "id": execution.id, "message": error.message}
        except OSError as error:
            program = self._artifact.run
            answer = {"type": "error", "id": execution.id, "message": f"{program}: {error}"}
        self._running = None
        with suppress(trio.BrokenResourceError):
            await self._send(answer)

    def _start(
        self, stdin: int, stdout: int, stderr: int, info_end: int
    ) -> subprocess.Popen[bytes]:
        """Start the artifact's program."""
        with ExitStack() as owned:
            variables, inherited = hand_over(
                self._artifact,
                self._user,
                owned,
                project=self._spec.project,
                info_end=info_end,
                policy=self._policy.as_text().encode(),
                code_variables=jail_variables(self._spec.environment, self._spec.network),
            )
            command = [os.path.realpath(self._artifact.run)]  # as in `ArtifactLauncher`
            return spawn(
                self._user,
                with_limits(command, self._spec.environment, self._limits),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                inherited=inherited,
                variables={**self._variables, **variables},
            )

    async def _refuse(self, id_: object, why: str) -> None:
        await self._send({"type": "error", "id": id_, "message": why})

    async def _send(self, frame: Mapping[str, Any]) -> None:
        async with self._writing:
            await self._stream.send_all(encode_frame(frame))


class _Execution:
    """One run of the program."""

    def __init__(self, frame: Mapping[str, Any]) -> None:
        self.id: str = frame["id"]
        self._code = str(frame["code"]).encode("utf-8", "surrogateescape")
        self._limit_s: float | None = frame.get("timeout_s")
        kept = min(int(frame.get("reply_bytes", REPLY_BYTES)), MOST_REPLY_BYTES)
        self._out, self._err = HeadTail(kept), HeadTail(kept)
        self._patience = trio.CancelScope()
        self._interrupted = False
        self._ended_itself = False
        self._jail_fd: int | None = None
        self._failure: OSError | None = None

    def interrupt(self) -> None:
        """End it; its result says that it was interrupted."""
        self._interrupted = True
        self._patience.cancel()

    async def run(
        self, start: Callable[[int, int, int, int], subprocess.Popen[bytes]], *, tells: bool
    ) -> dict[str, Any]:
        """Run the program, and return its `result` frame; cancellation ends it. `start` gets
        descriptors: standard input, output, errors, and one for `NSM_INFO_FD`, where it may tell
        the process id of its jail.
        """
        began_s = trio.current_time()
        async with AsyncExitStack() as ours:
            with ExitStack() as theirs:
                out, out_end = await _pipe_from(ours, theirs)
                err, err_end = await _pipe_from(ours, theirs)
                info, info_end = await _pipe_from(ours, theirs, open_info_pipe)
                stdin, code = await _pipe_to(ours, theirs)
                starter = start(stdin, out_end, err_end, info_end)
            try:
                end_fd = os.pidfd_open(starter.pid)
                ours.callback(os.close, end_fd)
                async with trio.open_nursery() as pumps:
                    pumps.start_soon(self._feed, code, info if tells else None, starter.pid)
                    pumps.start_soon(self._read, self._out, out)
                    pumps.start_soon(self._read, self._err, err)
                    with self._patience:
                        if self._limit_s is not None:
                            self._patience.deadline = began_s + self._limit_s
                        await trio.lowlevel.wait_readable(end_fd)  # not reaped
                        self._ended_itself = True
                    pumps.cancel_scope.cancel()
            finally:
                await self._end(starter)
            if self._failure is not None:
                raise self._failure
            _read_rest(self._out, out)
            _read_rest(self._err, err)
        return self._result(starter.returncode, trio.current_time() - began_s)

    async def _feed(
        self, code: trio.lowlevel.FdStream, info: trio.lowlevel.FdStream | None, starter: int
    ) -> None:
        """Write the code, once the jail can be ended whatever the code leaves behind."""
        if info is not None:
            pid = await read_child_pid(info.fileno())
            try:
                if pid is not None:
                    self._jail_fd = open_descendant(pid, starter)
            # there is no free descriptor; raised here, it would be in a group
            except OSError as error:
                self._failure = error
                self._patience.cancel()
                return
        with suppress(trio.BrokenResourceError):  # it may not read all, or nothing
            await code.send_all(self._code)
        await code.aclose()

    @staticmethod
    async def _read(kept: HeadTail, stream: trio.lowlevel.FdStream) -> None:
        while data := await stream.receive_some(CHUNK_BYTES):
            kept.write(data)

    async def _end(self, starter: subprocess.Popen[bytes]) -> None:
        """End the rest of it: everything, or what it left in the background."""
        if self._jail_fd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._jail_fd, signal.SIGKILL)
            os.close(self._jail_fd)
            self._jail_fd = None
        if self._ended_itself:
            with trio.CancelScope(shield=True):
                await wait_for_starter(starter)
        else:
            await end_starter(starter)

    def _result(self, status: int, duration_s: float) -> dict[str, Any]:
        # A run that ended before it could be interrupted was not interrupted.
        interrupted = self._interrupted and not self._ended_itself
        timed_out = not interrupted and not self._ended_itself
        code = 128 - status if status < 0 else status
        out, out_omitted = self._out.result("surrogateescape")
        err, err_omitted = self._err.result("surrogateescape")
        return {
            "type": "result",
            "id": self.id,
            "stdout": out,
            "stderr": err,
            "exit_code": TIMED_OUT if timed_out else INTERRUPTED if interrupted else code,
            "duration_s": duration_s,
            "truncated": {
                name: {"omitted_bytes": omitted, "file": None}
                for name, omitted in (("stdout", out_omitted), ("stderr", err_omitted))
                if omitted
            },
            "timed_out": timed_out,
            "interrupted": interrupted,
        }


async def _pipe_from(
    ours: AsyncExitStack,
    theirs: ExitStack,
    open_pipe: Callable[[], tuple[int, int]] = lambda: os.pipe2(os.O_CLOEXEC),
) -> tuple[trio.lowlevel.FdStream, int]:
    """Make a pipe that we read: our end, and the descriptor of the other."""
    read_fd, write_fd = open_pipe()
    theirs.callback(os.close, write_fd)
    stream = await ours.enter_async_context(trio.lowlevel.FdStream(read_fd))
    return stream, write_fd


async def _pipe_to(ours: AsyncExitStack, theirs: ExitStack) -> tuple[int, trio.lowlevel.FdStream]:
    """Make a pipe that we write: the descriptor of the other end, and ours."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    theirs.callback(os.close, read_fd)
    stream = await ours.enter_async_context(trio.lowlevel.FdStream(write_fd))
    return read_fd, stream


def _read_rest(kept: HeadTail, stream: trio.lowlevel.FdStream) -> None:
    """Read the rest of a pipe, without waiting for others that still have it open."""
    left = MOST_LEFT_BYTES
    with suppress(BlockingIOError):
        while left > 0 and (data := os.read(stream.fileno(), CHUNK_BYTES)):
            kept.write(data)
            left -= len(data)
