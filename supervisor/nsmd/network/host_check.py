"""The check whether code may reach a host: first by its name, then by its addresses.

Each name is resolved once, and the connection goes to one of the checked addresses. So a name that
means another address a moment later (DNS rebinding) gains nothing. A name that is not allowed is
never resolved, so that names cannot carry data out either.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import trio

from nsmd.model.host_rules import HOST_NAME, Address, AllowList, Host, show_host
from nsmd.network.connections import MAX_ADDRESSES, NOBODY, Resolve, UserHosts, look_up
from nsmd.network.decisions import RefusedError

UPSTREAM_LOOK_UP_S = 3.0
"""Time to look up a name that the upstream proxy looks up, too: nothing waits for it but the check
whether it means a private address.
"""

LOOPBACK: tuple[Address, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))

# From the IANA registries of special-purpose addresses (RFC 6890 and its updates). The lists are
# here because the answers of `ipaddress.is_global` changed between releases of Python.
_SPECIAL_4: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "this network"),  # Linux takes 0.0.0.0 for its own loopback
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a provider"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "a cloud's own"),  # Azure's, in the middle of public ones
    ("169.254.0.0/16", "link-local"),  # and metadata of clouds
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "for documentation"),
    ("192.88.99.0/24", "reserved"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "for benchmarks"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
)
_SPECIAL_6: tuple[tuple[str, str], ...] = (
    ("::/128", "this network"),
    ("::1/128", "loopback"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "private"),
    ("ff00::/8", "multicast"),
    ("2001::/23", "reserved"),  # Teredo among them, which has an IPv4 address in it
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "a 6to4 address"),  # which has an IPv4 address in it, too
    ("3fff::/20", "for documentation"),
)
_NETWORKS_4 = tuple((IPv4Network(network), what) for network, what in _SPECIAL_4)
_NETWORKS_6 = tuple((IPv6Network(network), what) for network, what in _SPECIAL_6)
_GLOBAL_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


def check_name(
    allowed: AllowList | None, host: Host, port: int, *, reads_requests: bool = False
) -> AllowList:
    """Check a host by its name; returns the list, which may still refuse its addresses. Without a
    list, the network is off. If somebody reads the requests to this host, the rules for them are
    kept to.
    """
    shown = show_host(host, port or None)
    if allowed is None:
        raise RefusedError("off", f"{shown} is not reached: this session's network is off.")
    if allowed.requests_to(host, port) and not reads_requests:
        # Whatever else the list allows: a wider pattern must not lead past the rules.
        raise RefusedError(
            "not-allowed",
            f"{shown} is not reached: there are rules for requests to it, and the helper that "
            "reads them has ended. The user can start another session or box.",
        )
    if allowed.permits(host, port):
        return allowed
    if allowed.knows(host):
        raise RefusedError("port", f"{shown} is not allowed on port {port}. {_advice(allowed)}")
    raise RefusedError("not-allowed", f"{shown} is not allowed. {_advice(allowed)}")


async def usable_addresses(
    allowed: AllowList | None,
    host: Host,
    port: int,
    resolve: Resolve,
    *,
    reads_requests: bool = False,
    user: UserHosts = NOBODY,
    upstream: bool = False,
) -> Sequence[Address]:
    """Find the addresses that a connection to a host may use, the best first. Those that the user
    has named may have private addresses. A `RefusedError` says that there are none, or that
    `check_name` refuses the host.

    With `upstream`, another proxy looks the name up again, and may find another address. So each
    that is known here must be usable, and a name without any must be in the list by itself.
    """
    allowed = check_name(allowed, host, port, reads_requests=reads_requests)
    if host == HOST_NAME:
        if not allowed.names_machine(port):
            raise RefusedError("address", f"{HOST_NAME} has to be allowed by its name.")
        return LOOPBACK
    if isinstance(host, str) and upstream:
        found = await _look_up_beside(allowed, host, port, resolve)
    else:
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
    if usable and not (upstream and reasons):
        return usable
    if upstream and not found:
        return ()
    raise RefusedError(
        "address",
        f"{show_host(host)} is not reached: {', '.join(reasons)}. The user can allow "
        "the address itself, as ADDRESS or NETWORK/BITS.",
    )


async def _look_up_beside(
    allowed: AllowList, name: str, port: int, resolve: Resolve
) -> Sequence[Address]:
    """Look up a name that the upstream proxy looks up, too. Companies' resolvers often know no
    names of the world, so it may have no address.
    """
    with trio.move_on_after(UPSTREAM_LOOK_UP_S):
        with suppress(RefusedError):
            return await look_up(name, resolve)
    if allowed.names_host(name, port):
        return ()
    raise RefusedError(
        "address",
        f"{name} is not reached: behind the upstream proxy nsm cannot tell whether its address is "
        "public. The user can allow it by its name.",
    )


def may_stay(
    allowed: AllowList,
    host: Host,
    port: int,
    address: Address | None,
    user: UserHosts = NOBODY,
) -> bool:
    """Return whether this list would also allow an existing connection.

    The name alone does not decide: a private address needs two patterns, and either may be removed.
    The address of a host behind the upstream proxy is None.
    """
    if not allowed.permits(host, port):
        return False
    if host == HOST_NAME:
        return allowed.names_machine(port)
    if address is None or user.named.permits(host, port):
        return True
    return _whose(address) is None or allowed.names_address(address, port)


def _whose(address: Address) -> str | None:
    """Name the kind of an address that is not public; None if it is public."""
    return why_not_public(address) or ("this machine's own" if is_own(address) else None)


def _advice(allowed: AllowList) -> str:
    """Say what to do about it: a model must not look for a way around."""
    texts = allowed.texts
    some = ", ".join(texts[:20]) + (", ..." if len(texts) > 20 else "")
    return (
        f"Allowed here: {some or 'nothing'}. This session reaches nothing else; the user can "
        "allow more with `nsm net SESSION allow HOST`."
    )


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, if the kernel or a translator of the
    network (NAT64) would use that; else the same address.
    """
    if isinstance(address, IPv6Address):
        if (mapped := address.ipv4_mapped) is not None:
            return mapped
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def why_not_public(address: Address) -> str | None:
    """Name the kind of an address that is not public; None if it is public."""
    inner = embedded(address)
    if isinstance(inner, IPv4Address):
        return next((what for network, what in _NETWORKS_4 if inner in network), None)
    for network, what in _NETWORKS_6:
        if inner in network:
            return what
    return None if inner in _GLOBAL_6 else "reserved"


def is_own(address: Address) -> bool:
    """Return whether an address is this machine's own, even a public one: the kernel then uses it
    as the source address, too. Nothing is sent (connect(2) of a datagram socket).
    """
    target = embedded(address)
    family = socket.AF_INET if isinstance(target, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(target), 9))
            return ip_address(probe.getsockname()[0]) == target
    except OSError:
        return False  # no route: connecting will fail with that
