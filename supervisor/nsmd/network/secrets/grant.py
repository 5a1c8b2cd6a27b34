"""The secrets of one session or box, and the helper that puts them into requests."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import trio

from nsm.dataclass import dataclass, field, replace
from nsm.wire.decode import decode
from nsm.wire.errors import BadRequestError, InternalError, NsmError
from nsmd.fdstore import records
from nsmd.fdstore.store import DescriptorStore
from nsmd.host.child_processes import ChannelProcess
from nsmd.model.events import EventKind, Events
from nsmd.model.host_rules import AllowList, Host
from nsmd.model.secrets import SecretRule

MODULE = "nsmd.network.secrets.helper"
MAX_MESSAGE = 256 * 1024

GRANT = "secrets-"
"""Beginning of the names in the descriptor store."""

log = logging.getLogger(__name__)

MAX_REFUSALS = 100
"""Largest number of refused requests of one session or box in the audit: code can make thousands a
second. Those with a secret are all there.
"""

MAX_COUNTS_BYTES = 64
"""Largest size of two numbers of bytes."""

END = b"x"
"""Ends a connection, on the socket that tells of its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRecord:
    """Facts about a grant of a session or box for the next supervisor, without values: the
    certificate of its authority, as PEM, stand-ins by name, rules for the requests that its helper
    reads (`requests`, so named for earlier records), names of secrets that are worth nothing any
    more, and the identities (`nsmd.fdstore.records.identity`) of its descriptors.
    """

    owner: str
    secrets: tuple[SecretRule, ...]
    certificate: str
    stand_ins: dict[str, str]
    requests: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    control: str
    state: str


class Grant:
    """Secrets and rules for requests of one session or box. Its helper outlives this supervisor,
    and so does the memory file of the helper's authority and stand-ins, which is owned from now on.
    `uses` are numbers of requests with a secret, by its name.
    """

    def __init__(
        self,
        record: GrantRecord,
        helper: HelperProcess,
        state: int,
        *,
        store: DescriptorStore,
        events: Events,
        nursery: trio.Nursery,
    ) -> None:
        self.record = record
        self._request_rules = AllowList.of(record.requests)
        self.uses = dict.fromkeys(record.stand_ins, 0)
        self.refusals = 0
        self.leaving = False
        self._helper: HelperProcess | None = helper
        self._state = state
        self._store = store
        self._events = events
        self._nursery = nursery
        self._lock = trio.Lock()
        self._ended = False
        nursery.start_soon(self._listen, helper, name=repr(self))

    def __repr__(self) -> str:
        return f"<Grant of {self.record.owner}: {', '.join(self.record.stand_ins)}>"

    @classmethod
    async def make(
        cls,
        owner: str,
        secrets: Sequence[SecretRule],
        request_rules: Sequence[str] = (),
        *,
        store: DescriptorStore,
        events: Events,
        nursery: trio.Nursery,
    ) -> Grant:
        """Start a helper and have it read the secrets; an `NsmError` says why it cannot."""
        state = os.memfd_create("nsm-secrets", os.MFD_CLOEXEC)
        helper: HelperProcess | None = None
        try:
            helper = _start_helper()
            ready = await _give_secrets(helper, secrets, state, request_rules=request_rules)
            record = GrantRecord(
                owner=owner,
                secrets=tuple(secrets),
                requests=tuple(request_rules),
                certificate=ready["certificate"],
                stand_ins=ready["stand_ins"],
                control=records.identity(helper.control.fileno()),
                state=records.identity(state),
            )
        except BaseException:
            if helper is not None:
                helper.end()
            os.close(state)
            raise
        grant = cls(record, helper, state, store=store, events=events, nursery=nursery)
        grant.keep()
        return grant

    @property
    def name(self) -> str:
        """Name in the descriptor store."""
        return GRANT + self.record.owner

    @property
    def helper_pid(self) -> int:
        """Process id of the helper, for people; 0 if none runs."""
        return self._helper.pid if self._helper is not None else 0

    @property
    def certificate(self) -> str:
        return self.record.certificate

    @property
    def stand_ins(self) -> Mapping[str, str]:
        """Stand-ins of the secrets, by name."""
        return self.record.stand_ins

    @property
    def variables(self) -> dict[str, str]:
        """Variables with the stand-ins."""
        stand_ins = self.record.stand_ins
        return {
            variable: stand_ins[secret.name]
            for secret in self.record.secrets
            for variable in secret.variables
        }

    # For the proxy (`nsmd.network.session_proxy`).

    def takes(self, host: Host, port: int) -> bool:
        """Return whether its helper reads the requests to a host."""
        return any(secret.is_for(host, port) for secret in self.record.secrets) or (
            bool(self._request_rules.requests_to(host, port))
        )

    async def intercept(
        self,
        client: trio.SocketStream,
        server: trio.SocketStream,
        host: str,
        port: int,
        early: bytes,
        moved: Callable[[int, int], None],
    ) -> None:
        """Have its helper read and pass on one connection, to its end; if cancelled, it ends. Both
        sockets are closed from now on; `early` are bytes that the client has sent for the server.
        `moved` gets the numbers of bytes that were sent and received.
        """
        ours, its = socket.socketpair()
        over = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        async with over:
            message = {"op": "carry", "host": host, "port": port, "early": early.hex()}
            with its:
                sockets = (client.socket.fileno(), server.socket.fileno(), its.fileno())
                try:
                    await self._send(message, sockets)
                except NsmError as error:
                    log.warning("secrets of %s: %s", self.record.owner, error.message)
                    return
            await client.aclose()
            await server.aclose()
            finished = False
            told = b""
            try:
                with suppress(trio.BrokenResourceError):
                    while data := await over.receive_some(MAX_COUNTS_BYTES):
                        told = (told + data)[:MAX_COUNTS_BYTES]
                finished = True
            finally:
                if not finished and not self.leaving:
                    with suppress(OSError):
                        ours.send(END, socket.MSG_DONTWAIT)
            counts = told.split()
            if len(counts) == 2 and all(each.isdigit() for each in counts):
                moved(int(counts[0]), int(counts[1]))

    # Changes.

    def revoke(self, name: str) -> bool:
        """Make a stand-in worthless; False if it is not one of these, or was already."""
        if name not in self.record.stand_ins or name in self.record.revoked:
            return False
        self.record = replace(self.record, revoked=(*self.record.revoked, name))
        self.keep()
        if self._helper is not None:
            message = {"op": "revoke", "name": name}
            self._nursery.start_soon(self._send_if_running, self._helper, message)
        return True

    def hosts_changed(self) -> None:
        """End the connections of earlier supervisors: the list of hosts has changed."""
        if self._helper is not None:
            self._nursery.start_soon(self._send_if_running, self._helper, {"op": "strict"})

    def end(self) -> None:
        """End the helper and all connections: the session or box is over."""
        if self._ended:
            return
        self._ended = True
        self._store.drop(self.name)
        self._drop_helper()
        os.close(self._state)

    def part(self) -> None:
        """Leave the helper to the next supervisor."""
        self.leaving = True

    def keep(self) -> None:
        """Store it for the next supervisor."""
        records.keep(self._store, self.everything_kept())

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield names and descriptors to store, as `nsmd.fdstore.store.Refill`."""
        helper = self._helper
        if helper is None or self._ended:
            return
        control = helper.control.fileno()
        yield from records.kept_entry(self.name, self.record, helper.pidfd, control, self._state)

    # The helper.

    async def _send(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Send a message; the helper is started again if it has died."""
        for _ in range(2):
            helper = await self._running()
            try:
                await helper.send_message(message, descriptors)
            except OSError:
                self._drop_helper(helper)
            else:
                return
        raise InternalError(
            "The secret helper ends right after its start, again and again.",
            hint="The supervisor's log may say why.",
        )

    async def _running(self) -> HelperProcess:
        async with self._lock:
            if self._helper is not None and self._helper.ended:
                self._drop_helper(self._helper)
            if self._ended:
                raise InternalError("The session or box has ended.")
            if self._helper is None:
                log.warning("secrets of %s: their helper has died", self.record.owner)
                started = _start_helper()
                try:
                    await _give_secrets(
                        started,
                        self.record.secrets,
                        self._state,
                        revoked=self.record.revoked,
                        request_rules=self.record.requests,
                    )
                except BaseException:
                    started.end()
                    raise
                control = records.identity(started.control.fileno())
                self.record = replace(self.record, control=control)
                self._helper = started
                self._nursery.start_soon(self._listen, started, name=repr(self))
                self.keep()
            return self._helper

    def _drop_helper(self, helper: HelperProcess | None = None) -> None:
        if self._helper is not None and helper in (None, self._helper):
            dropped, self._helper = self._helper, None
            dropped.end()

    async def _listen(self, helper: HelperProcess) -> None:
        """Take the helper's messages until it ends.

        Whoever has taken it over may send anything: it is ended for what ours does not send.
        """
        try:
            while (message := await helper.next_message()) is not None:
                self._count_report(decode(HelperReport, message))
        except (ValueError, RecursionError) as error:
            log.warning("secrets of %s: their helper was ended: %s", self.record.owner, error)
        self._drop_helper(helper)

    def _count_report(self, report: HelperReport) -> None:
        facts = {"host": report.host, "port": report.port}
        facts |= {"method": report.method, "path": report.path}
        if report.op == "used":
            for name in report.secrets:
                if name not in self.uses:
                    raise ValueError("it used a secret that it does not have")
                self.uses[name] += 1
            self._publish("secret_used", secrets=report.secrets, **facts)
            return
        self.refusals += 1
        if self.refusals <= MAX_REFUSALS:
            told = {"verdict": report.verdict, "secret": report.secret, "why": report.why}
            self._publish("secret_refused", **facts, **told)

    def _publish(self, kind: EventKind, **facts: Any) -> None:
        self._events.publish(kind, owner=self.record.owner, **facts)

    async def _send_if_running(self, helper: HelperProcess, message: Mapping[str, object]) -> None:
        with suppress(OSError):  # it has ended; the next one learns of it at its start
            await helper.send_message(message)


async def try_out(secret: SecretRule) -> str:
    """Read a secret as for a session, and return a stand-in for it."""
    state = os.memfd_create("nsm-secrets", os.MFD_CLOEXEC)
    helper = None
    try:
        helper = _start_helper()
        ready = await _give_secrets(helper, (secret,), state)
        return str(ready["stand_ins"][secret.name])
    finally:
        os.close(state)
        if helper is not None:
            helper.end()


def _start_helper() -> HelperProcess:
    try:
        return HelperProcess.start(MODULE)  # with this environment, for commands that yield secrets
    except OSError as error:
        raise InternalError(
            f"The secret helper cannot be started: {error.strerror}.",
            hint="End some sessions.",
        ) from error


async def _give_secrets(
    helper: HelperProcess,
    secrets: Sequence[SecretRule],
    state: int,
    *,
    revoked: Sequence[str] = (),
    request_rules: Sequence[str] = (),
) -> dict[str, Any]:
    """Give a helper its secrets."""
    message = {
        "op": "begin",
        "secrets": [records.to_plain(each) for each in secrets],
        "revoked": list(revoked),
        "request_rules": list(request_rules),
    }
    try:
        await helper.send_message(message, [state])
    except OSError:
        answer = None
    else:
        answer = await helper.next_message()
    if answer is None:
        raise InternalError(
            "The secret helper ended while it started.",
            hint="The supervisor's log may say why.",
        )
    if answer["op"] == "failed":
        raise BadRequestError(
            f"There is no value: {answer['why']}.", hint="`nsm secrets test NAME` tries it again."
        )
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperReport:
    """Message of a helper about a request: it took secrets, or was refused."""

    op: Literal["used", "refused"]
    host: str
    port: int
    method: str
    path: str
    secrets: list[str] = field(default_factory=list[str])
    verdict: str = ""
    secret: str = ""
    why: str = ""


class HelperProcess(ChannelProcess):
    """A helper, as the supervisor holds it: a process, and messages to and from it."""

    async def send_message(
        self, message: Mapping[str, object], descriptors: Sequence[int] = ()
    ) -> None:
        """Send a message; `OSError` if the helper has ended."""
        await self.send(json.dumps(message).encode(), descriptors)

    async def next_message(self) -> dict[str, Any] | None:
        """Receive its next message; None at the end, and `ValueError` if it is no JSON."""
        try:
            data = await self.receive(MAX_MESSAGE)
        except (OSError, trio.ClosedResourceError):  # we have closed it
            return None
        return json.loads(data) if data else None
