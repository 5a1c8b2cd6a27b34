"""The async client, on asyncio or trio: many calls at once over one connection.

Example::

    import asyncio

    import nsm

    async def main() -> None:
        async with nsm.AsyncClient() as client, asyncio.TaskGroup() as tasks:
            for name in ("a", "b"):
                tasks.create_task(show(client, name))

    async def show(client: nsm.AsyncClient, name: str) -> None:
        result = await client.run(f"print('{name}')", env="python", session=name)
        print(result.stdout, end="")

    asyncio.run(main())
"""

from __future__ import annotations

import inspect
import math
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from nsm.client.api import ClientMethods
from nsm.client.async_connection import ANSWER_TIMEOUT_S, AsyncWire
from nsm.client.projects import DEFAULT, project_of
from nsm.client.retry import MAX_LOSSES, RECONNECTED, LostError, RetriedCall, hello, lease
from nsm.client.steps import Async, is_operation
from nsm.hosts.place import client_socket, leads_elsewhere
from nsm.startup import start
from nsm.wire.errors import (
    CannotStartError,
    DisconnectedError,
    NotRunningError,
    NsmError,
)
from nsm.wire.messages import CONNECTION_ID, Event

if TYPE_CHECKING:
    import socket
    from typing import Any, Self, Unpack

    from nsm.client.projects import ProjectArgument
    from nsm.client.sandbox import AsyncSandbox, SandboxSettings
    from nsm.client.steps import InputSource, OnEvent, Steps
    from nsm.wire.messages import Hello

T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0
"""How long steps that were cancelled may still take, to close a file in the session."""


class AsyncClient(ClientMethods, Async):
    """One connection to the supervisor, for any number of tasks of one loop, of asyncio or trio.

    Use it as a context manager. It has no task of its own: whichever call waits also reads, for
    all that wait. A connection that is lost is opened again, as `nsm.Client` does it.

    Cancellation: a cancelled call tells the supervisor, which interrupts what runs, and does not
    wait for what comes of it. One that is cut short while it writes loses the connection; the
    others are asked for again over the next one.

    Attributes:
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
        connection: socket.socket | None = None,
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
            connection: a stream socket that leads to a supervisor already, in place of a path; it
                is closed with the client.
        """
        self._host = "" if socket_path is not None or connection is not None else host
        self._project = project_of(project, self._host)
        self._name, self._scope = name, scope
        self.autostart = autostart
        self._may_reconnect = reconnect
        self._socket_path = socket_path
        self._connection = connection
        self._path: str | None = None  # to connect again; None where that is not wanted
        self._wire: AsyncWire | None = None
        self._closed = False
        self.leases = set[str]()
        self._server: Hello | None = None

    @property
    def server(self) -> Hello:
        """Introduction of the supervisor; there is none before the context is entered."""
        assert self._server is not None, "the context has not been entered"
        return self._server

    def __repr__(self) -> str:
        pid = self._server.pid if self._server else None
        calls = self._wire.calls if self._wire is not None else 0
        return f"<nsm.AsyncClient supervisor={pid} calls={calls}>"

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            NotRunningError: no supervisor listens, and none may or could be started.
        """
        # Not before: an adapter makes the client under asyncio, and uses it in a thread under trio.
        self._reconnecting = anyio.Lock()
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
            self._wire.close()

    def close_in_child(self) -> None:
        """Close a forked process's copy of its parent's connection."""
        if self._wire is not None:
            self._wire.close_in_child()

    def sandbox(self, **settings: Unpack[SandboxSettings]) -> AsyncSandbox:
        """Make a session when the block begins, which ends with it; see `nsm.Client.sandbox`."""
        from nsm.client.sandbox import AsyncSandbox  # noqa: PLC0415  # few programs ask

        return AsyncSandbox(self, settings)

    async def carry_out(self, steps: Steps[T]) -> T:
        """Carry out steps, one after another; functions are called in a thread."""
        closing = False
        try:
            step = next(steps)
            while True:
                answer: dict[str, Any] = {}
                try:
                    if is_operation(step):
                        # What is cancelled still closes its file: a session has few of them.
                        limit_s = CLOSE_TIMEOUT_S if closing else math.inf
                        with anyio.move_on_after(limit_s, shield=closing):
                            answer = await self._perform(*step)
                    elif inspect.iscoroutinefunction(step):
                        await step()
                    elif step is not None:
                        # If it is abandoned, it ends when its pipe breaks.
                        await anyio.to_thread.run_sync(step, abandon_on_cancel=True)
                    else:
                        await anyio.lowlevel.checkpoint()
                except BaseException as error:  # noqa: BLE001  # the steps raise it again
                    closing = closing or not isinstance(error, Exception)
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            outcome: T = end.value
            return outcome

    async def _perform(
        self,
        op: str,
        args: dict[str, Any],
        on_event: OnEvent | None,
        _interruptible: bool,  # as in `Operation`; Ctrl-C is the loop's
        stdin: InputSource | None = None,
    ) -> dict[str, Any]:
        if stdin is None:
            return await self._exchange(op, args, on_event)
        from nsm.client.async_standard_input import call_feeding  # noqa: PLC0415  # for few

        return await call_feeding(self, op, args, source=stdin, on_event=on_event)

    async def wait_lost(self) -> None:
        """Wait until the connection has ended. The next call makes another."""
        await self._wire_in_use().wait_ended()

    async def _follow_reload(self) -> None:
        """Wait until the supervisor has closed this connection."""
        with anyio.move_on_after(ANSWER_TIMEOUT_S) as scope:
            await self.wait_lost()
        if scope.cancelled_caught:
            raise DisconnectedError(
                f"the supervisor has not ended within {ANSWER_TIMEOUT_S:.0f} s",
                hint=f"Its process is {self.server.pid}.",
            )

    async def _follow_end(self) -> None:
        """Wait until the supervisor has ended, and close."""
        try:
            await self._follow_reload()
        finally:
            await self.aclose()

    async def _exchange(
        self, op: str, args: dict[str, Any], on_event: OnEvent | None
    ) -> dict[str, Any]:
        if self._path is None:
            return await self._wire_in_use().call(op, args, on_event)
        asked = RetriedCall(op, args)
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
            lost.close()
            if self._closed:
                raise DisconnectedError("this client is closed", hint="Make a new one.")
            began_s = anyio.current_time()
            while True:
                try:
                    await self._connect(again=True)
                except (NotRunningError, LostError) as error:
                    pause_s = await self._pause_after(error, anyio.current_time() - began_s)
                    if pause_s is None:
                        raise
                else:
                    return
                await anyio.sleep(pause_s)

    async def _pause_after(self, error: Exception, waited_s: float) -> float | None:
        path = self._path
        if path is None:
            return None
        return await anyio.to_thread.run_sync(start.pause_after, error, path, waited_s)

    async def _connect(self, *, again: bool = False) -> None:
        connection = self._connection
        if connection is None:
            path = self._path or self._socket_path or client_socket(self._host)
            # In a thread: a start takes up to `nsm.startup.spawn.READY_TIMEOUT_S`. The supervisor
            # is not the thread's child, so its end means nothing to it.
            connection = await anyio.to_thread.run_sync(
                lambda: start.connect(path, autostart=self.autostart, again=again)
            )
            self._path = path if self._may_reconnect else None
            self.far_socket = path if leads_elsewhere(path) else None
        wire = AsyncWire(connection)
        introduction = hello(
            name=self._name, scope=self._scope, project=self._project.path, path=self._path
        )
        self._server = await wire.introduce(introduction)
        for session in self.leases:
            with suppress(NsmError):  # it has ended, or the next call finds this one lost
                await wire.call(*lease(session), None)
        if self._closed:
            wire.close()
        self._wire = wire
