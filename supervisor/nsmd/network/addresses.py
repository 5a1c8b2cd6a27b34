"""Public and private address ranges; pure except for `is_own`.

From the IANA registries of special-purpose addresses (RFC 6890 and its updates). The lists are here
because the answers of `ipaddress.is_global` changed between releases of Python.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from nsmd.model.host_rules import Address

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
