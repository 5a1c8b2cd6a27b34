"""One client that speaks the control protocol: its requests, and their answers."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio

from nsm._version import program_version
from nsm.wire.errors import (
    ForbiddenError,
    InternalError,
    NsmError,
    ShuttingDownError,
    UnknownOperationError,
)
from nsm.wire.frames import LocalProtocolError, RemoteProtocolError
from nsm.wire.messages import (
    CONNECTION_ID,
    RESUMES,
    Cancel,
    Event,
    Failure,
    Hello,
    Invalid,
    Request,
    Result,
    ServerConnection,
    ServerMessage,
)
from nsm.wire.operation import Right
from nsmd.control.call import Call, Services
from nsmd.control.operations import OPERATIONS, Row
from nsmd.control.ops import run
from nsmd.control.outgoing import Outgoing, Room
from nsmd.host import logs
from nsmd.manager.jobs import ProgramStart
from nsmd.model import names
from nsmd.model.limits import TURN, ClientLimits, ReadRate
from nsmd.model.values import RunOutcome
from nsmd.sessions.execution import Execution
from nsmd.sessions.files import OpenFiles, OpenWatches
from nsmd.sessions.fresh import ClientPrograms
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

CHUNK_BYTES = 64 * 1024
HELLO_TIMEOUT_S = 30.0
"""A connection that says nothing for that long is closed, since it holds a descriptor."""

CAPABILITIES = ("again", "stdin")
"""`again`: a client may repeat `run` and `run_in` after it lost the connection; `stdin`: they can
have standard input.
"""

ENDED = ShuttingDownError(
    "The supervisor was shut down, and its sessions with it.",
    hint="Whether code that was under way ran to its end is unknown. The next call starts another "
    "supervisor.",
)

FAREWELL_TIMEOUT_S = 2.0
"""Bound on telling a peer why its connection ends."""


async def serve_connection(
    stream: trio.SocketStream,
    first: bytes,
    rights: frozenset[Right],
    services: Services,
    *,
    client_limits: ClientLimits | None = None,
) -> None:
    """Serve a client until it is gone.

    Args:
        client_limits: limits that apply whatever it says; None if it may choose.
    """
    broken: RemoteProtocolError | None = None
    try:
        async with trio.open_nursery() as nursery:
            connection = _Connection(
                stream.socket.fileno(), rights, services, nursery, client_limits
            )
            try:
                await connection.serve(first)
            except RemoteProtocolError as error:
                log.warning("closing a connection: %s", error)
                broken = error if connection.between_frames else None
            except trio.TooSlowError:
                log.debug("closing a connection that did not finish its hello")
            finally:
                # Nobody is left to answer.
                connection.close()
                nursery.cancel_scope.cancel()
    except* (trio.BrokenResourceError, trio.ClosedResourceError):
        log.debug("a client went away")
    if broken is not None:
        await farewell(stream, broken)


async def farewell(stream: trio.abc.SendStream, error: NsmError) -> None:
    """Say why the connection ends, if the peer still listens."""
    with trio.move_on_after(FAREWELL_TIMEOUT_S):
        await stream.send_all(ServerConnection().send(Failure(CONNECTION_ID, error)))


class _Connection:
    """One client of the control protocol.

    Each request is carried out by a task of its own, except code without streamed output and the
    start of a job. Their answers come from the session, because a task that only waits for them
    would cost a tenth of a call. For the same reason the connection reads and writes the socket
    directly, without trio's streams.
    """

    def __init__(
        self,
        descriptor: int,
        rights: frozenset[Right],
        services: Services,
        nursery: trio.Nursery,
        client_limits: ClientLimits | None,
    ) -> None:
        self._descriptor = descriptor
        self._rights = rights
        self._client_limits = client_limits
        self._scope = client_limits.scope if client_limits is not None else None
        self._peer = peer_of(descriptor)
        self._read_rate = ReadRate()
        self._services = services
        self._sessions = services.run_service.session_manager
        self._traffic = services.telemetry.traffic["control"]
        self._nursery = nursery
        self._protocol = ServerConnection()
        self._outgoing = Outgoing(descriptor, nursery)
        self._hello: Hello | None = None
        self._files = OpenFiles(services.max_file_bytes)
        self._watches = OpenWatches()
        self._programs = dict[int, ClientPrograms]()
        self._own_sessions = set[Session]()
        self._room_for_output = Room()
        self._pending: dict[int, _Pending] = {}

    @property
    def between_frames(self) -> bool:
        """True if the client has received only whole frames so far."""
        return not self._outgoing.waiting

    def close(self) -> None:
        """Handle the end of the client, or end it."""
        if self._services.ending.how == "end" and self.between_frames:
            # Otherwise it would start another supervisor, and ask that one for its answers.
            self._send(Failure(CONNECTION_ID, ENDED))
        self._outgoing.close()
        if self._hello is not None:
            self._services.events.publish(
                "client_left", protocol="control", client=self._hello.name
            )
        for pending in self._pending.values():
            if pending.execution is not None:
                pending.execution.abandon()
            if (descriptor := pending.claim()) is not None:
                os.close(descriptor)
        self._files.abandon_all()
        self._watches.close_all()
        for programs in self._programs.values():
            programs.end()
        if self._services.ending.how is None:  # else the client goes on with the next supervisor
            for session in self._own_sessions:
                session.end("its client went away")

    async def serve(self, first: bytes) -> None:
        """Handle requests until end-of-file.

        Raises:
            RemoteProtocolError: the client does not speak the protocol.
            trio.TooSlowError: it sends no hello.
            trio.BrokenResourceError: it is gone.
        """
        data = first
        self._traffic.received += len(first)
        while True:
            self._protocol.receive_data(data)
            messages = 0
            while (message := self._protocol.next_message()) is not None:
                if isinstance(message, Request) and not self._sessions.all_found:
                    await self._wait_for_sessions(message)
                self._take(message)
                messages += 1
                if messages % TURN == 0:
                    await trio.lowlevel.checkpoint()
            if not data:
                return
            await self._read_rate.taken(messages)
            await self._outgoing.room()
            if self._hello is None:
                with trio.fail_after(HELLO_TIMEOUT_S):
                    data = await self._receive()
            else:
                data = await self._receive()

    async def _wait_for_sessions(self, request: Request) -> None:
        """Wait until the sessions of an earlier supervisor that a request may mean have said what
        they run. Later requests of the connection wait, too, so that their order stays.
        """
        row = OPERATIONS.get(request.op)
        target = "" if row is None else row.waits_for(request.args)
        if target != "":
            await self._sessions.wait_found(target)

    async def _receive(self) -> bytes:
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                data = os.read(self._descriptor, CHUNK_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error
            self._traffic.received += len(data)
            return data

    def _take(self, message: Hello | Request | Cancel | Invalid) -> None:
        match message:
            case Request():
                self._begin(message)
            case Cancel(id=request_id):
                if (pending := self._pending.get(request_id)) is not None:
                    pending.cancel()
            case Invalid(id=request_id, error=error):
                self._send(Failure(request_id, error))
            case Hello():
                if message.rights:  # it wants no more than these
                    self._rights = self._rights.intersection(message.rights)
                if self._scope is None:
                    self._scope = message.scope or names.COMMAND_LINE
                self._hello = message
                logs.about(client=message.name)
                self._services.events.publish(
                    "client_came", protocol="control", client=message.name
                )
                ours = Hello(
                    name="nsm-supervisor",
                    program_version=program_version(),
                    capabilities=CAPABILITIES,
                    pid=os.getpid(),
                    rights=tuple(sorted(self._rights)),
                    inherit=tuple(self._services.run_service.catalog.inherit),
                    instance=self._services.run_service.instance,
                )
                self._send(ours)
                self._services.run_service.prewarm.greet(message.name or "unknown", self._scope)

    def _send(self, message: ServerMessage, descriptor: int | None = None) -> None:
        data = self._protocol.send(message)
        self._traffic.sent += len(data)
        self._outgoing.put(data, descriptor)

    def _begin(self, request: Request) -> None:
        """Begin a request; its answer comes now or later."""
        pending = self._pending[request.id] = _Pending()
        try:
            row = self._row(request, pending)
            call = self._call(request, pending, row)
            args = row.read(request.args)
            execution = row.submit(call, **args)
        except Exception as error:  # noqa: BLE001  # of one request, which is answered
            self._answer(request, error)
            return
        if execution is None:
            self._nursery.start_soon(self._carry_out, request, row, call, args, pending)
            return
        pending.execution = execution
        execution.when_answered(partial(self._answer, request))

    async def _carry_out(
        self, request: Request, row: Row, call: Call, args: dict[str, Any], pending: _Pending
    ) -> None:
        answer: dict[str, Any] | Exception
        try:
            answer = row.answer(await row.function(call, **args))
        except Exception as error:  # noqa: BLE001  # as above
            answer = error
        if row.right == "manage" and (recorded := row.description.recorded) is not None:
            self._tell_of(call, request.op, recorded, answer)
        self._answer(request, answer, pending.claim())
        # The traceback of an error holds this frame, and the frame holds the error: megabytes of
        # output would stay in memory until Python looks for such cycles.
        del answer
        if pending.afterwards:
            await self._outgoing.flushed()
            for function in pending.afterwards:
                function()

    def _tell_of(
        self, call: Call, op: str, recorded: Sequence[str], answer: dict[str, Any] | Exception
    ) -> None:
        given = {name: call.args[name] for name in recorded if name in call.args}
        refused = {"error": getattr(answer, "code", "internal"), "why": str(answer)}
        self._services.events.publish(
            "operation",
            subject=call.as_client(),
            op=op,
            arguments={k: v for k, v in given.items() if v not in (None, False, [])},
            **(refused if isinstance(answer, Exception) else {}),
        )

    def _answer(
        self,
        request: Request,
        answer: dict[str, Any] | RunOutcome | Exception,
        descriptor: int | None = None,
    ) -> None:
        """Send the answer; the descriptor goes with it, or is closed."""
        del self._pending[request.id]
        if self._outgoing.is_full and not isinstance(answer, Exception):  # errors are short
            answer = run.left_out(None if isinstance(answer, dict) else answer.execution_id)
        if isinstance(answer, RunOutcome):
            answer = run.result_to_wire(answer)
        if isinstance(answer, dict):
            try:
                self._send(Result(request.id, answer), descriptor)
            except LocalProtocolError as error:
                answer = InternalError(f"The answer cannot be sent: {error}")
            else:
                return
        if descriptor is not None:
            os.close(descriptor)
        if not isinstance(answer, NsmError):
            log.error("operation %.50r failed", request.op, exc_info=answer)
            answer = InternalError(
                f"Operation {request.op!r} failed inside the supervisor.",
                hint="Its log has the details (see `nsm status`); please report it.",
            )
        try:
            self._send(Failure(request.id, answer))
        except LocalProtocolError as error:  # tasks that tell of an end must not fail here
            self._send(Failure(request.id, InternalError(f"The error cannot be sent: {error}")))

    def _row(self, request: Request, pending: _Pending) -> Row:
        op = request.op
        row = OPERATIONS.get(op)
        if row is None:
            raise UnknownOperationError(
                f"Unknown operation {op[:50]!r}.",
                hint=f"This supervisor ({program_version()}) knows: {', '.join(OPERATIONS)}.",
            )
        if row.right not in self._rights and not (row.own and "run" in self._rights):
            error = ForbiddenError(
                f"Operation {op!r} needs the right {row.right!r}.",
                hint="This connection was given no programs of the host; outside of a box, "
                "`nsm box --bridge NAME,...` starts one that has some."
                if row.right == "bridge"
                else "This connection was not given it.",
            )
            row.refused(self._call(request, pending, row), error)
            raise error
        return row

    def _call(self, request: Request, pending: _Pending, row: Row) -> Call:
        assert self._hello is not None, "the protocol lets no request pass before hello"
        assert self._scope is not None, "it has one from then on"
        return Call(
            services=self._services,
            args=request.args,
            client=self._hello.name or "unknown",
            scope=self._scope,
            project=self._hello.project,
            client_limits=self._client_limits,
            peer=self._peer,
            confined=row.right not in self._rights or not self._rights & {"read", "manage"},
            resumes=RESUMES in self._hello.capabilities,
            manages="manage" in self._rights,
            bridges="bridge" in self._rights,
            files=self._files,
            watches=self._watches,
            programs=self._programs,
            own_sessions=self._own_sessions,
            room=self._room_for_output,
            emit=partial(self._emit, request.id),
            on_cancel=pending.on_cancel,
            afterwards=pending.afterwards.append,
            attach=pending.attach,
        )

    async def _emit(self, request_id: int, event: str, data: dict[str, Any]) -> None:
        self._send(Event(request_id, event, data))
        await self._outgoing.room()


class _Pending:
    """A request that has no answer yet.

    Attributes:
        execution: execution or start whose result will be the answer, if any.
        afterwards: what to do once the answer has been sent.
    """

    __slots__ = ("_cancelled", "_descriptor", "_on_cancel", "afterwards", "execution")

    def __init__(self) -> None:
        self.execution: Execution | ProgramStart | None = None
        self.afterwards: list[Callable[[], None]] = []
        self._cancelled = False
        self._on_cancel: Callable[[], None] | None = None
        self._descriptor: int | None = None

    def cancel(self) -> None:
        """Carry out the client's cancel."""
        self._cancelled = True
        if self.execution is not None:
            self.execution.interrupt()
        elif self._on_cancel is not None:
            self._on_cancel()

    def attach(self, descriptor: int) -> None:
        """Keep the descriptor that goes with the answer."""
        self._descriptor = descriptor

    def claim(self) -> int | None:
        """The descriptor that goes with the answer, from now on the caller's."""
        descriptor, self._descriptor = self._descriptor, None
        return descriptor

    def on_cancel(self, function: Callable[[], None]) -> None:
        """Set what to do on a cancel."""
        self._on_cancel = function
        if self._cancelled:
            function()


_UCRED = struct.Struct("3i")


def peer_of(descriptor: int) -> tuple[int, int]:
    """Process and user id of the peer of a Unix stream socket, from the kernel (unix(7),
    SO_PEERCRED). The descriptor stays open.

    Raises:
        OSError: it is no such socket.
    """
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, _gid = _UCRED.unpack(data)
    return int(pid), int(uid)
