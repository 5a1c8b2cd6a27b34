"""The user's own proxy, from variables."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network

from nsmd.model.host_rules import Host, show_host

ALL = "*"


def proxies_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies for `http` and `https` that variables name."""
    found: dict[str, str] = {}
    for scheme in ("http", "https"):
        for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY"):
            if name in environ:
                if environ[name]:
                    found[scheme] = environ[name]
                break
    return found


def no_proxy_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts that variables except from the proxy."""
    said = environ.get("no_proxy", environ.get("NO_PROXY", ""))
    return tuple(each.strip().lower() for each in said.split(",") if each.strip())


def is_excepted(host: Host, port: int, excepted: tuple[str, ...]) -> bool:
    """Return whether a host is reached without the proxy.

    Args:
        excepted: `*`, names with or without a dot in front (the name, and all below it),
            addresses and networks; perhaps with a port.
    """
    shown = show_host(host).strip("[]")
    for each in excepted:
        if each == ALL:
            return True
        name, colon, said_port = each.rpartition(":")
        if not colon or not said_port.isdigit() or (":" in name and not name.endswith("]")):
            name, said_port = each, ""
        if said_port and int(said_port) != port:
            continue
        name = name.strip("[]").removeprefix("*").removeprefix(".")
        if isinstance(host, str):
            if name and (shown == name or shown.endswith(f".{name}")):
                return True
            continue
        try:
            if ip_address(shown) in ip_network(name, strict=False):
                return True
        except ValueError:
            continue
    return False
