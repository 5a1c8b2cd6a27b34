"""Resolution of a requested host, and the connection to a checked address.

Each name is resolved once, and the connection goes to one of the checked addresses. So a name that
means another address a moment later (DNS rebinding) gains nothing. A name that is not allowed is
never resolved, so that names cannot carry data out either.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Address, ip_address

import trio

from nsmd.model.host_rules import HOST_NAME, Address, AllowList, Host, show_host
from nsmd.network.addresses import is_own, why_not_public
from nsmd.network.refusal import RefusedError

Resolve = Callable[[str], Awaitable[Sequence[Address]]]
"""Addresses of a name, the best first; none if nobody knows it. Raises `OSError`."""

RESOLVE_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 15.0
"""Time for all attempts together; clients rarely wait longer."""

STAGGER_S = 0.25
"""Time between attempts at the addresses of one name (RFC 8305, 5)."""

MAX_ADDRESSES = 8
"""Largest number of addresses of one name to try."""

LOOPBACK: tuple[Address, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))

MAX_LOOK_UPS = 16
"""Threads in getaddrinfo(3) at once: one that hangs cannot be stopped."""

MAX_SESSION_LOOK_UPS = 4
"""Threads of one session: code that may ask for every name can ask for names whose servers never
answer.
"""


class SystemResolver:
    """`Resolve` by the host's own resolver."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(MAX_LOOK_UPS)

    async def __call__(self, name: str) -> Sequence[Address]:

        def look_up() -> list[Address]:
            rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            return [ip_address(str(row[4][0]).partition("%")[0]) for row in rows]

        found = await trio.to_thread.run_sync(
            look_up, abandon_on_cancel=True, limiter=self._limiter
        )
        return list(dict.fromkeys(found))


class FewAtOnce:
    """`Resolve` for one session, which leaves some threads to other sessions."""

    def __init__(self, resolver: Resolve) -> None:
        self._resolver = resolver
        self._limiter = trio.CapacityLimiter(MAX_SESSION_LOOK_UPS)

    async def __call__(self, name: str) -> Sequence[Address]:
        async with self._limiter:
            return await self._resolver(name)


class ReachableHosts:
    """Hosts that a session's code may reach now.

    Args:
        allowed: list of hosts; None if the network is off.
        reads_requests: returns whether somebody reads the requests to a host, so that the rules for
            them are kept to.
    """

    def __init__(
        self,
        allowed: AllowList | None,
        resolver: Resolve,
        *,
        reads_requests: Callable[[Host, int], bool] = lambda _host, _port: False,
    ) -> None:
        self._allowed = allowed
        self._resolve = resolver
        self._reads_requests = reads_requests

    def check(self, host: Host, port: int) -> AllowList:
        """Check a host by its name.

        Raises:
            RefusedError: it may not be reached, whatever its address.
        """
        shown, allowed = show_host(host, port), self._allowed
        if allowed is None:
            raise RefusedError("off", f"{shown} is not reached: this session's network is off.")
        if allowed.requests_to(host, port) and not self._reads_requests(host, port):
            # Whatever else the list allows: a wider pattern must not lead past the rules.
            raise RefusedError(
                "not-allowed",
                f"{shown} is not reached: the list of hosts has rules for requests to it, and no "
                "secret helper runs that reads them. The user can start another session or box.",
            )
        if allowed.permits(host, port):
            return allowed
        if allowed.knows(host):
            raise RefusedError("port", f"{shown} is not allowed on port {port}. {_ask(allowed)}")
        raise RefusedError("not-allowed", f"{shown} is not allowed. {_ask(allowed)}")

    async def addresses(self, host: Host, port: int) -> Sequence[Address]:
        """Find the addresses that a connection to a host may use, the best first.

        Raises:
            RefusedError: there are none.
        """
        allowed = self.check(host, port)
        if host == HOST_NAME:
            if not allowed.names_machine(port):
                raise RefusedError("address", f"{HOST_NAME} has to be allowed by its name.")
            return LOOPBACK
        if isinstance(host, str):
            found = await self._look_up(host)
        else:
            found = [host]
        reasons: list[str] = []
        usable: list[Address] = []
        for address in found[:MAX_ADDRESSES]:
            what = _whose(address)
            if what is None or allowed.names_address(address, port):
                usable.append(address)
            else:
                reasons.append(f"{address} is {what}")
        if usable:
            return usable
        shown = show_host(host)
        raise RefusedError(
            "address",
            f"{shown} is not reached: {', '.join(reasons)}. Such addresses have to be allowed by "
            "themselves, as ADDRESS or NETWORK/BITS.",
        )

    async def _look_up(self, name: str) -> Sequence[Address]:
        found: Sequence[Address] = ()
        try:
            with trio.move_on_after(RESOLVE_TIMEOUT_S):
                found = await self._resolve(name)
        except (OSError, ValueError):
            found = ()
        if not found:
            raise RefusedError("unresolved", f"{name} is allowed, but has no address.")
        return found


def may_stay(allowed: AllowList, host: Host, port: int, address: Address) -> bool:
    """Return whether this list would also allow an existing connection.

    The name alone does not decide: a private address needs two patterns, and either may be removed.
    """
    if not allowed.permits(host, port):
        return False
    if host == HOST_NAME:
        return allowed.names_machine(port)
    return _whose(address) is None or allowed.names_address(address, port)


def _whose(address: Address) -> str | None:
    """Name the kind of an address that is not public; None if it is public."""
    return why_not_public(address) or ("this machine's own" if is_own(address) else None)


def _ask(allowed: AllowList) -> str:
    """Say what to do about it: a model must not look for a way around."""
    texts = allowed.texts
    some = ", ".join(texts[:20]) + (", ..." if len(texts) > 20 else "")
    return (
        f"Allowed here: {some or 'nothing'}. There is no other way out of this session; the user "
        "can allow more with `nsm net SESSION allow HOST`."
    )


async def connect(addresses: Sequence[Address], port: int) -> tuple[trio.SocketStream, Address]:
    """Connect to the first address that answers; each attempt begins a moment after the last.

    Raises:
        OSError: none answers; it is the error of the first attempt.
    """
    errors: dict[int, OSError] = {}
    winner: list[tuple[trio.SocketStream, Address]] = []
    with trio.move_on_after(CONNECT_TIMEOUT_S):
        async with trio.open_nursery() as nursery:

            async def attempt(place: int, failed: trio.Event) -> None:
                address = addresses[place]
                try:
                    stream = await _connect_one(address, port)
                except OSError as error:
                    errors[place] = error
                    failed.set()
                    return
                if winner:
                    await stream.aclose()
                    return
                winner.append((stream, address))
                nursery.cancel_scope.cancel()

            for place in range(len(addresses)):
                failed = trio.Event()
                nursery.start_soon(attempt, place, failed)
                with trio.move_on_after(STAGGER_S):
                    await failed.wait()
    if winner:
        return winner[0]
    if errors:
        raise errors[min(errors)]
    raise TimeoutError(f"no answer within {CONNECT_TIMEOUT_S:g} s")


async def _connect_one(address: Address, port: int) -> trio.SocketStream:
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with ExitStack() as undo:
        sock = undo.enter_context(trio.socket.socket(family, socket.SOCK_STREAM))
        await sock.connect((str(address), port))
        undo.pop_all()
    return trio.SocketStream(sock)
