"""The client on trio: many calls at once over one connection.

Example::

    import nsm
    import trio

    async def main() -> None:
        async with nsm.AsyncClient() as client, trio.open_nursery() as nursery:
            for name in ("a", "b"):
                nursery.start_soon(show, client, name)

    async def show(client: nsm.AsyncClient, name: str) -> None:
        result = await client.run(f"print('{name}')", env="python", session=name)
        print(result.stdout, end="")

    trio.run(main)
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from nsm import operations, paths, start
from nsm.wire import results
from nsm.wire.connection import ClientConnection
from nsm.wire.errors import DisconnectedError, NsmError
from nsm.wire.messages import CONNECTION_ID, Cancel, Event, Failure, Hello, Request, Result
from nsm.wire.results import EnvironmentRow, KillReport, RunResult, SessionRow, Status

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any, Self

    from nsm.builds import AsyncBuilds
    from nsm.operations import NetworkAction, OnEntry, OnOutput
    from nsm.transfers import Transfer
    from nsm.wire.drain import DrainReport, OnDrain
    from nsm.wire.inspection import Inspection
    from nsm.wire.messages import ClientMessage, ServerMessage
    from nsm.wire.network import NetworkReport
    from nsm.wire.pool import PoolReport
    from nsm.wire.sessions import Check, Completions, FileInfo
    from nsm.wire.transcripts import EndedRow, LogEnd

ANSWER_TIMEOUT_S = 10.0
"""How long the supervisor may take to introduce itself, or to end after it said that it will."""

CANCEL_TIMEOUT_S = 1.0
"""How long a cancelled call may still write its `cancel`; it is a few bytes."""

CLOSE_TIMEOUT_S = 5.0
"""How long a cancelled transfer may still take to close its file in the session."""

_READ_BYTES = 65536


class AsyncClient:
    """One connection to the supervisor, for any number of tasks of one trio run.

    Use it as a context manager. It has no task of its own: whichever call waits also reads, for
    all that wait.

    Cancellation: a cancelled call tells the supervisor, which interrupts what runs, and does not
    wait for what comes of it. One that is cancelled while it writes closes the connection.

    Attributes:
        server: how the supervisor introduced itself; None before the context is entered.
    """

    def __init__(
        self,
        *,
        scope: str = "cli",
        autostart: bool = True,
        socket_path: str | None = None,
        name: str = "nsm",
        stream: trio.abc.Stream | None = None,
    ) -> None:
        """Remember how to connect; entering the context connects.

        Args:
            scope: name space of session names; clients of one scope share their sessions.
            autostart: start a supervisor where none listens.
            socket_path: absolute; None for the usual one (`nsm.paths.socket_path`).
            name: the program, for `nsm ps`.
            stream: a stream that leads to a supervisor already, in place of a path; it is closed
                with the client.
        """
        self._hello = operations.hello(name=name, scope=scope)
        self._autostart = autostart
        self._socket_path = socket_path
        self._stream = stream
        self._protocol = ClientConnection()
        self._send_lock = trio.Lock()
        self._calls: dict[int, _Call] = {}
        self._reading = False
        self._failure: NsmError | None = None
        self.server: Hello | None = None

    def __repr__(self) -> str:
        pid = self.server.pid if self.server else None
        return f"<nsm.AsyncClient supervisor={pid} calls={len(self._calls)}>"

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            NotRunningError: no supervisor listens, and none may or could be started.
        """
        if self._stream is None:
            path = self._socket_path or paths.socket_path()
            # In a thread: a start takes up to `nsm.spawn.READY_TIMEOUT_S`. The supervisor is not
            # the thread's child, so its end means nothing to it.
            connection = await trio.to_thread.run_sync(
                lambda: start.connect(path, autostart=self._autostart)
            )
            self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        try:
            with trio.fail_after(ANSWER_TIMEOUT_S):
                self.server = await self._introduce()
        except trio.TooSlowError:
            await trio.aclose_forcefully(self._stream)
            raise DisconnectedError(
                f"the supervisor has not answered within {ANSWER_TIMEOUT_S:.0f} s",
                hint="It is stopped or stuck. Its log says more.",
            ) from None
        except BaseException:
            await trio.aclose_forcefully(self._stream)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection. One-shot runs of it end, named sessions stay."""
        self._fail(DisconnectedError("this client is closed", hint="Make a new one."))
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)

    async def run(
        self,
        code: str,
        *,
        env: str,
        session: str | None = None,
        timeout_s: float | None = None,
        execution_id: str | None = None,
        project: str | os.PathLike[str] | None = None,
        mount_point: str | None = None,
        project_mode: str | None = None,
        network: str | None = None,
        on_output: OnOutput | None = None,
    ) -> RunResult:
        """Run code and wait for what comes of it; see `nsm.Client.run`.

        `on_output` is called in the task of this call. It must not block.
        """
        arguments = operations.run_arguments(
            code,
            env=env,
            session=session,
            timeout_s=timeout_s,
            execution_id=execution_id,
            project=project,
            mount_point=mount_point,
            project_mode=project_mode,
            network=network,
            stream=on_output is not None,
            inherit=self.server.inherit if self.server else (),
        )

        on_event = None if on_output is None else operations.output_to(on_output)
        return RunResult.from_wire(await self.call("run", arguments, on_event=on_event))

    async def result(self, execution_id: str) -> RunResult:
        """The result of an execution, once more or still to come."""
        return RunResult.from_wire(await self.call("result", {"execution_id": execution_id}))

    async def sessions(self) -> list[SessionRow]:
        """All live sessions, of every scope."""
        wire = await self.call("sessions")
        return [SessionRow.from_wire(row) for row in results.rows(wire, "sessions")]

    async def ended_sessions(self) -> list[EndedRow]:
        """Sessions that are over and whose transcripts are kept, the newest last."""
        from nsm.wire.transcripts import EndedRow  # noqa: PLC0415  # few programs ask for them

        wire = await self.call("sessions", {"all": True})
        return [EndedRow.from_wire(row) for row in results.rows(wire, "ended")]

    async def run_in(
        self,
        target: str,
        code: str,
        *,
        timeout_s: float | None = None,
        execution_id: str | None = None,
        on_output: OnOutput | None = None,
    ) -> RunResult:
        """Run code in a live session of any scope; see `nsm.Client.run_in` and `run`."""
        arguments = operations.run_in_arguments(
            target,
            code,
            timeout_s=timeout_s,
            execution_id=execution_id,
            stream=on_output is not None,
        )
        on_event = None if on_output is None else operations.output_to(on_output)
        return RunResult.from_wire(await self.call("run_in", arguments, on_event=on_event))

    async def logs(
        self,
        target: str,
        *,
        executions: int | None = None,
        follow: bool = False,
        on_entry: OnEntry,
    ) -> LogEnd:
        """Read the transcript of a session, live or ended; see `nsm.Client.logs`.

        `on_entry` is called in the task of this call. It must not block. Cancel the call to stop
        following.
        """
        from nsm.wire.transcripts import LogEnd  # noqa: PLC0415  # few programs read logs

        arguments = operations.logs_arguments(target, executions=executions, follow=follow)
        on_event = operations.entries_to(on_entry)
        return LogEnd.from_wire(await self.call("logs", arguments, on_event=on_event))

    async def complete(self, target: str, code: str, cursor: int) -> Completions:
        """What could stand at a place of some code; see `nsm.Client.complete`."""
        from nsm.wire.sessions import Completions  # noqa: PLC0415  # for prompts only

        arguments = {"target": target, "code": code, "cursor": cursor}
        return Completions.from_wire(await self.call("complete", arguments))

    async def check(self, target: str, code: str) -> Check:
        """Whether code is a whole input for the session's interpreter."""
        from nsm.wire.sessions import Check  # noqa: PLC0415  # for prompts only

        return Check.from_wire(await self.call("check", {"target": target, "code": code}))

    async def get_file(
        self,
        target: str,
        path: str,
        write: Callable[[bytes], object],
        *,
        max_bytes: int | None = None,
    ) -> FileInfo:
        """Read a file of a session; see `nsm.Client.get_file`. `write` must not block for long."""
        from nsm import transfers  # noqa: PLC0415  # few programs transfer files

        return await self._carry_out(transfers.get(target, path, write, max_bytes))

    async def put_file(
        self,
        target: str,
        path: str,
        read: Callable[[int], bytes],
        *,
        permissions: int | None = None,
        overwrite: bool = True,
    ) -> FileInfo:
        """Write a file of a session; see `nsm.Client.put_file`. `read` must not block for long."""
        from nsm import transfers  # noqa: PLC0415  # few programs transfer files

        return await self._carry_out(
            transfers.put(target, path, read, permissions, overwrite=overwrite)
        )

    async def _carry_out(self, transfer: Transfer) -> FileInfo:
        closing = False
        try:
            step = next(transfer)
            while True:
                answer: dict[str, Any] = {}
                try:
                    # What is cancelled still closes its file: a session has few of them.
                    limit_s = CLOSE_TIMEOUT_S if closing else math.inf
                    with trio.move_on_after(limit_s, shield=closing):
                        answer = await self.call(*step)
                except BaseException as error:  # noqa: BLE001  # the transfer raises it again
                    closing = True
                    step = transfer.throw(error)
                else:
                    step = transfer.send(answer)
        except StopIteration as end:
            info: FileInfo = end.value
            return info

    async def kill(self, targets: str | Iterable[str]) -> KillReport:
        """End sessions by id, name or ``scope/name``; the report says which could not be found."""
        return KillReport.from_wire(await self.call("kill", operations.kill_arguments(targets)))

    async def kill_all(self) -> KillReport:
        """End every session."""
        return KillReport.from_wire(await self.call("kill", {"all": True}))

    async def kill_idle(self, idle_s: float) -> KillReport:
        """End the sessions that have been idle for `idle_s` seconds or longer."""
        return KillReport.from_wire(await self.call("kill", {"idle_s": idle_s}))

    async def interrupt(self, target: str) -> bool:
        """Interrupt what runs in a session; False when nothing did."""
        return results.flag(await self.call("interrupt", {"target": target}), "interrupted")

    async def envs(self) -> list[EnvironmentRow]:
        """The environments, those that cannot be used included."""
        wire = await self.call("envs")
        return [EnvironmentRow.from_wire(row) for row in results.rows(wire, "environments")]

    @property
    def builds(self) -> AsyncBuilds:
        """Environments that Nix builds."""
        from nsm.builds import AsyncBuilds  # noqa: PLC0415  # few programs ask

        return AsyncBuilds(self)

    async def inspect(self, target: str) -> Inspection:
        """The rules of a live session, and what the kernel says of its jail."""
        from nsm.wire.inspection import Inspection  # noqa: PLC0415  # few programs ask

        return Inspection.from_wire(await self.call("inspect", {"target": target}))

    async def network(
        self, target: str, action: NetworkAction = "list", hosts: Iterable[str] = ()
    ) -> NetworkReport:
        """What a live session may reach, after a change if one is asked for.

        Args:
            action: ``allow`` and ``deny`` take hosts, as patterns (docs/network.md): ``deny`` takes
                patterns away. ``off`` takes all away.
        """
        from nsm.wire.network import NetworkReport  # noqa: PLC0415  # few programs ask

        arguments = {"target": target, "action": action, "hosts": list(hosts)}
        return NetworkReport.from_wire(await self.call("net", arguments))

    async def pool(self) -> PoolReport:
        """The sessions that are kept ready, how many there should be, and why."""
        from nsm.wire.pool import PoolReport  # noqa: PLC0415  # few programs ask

        return PoolReport.from_wire(await self.call("pool"))

    async def status(self) -> Status:
        """The supervisor's version, uptime, counts."""
        return Status.from_wire(await self.call("status"))

    async def ping(self) -> None:
        """Return when the supervisor has answered."""
        await self.call("ping")

    async def drain(
        self, *, timeout_s: float | None = None, on_progress: OnDrain | None = None
    ) -> DrainReport:
        """Have nothing new begun, and return when nothing runs any more; sessions stay.

        Args:
            timeout_s: until what still runs is interrupted; None for no such time.
            on_progress: called every second or so.
        """
        from nsm.wire import drain  # noqa: PLC0415  # few programs ask

        wire = await self.call(
            "drain",
            drain.drain_arguments(timeout_s),
            on_event=drain.progress_to(on_progress),
        )
        return drain.DrainReport.from_wire(wire)

    async def undrain(self) -> DrainReport:
        """Take back a drain: new work is taken again."""
        from nsm.wire.drain import DrainReport  # noqa: PLC0415  # few programs ask

        return DrainReport.from_wire(await self.call("drain", {"cancel": True}))

    async def reload(self) -> None:
        """Have the supervisor become the program that is installed now, with all sessions.

        Returns when it has closed this connection; a new client reaches it again.

        Raises:
            StartFailedError: that program would not start; the supervisor goes on as it is.
        """
        await self.call("reload")
        await self._until_closed()

    async def shutdown(self) -> None:
        """End the supervisor and all sessions; returns when it has closed this connection."""
        with suppress(DisconnectedError):  # it was ending already
            await self.call("shutdown")
        await self._until_closed()

    async def _until_closed(self) -> None:
        closing = self._calls[CONNECTION_ID] = _Call()  # waits like a call, and is never answered
        with trio.move_on_after(ANSWER_TIMEOUT_S) as scope, suppress(NsmError):
            await self._wait_for_answer(closing, None)
        del self._calls[CONNECTION_ID]
        await self.aclose()
        if scope.cancelled_caught:
            raise DisconnectedError(
                f"the supervisor has not ended within {ANSWER_TIMEOUT_S:.0f} s",
                hint=f"Its process is {self.server.pid if self.server else 'unknown'}.",
            )

    async def call(
        self,
        op: str,
        args: dict[str, Any] | None = None,
        *,
        on_event: Callable[[Event], object] | None = None,
    ) -> dict[str, Any]:
        """Any operation, by its name and arguments on the wire (docs/interfaces.md).

        Raises:
            NsmError: what the supervisor answered.
        """
        id_ = self._protocol.new_id()
        call = self._calls[id_] = _Call()
        try:
            await self._send(Request(id_, op, args or {}))
            answer = await self._wait_for_answer(call, on_event)
        finally:
            del self._calls[id_]
            if not self._reading:
                self._wake_a_reader()
            if call.answer is None and self._failure is None:
                with trio.move_on_after(CANCEL_TIMEOUT_S, shield=True):
                    await self._send(Cancel(id_))
        if isinstance(answer, Failure):
            raise answer.error
        return answer.result

    async def _wait_for_answer(
        self, call: _Call, on_event: Callable[[Event], object] | None
    ) -> Result | Failure:
        while True:
            while call.events:
                event = call.events.popleft()
                if on_event is not None:
                    on_event(event)
            if call.answer is not None:
                return call.answer
            self._raise_failure()
            if self._reading:
                await call.woken.wait()
                call.woken = trio.Event()
                continue
            self._reading = True
            try:
                await self._read()
            finally:
                self._reading = False

    def _wake_a_reader(self) -> None:
        """Let one waiting call find out that nobody reads any more."""
        for call in self._calls.values():
            if call.answer is None:
                call.woken.set()
                return

    async def _read(self) -> None:
        """Read once, and give each message to the call that waits for it."""
        assert self._stream is not None
        try:
            data = await self._stream.receive_some(_READ_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        if not data:
            self._fail(
                DisconnectedError(
                    "the supervisor closed the connection before it answered",
                    hint="It was ended or has crashed; its log says more.",
                )
            )
            return
        try:
            self._protocol.receive_data(data)
            while (message := self._protocol.next_message()) is not None:
                self._deliver(message)
        except NsmError as error:
            self._fail(error)

    def _deliver(self, message: ServerMessage) -> None:
        if isinstance(message, Hello):
            self.server = message
            return
        if isinstance(message, Failure) and message.id == CONNECTION_ID:
            self._fail(message.error)
            return
        call = self._calls.get(message.id)
        if call is None:  # cancelled meanwhile
            return
        if isinstance(message, Event):
            call.events.append(message)
        else:
            call.answer = message
        call.woken.set()

    async def _send(self, message: ClientMessage) -> None:
        assert self._stream is not None, "the context has not been entered"
        async with self._send_lock:
            self._raise_failure()
            # Nothing yields from here to the first byte: a call that is cancelled before it has
            # written anything leaves the connection as it was.
            await trio.lowlevel.checkpoint_if_cancelled()
            if isinstance(message, Cancel) and message.id not in self._protocol.in_flight:
                return
            data = self._protocol.send(message)
            whole = False
            try:
                await self._stream.send_all(data)
                whole = True
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                whole = True  # reading tells more: the supervisor may have said why it closed
            finally:
                if not whole:
                    self._fail(
                        DisconnectedError(
                            "a call was cancelled while it was being written",
                            hint="Make a new client.",
                        )
                    )
                    await trio.aclose_forcefully(self._stream)

    async def _introduce(self) -> Hello:
        await self._send(self._hello)
        while self.server is None:
            await self._read()
            self._raise_failure()
        return self.server

    def _fail(self, error: NsmError) -> None:
        if self._failure is None:
            self._failure = error
        for call in self._calls.values():
            call.woken.set()

    def _raise_failure(self) -> None:
        # A new one each time: several tasks raise it, and tracebacks would grow into each other.
        if (error := self._failure) is not None:
            raise type(error)(error.message, hint=error.hint, data=error.data)


class _Call:
    """A call that waits."""

    __slots__ = ("answer", "events", "woken")

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        """Taken by the call's task as soon as it runs; filled by whichever task reads."""
        self.answer: Result | Failure | None = None
        self.woken = trio.Event()
