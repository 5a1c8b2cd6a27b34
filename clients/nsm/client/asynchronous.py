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

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from nsm.client import operations
from nsm.client.async_connection import ANSWER_TIMEOUT_S, AsyncWire
from nsm.client.async_file_calls import AsyncFileCalls
from nsm.client.async_jobs import AsyncJobCalls
from nsm.client.async_run_calls import AsyncRunCalls
from nsm.client.projects import DEFAULT, project_of
from nsm.client.retry import MAX_LOSSES, RECONNECTED, LostError, RetriedCall
from nsm.hosts.place import client_socket, leads_elsewhere
from nsm.startup import start
from nsm.wire.answers import read
from nsm.wire.errors import (
    CannotStartError,
    DisconnectedError,
    NotRunningError,
    NsmError,
)
from nsm.wire.live import ForkReport, KillReport, SessionRow
from nsm.wire.messages import CONNECTION_ID, Event
from nsm.wire.results import RunResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, Self, Unpack

    from nsm.client.async_sandbox import AsyncSandbox
    from nsm.client.boxes import AsyncBoxes
    from nsm.client.bridge import AsyncBridge
    from nsm.client.builds import AsyncBuilds
    from nsm.client.operations import NetworkAction, OnEntry
    from nsm.client.ports import AsyncPorts
    from nsm.client.project_environments import AsyncProjectEnvironments
    from nsm.client.projects import ProjectArgument
    from nsm.client.sandbox import SandboxSettings
    from nsm.wire.drain import DrainReport, OnDrain
    from nsm.wire.environments import EnvironmentRow
    from nsm.wire.inspection import Inspection
    from nsm.wire.messages import Hello
    from nsm.wire.network import NetworkReport
    from nsm.wire.pool import PoolReport
    from nsm.wire.reload import OnReload
    from nsm.wire.sessions import Check, Completions
    from nsm.wire.status import Status
    from nsm.wire.transcripts import EndedRow, LogEnd


class AsyncClient(AsyncFileCalls, AsyncJobCalls, AsyncRunCalls):
    """One connection to the supervisor, for any number of tasks of one trio run.

    Use it as a context manager. It has no task of its own: whichever call waits also reads, for
    all that wait. A connection that is lost is opened again, as `nsm.Client` does it.

    Cancellation: a cancelled call tells the supervisor, which interrupts what runs, and does not
    wait for what comes of it. One that is cancelled while it writes closes the connection.

    Attributes:
        server: how the supervisor introduced itself; None before the context is entered.
        leases: ids of sessions that end with the connection. The next connection gets them, too.
    """

    def __init__(
        self,
        *,
        scope: str = "cli",
        autostart: bool = True,
        reconnect: bool = True,
        socket_path: str | None = None,
        host: str | None = None,
        name: str = "nsm",
        project: ProjectArgument = DEFAULT,
        stream: trio.abc.Stream | None = None,
    ) -> None:
        """Remember how to connect; entering the context connects.

        Args:
            scope: name space of session names; clients of one scope share their sessions. The
                default is the command line's, in which each project has names of its own.
            autostart: start a supervisor where none listens.
            reconnect: connect again after a lost connection; not after one that was given.
            socket_path: absolute; None for the usual one (`nsm.paths.socket_path`).
            host: another machine, whose sessions they are, as `nsm.Client` has it.
            name: the program, for `nsm ps`.
            project: directory that code sees; None for none. The default is the current
                directory, unless it is your home directory, one above it, or one that nsm refuses.
            stream: a stream that leads to a supervisor already, in place of a path; it is closed
                with the client.
        """
        self._host = "" if socket_path is not None or stream is not None else host
        self._project = project_of(project, self._host)
        self._name, self._scope = name, scope
        self._autostart = autostart
        self._may_reconnect = reconnect
        self._socket_path = socket_path
        self._stream = stream
        self._path: str | None = None  # to connect again; None where that is not wanted
        self._wire: AsyncWire | None = None
        self._reconnecting = trio.Lock()
        self._closed = False
        self.leases = set[str]()
        self.server: Hello | None = None

    def __repr__(self) -> str:
        pid = self.server.pid if self.server else None
        calls = self._wire.calls if self._wire is not None else 0
        return f"<nsm.AsyncClient supervisor={pid} calls={calls}>"

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            NotRunningError: no supervisor listens, and none may or could be started.
            RuntimeError: this is not trio.
        """
        if not trio.lowlevel.in_trio_task():
            message = (
                "AsyncClient works under trio only: use `trio.run(main)`. Under asyncio, use "
                "nsm.Client in a thread: `await asyncio.to_thread(function_that_uses_it)`."
            )
            raise RuntimeError(message)
        for losses in range(MAX_LOSSES):
            try:
                await self._connect(again=losses > 0 or not self._may_reconnect)
                break
            except LostError:  # it was ending already when it took the connection
                if self._path is None or losses == MAX_LOSSES - 1:
                    raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection. One-shot runs of it end, named sessions stay."""
        self._closed = True
        if self._wire is not None:
            await self._wire.aclose()

    def close_in_child(self) -> None:
        """Close a forked process's copy of its parent's connection."""
        if self._wire is not None:
            self._wire.close_in_child()

    def sandbox(self, **settings: Unpack[SandboxSettings]) -> AsyncSandbox:
        """Make a session when the block begins, which ends with it; see `nsm.Client.sandbox`."""
        from nsm.client.async_sandbox import AsyncSandbox  # noqa: PLC0415  # few programs ask

        return AsyncSandbox(self, settings)

    async def result(self, execution_id: str) -> RunResult:
        """The result of an execution, once more or still to come."""
        return read(RunResult, await self.call("result", {"execution_id": execution_id}))

    async def sessions(self) -> list[SessionRow]:
        """All live sessions, of every scope."""
        rows: list[object] = []
        on_event = operations.rows_to(rows)
        wire = await self.call("sessions", {"stream": True}, on_event=on_event)
        return operations.rows_of(rows, wire)

    async def ended_sessions(self) -> list[EndedRow]:
        """Sessions that are over and whose transcripts are kept, the newest last."""
        from nsm.wire.transcripts import EndedRow  # noqa: PLC0415  # few programs ask for them

        wire = await self.call("sessions", {"all": True, "stream": True})
        return read(list[EndedRow], wire, "ended")

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
        return read(LogEnd, await self.call("logs", arguments, on_event=on_event))

    async def complete(self, target: str, code: str, cursor: int) -> Completions:
        """Complete code at a place, as `nsm.Client.complete`."""
        from nsm.wire.sessions import Completions  # noqa: PLC0415  # for prompts only

        arguments = {"target": target, "code": code, "cursor": cursor}
        return read(Completions, await self.call("complete", arguments))

    async def check(self, target: str, code: str) -> Check:
        """Check whether code is complete for the session's interpreter."""
        from nsm.wire.sessions import Check  # noqa: PLC0415  # for prompts only

        return read(Check, await self.call("check", {"target": target, "code": code}))

    async def kill(self, targets: str | Iterable[str]) -> KillReport:
        """End sessions by id, name or ``scope/name``; the report says which could not be found."""
        return read(KillReport, await self.call("kill", operations.kill_arguments(targets)))

    async def kill_all(self) -> KillReport:
        """End every session."""
        return read(KillReport, await self.call("kill", {"all": True}))

    async def kill_labelled(self, labels: Mapping[str, str]) -> KillReport:
        """End the sessions that have all these labels."""
        return read(KillReport, await self.call("kill", {"labels": dict(labels)}))

    async def kill_idle(self, idle_s: float) -> KillReport:
        """End the sessions that have been idle for `idle_s` seconds or longer."""
        return read(KillReport, await self.call("kill", {"idle_s": idle_s}))

    async def fork(self, target: str, *names: str, count: int | None = None) -> ForkReport:
        """Fork a running Python or Bash session; as `nsm.Client.fork`."""
        arguments = operations.fork_arguments(target, names, count)
        return read(ForkReport, await self.call("session_fork", arguments))

    async def interrupt(self, target: str) -> bool:
        """Interrupt what runs in a session; False when nothing did."""
        return read(bool, await self.call("interrupt", {"target": target}), "interrupted")

    async def envs(self, *, preload: bool = False) -> list[EnvironmentRow]:
        """The environments, those that cannot be used included.

        Args:
            preload: first find out which modules cannot be preloaded, which may take seconds.
        """
        from nsm.wire.environments import EnvironmentRow  # noqa: PLC0415  # few programs ask

        wire = await self.call("envs", {"preload": True} if preload else None)
        return read(list[EnvironmentRow], wire, "environments")

    @property
    def boxes(self) -> AsyncBoxes:
        """Agents in boxes."""
        from nsm.client.boxes import AsyncBoxes  # noqa: PLC0415  # few programs ask

        return AsyncBoxes(self)

    @property
    def ports(self) -> AsyncPorts:
        """Ports of sessions that are open on the host."""
        from nsm.client.ports import AsyncPorts  # noqa: PLC0415  # few programs ask

        return AsyncPorts(self)

    @property
    def bridge(self) -> AsyncBridge:
        """Programs of the host that nsm starts for its clients."""
        from nsm.client.bridge import AsyncBridge  # noqa: PLC0415  # few programs ask

        return AsyncBridge(self)

    @property
    def builds(self) -> AsyncBuilds:
        """Environments that nsm builds, with Nix or from packages."""
        from nsm.client.builds import AsyncBuilds  # noqa: PLC0415  # few programs ask

        return AsyncBuilds(self)

    @property
    def project_environments(self) -> AsyncProjectEnvironments:
        """Environments that belong to the client's project, such as its `.venv`."""
        from nsm.client.project_environments import (  # noqa: PLC0415  # few programs ask
            AsyncProjectEnvironments,
        )

        return AsyncProjectEnvironments(self, self._project.path)

    async def inspect(self, target: str) -> Inspection:
        """The rules of a live session, and what the kernel says of its jail."""
        from nsm.wire.inspection import Inspection  # noqa: PLC0415  # few programs ask

        return read(Inspection, await self.call("inspect", {"target": target}))

    async def network(
        self, target: str, action: NetworkAction = "list", hosts: Iterable[str] = ()
    ) -> NetworkReport:
        """Show the hosts that a live session may reach, after a change if one is asked for.

        Args:
            action: ``allow`` and ``deny`` take hosts, as patterns (docs/how-to/network.md):
            ``deny`` takes
                patterns away. ``off`` takes all away.
        """
        from nsm.wire.network import NetworkReport  # noqa: PLC0415  # few programs ask

        arguments = {"target": target, "action": action, "hosts": list(hosts)}
        return read(NetworkReport, await self.call("net", arguments))

    async def pool(self) -> PoolReport:
        """The sessions that are kept ready, how many there should be, and why."""
        from nsm.wire.pool import PoolReport  # noqa: PLC0415  # few programs ask

        return read(PoolReport, await self.call("pool"))

    async def status(self) -> Status:
        """The supervisor's version, uptime, counts."""
        from nsm.wire.status import read_status  # noqa: PLC0415  # few programs ask

        return read_status(await self.call("status"))

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
        return read(drain.DrainReport, wire)

    async def undrain(self) -> DrainReport:
        """Take back a drain: new work is taken again."""
        from nsm.wire.drain import DrainReport  # noqa: PLC0415  # few programs ask

        return read(DrainReport, await self.call("drain", {"cancel": True}))

    async def reload(self, on_wait: OnReload | None = None, *, force: bool = False) -> None:
        """Have the supervisor become the program that is installed now, with all sessions.

        Returns when it has closed this connection; the next call makes another.

        Args:
            on_wait: is told, where programs of the bridge run, which ones the supervisor waits for
                first, and how long.
            force: end the sessions that the program cannot take over.

        Raises:
            StartFailedError: that program would not start, or cannot take over some sessions; the
                supervisor goes on as it is.
        """
        from nsm.wire import reload  # noqa: PLC0415  # few programs ask

        reload.tell(await self.call("reload", {"force": force}), on_wait)
        await self._until_ended()

    async def shutdown(self) -> None:
        """End the supervisor and all sessions; returns when it has closed this connection."""
        with suppress(DisconnectedError):  # it was ending already
            await self.call("shutdown")
        try:
            await self._until_ended()
        finally:
            await self.aclose()

    async def _until_ended(self) -> None:
        with trio.move_on_after(ANSWER_TIMEOUT_S) as scope:
            await self._wire_in_use().wait_ended()
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
        """Any operation, by its name and arguments on the wire (docs/reference/control-socket.md).

        Raises:
            NsmError: what the supervisor answered.
        """
        if self._path is None:
            return await self._wire_in_use().call(op, args or {}, on_event)
        asked = RetriedCall(op, args or {})
        while True:
            wire = self._wire_in_use()
            try:
                return await wire.call(op, asked.args, on_event)
            except LostError as error:
                asked.lost(error)
            try:
                await self._reconnect(wire)
            except CannotStartError as error:
                raise asked.given_up(error) from error
            if asked.arrived and on_event is not None:
                on_event(Event(CONNECTION_ID, RECONNECTED, {}))

    def _wire_in_use(self) -> AsyncWire:
        assert self._wire is not None, "the context has not been entered"
        return self._wire

    async def _reconnect(self, lost: AsyncWire) -> None:
        """Connect again, unless another call has done so."""
        async with self._reconnecting:
            if self._wire is not lost:
                return
            await lost.aclose()
            if self._closed:
                raise DisconnectedError("this client is closed", hint="Make a new one.")
            began_s = trio.current_time()
            while True:
                try:
                    await self._connect(again=True)
                except (NotRunningError, LostError) as error:
                    pause_s = await self._pause_after(error, trio.current_time() - began_s)
                    if pause_s is None:
                        raise
                else:
                    return
                await trio.sleep(pause_s)

    async def _pause_after(self, error: Exception, waited_s: float) -> float | None:
        path = self._path
        if path is None:
            return None
        return await trio.to_thread.run_sync(start.pause_after, error, path, waited_s)

    async def _connect(self, *, again: bool = False) -> None:
        stream = self._stream
        if stream is None:
            path = self._path or self._socket_path or client_socket(self._host)
            # In a thread: a start takes up to `nsm.startup.spawn.READY_TIMEOUT_S`. The supervisor
            # is not the thread's child, so its end means nothing to it.
            connection = await trio.to_thread.run_sync(
                lambda: start.connect(path, autostart=self._autostart, again=again)
            )
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
            self._path = path if self._may_reconnect else None
            self.far_socket = path if leads_elsewhere(path) else None
        wire = AsyncWire(stream)
        hello = operations.hello(
            name=self._name, scope=self._scope, project=self._project.path, path=self._path
        )
        self.server = await wire.introduce(hello)
        for session in self.leases:
            with suppress(NsmError):  # it has ended, or the next call finds this one lost
                await wire.call(*operations.lease(session), None)
        if self._closed:
            await wire.aclose()
        self._wire = wire
