"""Look-ups of host names, and connections to the addresses that were found."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Address, ip_address
from typing import cast

import trio

from nsm.dataclass import dataclass, field
from nsmd.model.host_rules import Address, AllowList, Host
from nsmd.network.decisions import RefusedError

Resolve = Callable[[str], Awaitable[Sequence[Address]]]
"""Addresses of a name, the best first; none if nobody knows it. Raises `OSError`."""

RESOLVE_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 15.0
"""Time for all attempts together; clients rarely wait longer."""

STAGGER_S = 0.25
"""Time between attempts at the addresses of one name (RFC 8305, 5)."""

MAX_ADDRESSES = 8
"""Largest number of addresses of one name to try."""

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

    async def __call__(
        self, name: str, few: trio.CapacityLimiter | None = None
    ) -> Sequence[Address]:
        """Look a name up; its thread counts at `few`, too, until it ends, though nobody waits."""
        limiter = self._limiter
        if few is not None:  # trio takes anything with these two methods
            limiter = cast("trio.CapacityLimiter", _BothLimiters(few, limiter))

        def look_up() -> list[Address]:
            rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            return [ip_address(str(row[4][0]).partition("%")[0]) for row in rows]

        found = await trio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=limiter)
        return list(dict.fromkeys(found))


class _BothLimiters:
    def __init__(self, few: trio.CapacityLimiter, most: trio.CapacityLimiter) -> None:
        self._few, self._most = few, most

    async def acquire_on_behalf_of(self, borrower: object) -> None:
        await self._few.acquire_on_behalf_of(borrower)
        try:
            await self._most.acquire_on_behalf_of(borrower)
        except BaseException:
            self._few.release_on_behalf_of(borrower)
            raise

    def release_on_behalf_of(self, borrower: object) -> None:
        self._few.release_on_behalf_of(borrower)
        self._most.release_on_behalf_of(borrower)


class FewAtOnce:
    """`Resolve` for one session, which leaves some threads to other sessions."""

    def __init__(self, resolver: Resolve) -> None:
        self._resolver = resolver
        self._limiter = trio.CapacityLimiter(MAX_SESSION_LOOK_UPS)

    async def __call__(self, name: str) -> Sequence[Address]:
        if isinstance(self._resolver, SystemResolver):
            return await self._resolver(name, self._limiter)
        async with self._limiter:
            return await self._resolver(name)


async def look_up(name: str, resolve: Resolve) -> Sequence[Address]:
    """Look up a name that may be reached."""
    found: Sequence[Address] = ()
    try:
        with trio.move_on_after(RESOLVE_TIMEOUT_S):
            found = await resolve(name)
    except (OSError, ValueError):
        found = ()
    if not found:
        raise RefusedError("unresolved", f"{name} is allowed, but has no address.")
    return found


async def connect(addresses: Sequence[Address], port: int) -> tuple[trio.SocketStream, Address]:
    """Connect to the first address that answers; each attempt begins a moment after the last. If
    none answers, the `OSError` of the first attempt is raised.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UserHosts:
    """Hosts that the user has named one by one.

    Attributes:
        named: these hosts. They may have private addresses.
        logins: hosts, to which programs send the user's login by themselves.
        plain: those that the user names with http://; the others need TLS.
    """

    named: AllowList = field(default_factory=AllowList)
    logins: frozenset[Host] = frozenset()
    plain: AllowList = field(default_factory=AllowList)

    def needs_tls(self, host: Host, port: int) -> bool:
        """Return whether a request without TLS would show the user's login for a host to others."""
        return host in self.logins and not self.plain.permits(host, port)


NOBODY = UserHosts()
"""No such hosts."""
