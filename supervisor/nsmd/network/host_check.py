"""The check whether code may reach a host: first by its name, then by its addresses.

Each name is resolved once, and the connection goes to one of the checked addresses. So a name that
means another address a moment later (DNS rebinding) gains nothing. A name that is not allowed is
never resolved, so that names cannot carry data out either.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from nsmd.model.host_rules import HOST_NAME, Address, AllowList, Host, show_host
from nsmd.network.addresses import is_own, why_not_public
from nsmd.network.decisions import RefusedError
from nsmd.network.resolver import MAX_ADDRESSES, Resolve, look_up
from nsmd.network.user_proxy import NOBODY, UserHosts

LOOPBACK: tuple[Address, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


def check_name(
    allowed: AllowList | None, host: Host, port: int, *, reads_requests: bool = False
) -> AllowList:
    """Check a host by its name; returns the list, which may still refuse its addresses.

    Args:
        allowed: list of hosts; None if the network is off.
        reads_requests: somebody reads the requests to this host, so that the rules for them are
            kept to.

    Raises:
        RefusedError: it may not be reached, whatever its address.
    """
    shown = show_host(host, port)
    if allowed is None:
        raise RefusedError("off", f"{shown} is not reached: this session's network is off.")
    if allowed.requests_to(host, port) and not reads_requests:
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


async def usable_addresses(
    allowed: AllowList | None,
    host: Host,
    port: int,
    resolve: Resolve,
    *,
    reads_requests: bool = False,
    user: UserHosts = NOBODY,
) -> Sequence[Address]:
    """Find the addresses that a connection to a host may use, the best first.

    Args:
        user: names hosts that may have private addresses.

    Raises:
        RefusedError: there are none, or `check_name` refuses the host.
    """
    allowed = check_name(allowed, host, port, reads_requests=reads_requests)
    if host == HOST_NAME:
        if not allowed.names_machine(port):
            raise RefusedError("address", f"{HOST_NAME} has to be allowed by its name.")
        return LOOPBACK
    found = await look_up(host, resolve) if isinstance(host, str) else [host]
    if user.named.permits(host, port):
        return found[:MAX_ADDRESSES]
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
    raise RefusedError(
        "address",
        f"{show_host(host)} is not reached: {', '.join(reasons)}. Such addresses have to be "
        "allowed by themselves, as ADDRESS or NETWORK/BITS.",
    )


def may_stay(
    allowed: AllowList, host: Host, port: int, address: Address, user: UserHosts = NOBODY
) -> bool:
    """Return whether this list would also allow an existing connection.

    The name alone does not decide: a private address needs two patterns, and either may be removed.
    """
    if not allowed.permits(host, port):
        return False
    if host == HOST_NAME:
        return allowed.names_machine(port)
    if user.named.permits(host, port):
        return True
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
