"""Checks of MCP over HTTP: whether the supervisor serves it as configured, or could;
and the token.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from nsm import httptoken
from nsm.checks import HostCheck, ok, rows, warn
from nsm.http.listen_address import Port, UnixPath, parse_listen
from nsm.wire.errors import NsmError
from nsmd.doctor.host import Host
from nsmd.doctor.places import ask
from nsmd.host.listeners import PlaceError, check_way
from nsmd.host.paths import trusted_owners
from nsmd.model.settings import Settings

NAME = "MCP over HTTP"

Ask = Callable[[str], Mapping[str, Any] | None]
"""Asks the supervisor at a socket about HTTP; None if none answers."""

_LISTENS = "0A"
"""State of a listening socket in proc_pid_net(5)."""


def ask_supervisor(path: str) -> Mapping[str, Any] | None:
    """Ask the supervisor over its socket, without starting one."""
    try:
        return ask(path, "http")
    except (OSError, NsmError):
        return None  # another row says that


def check_http(host: Host, settings: Settings, *, say: Ask = ask_supervisor) -> list[HostCheck]:
    """Check HTTP; no rows if it is off.

    Args:
        say: asks the running supervisor.
    """
    if not settings.http.enabled:
        return []
    listen = settings.http.listen
    said = say(host.real(host.socket))
    return rows(
        (NAME, _possible(host, listen) if said is None else _served(host, listen, said)),
        (f"token of {NAME}", _token(host, is_needed=said is not None and bool(said["url"]))),
    )


def _served(host: Host, listen: str, said: Mapping[str, Any]) -> HostCheck:
    """Check the port with the answer of the running supervisor."""
    url, problem = said["url"], said["problem"]
    if not said["enabled"] or said["listen"] != listen:
        now = f"at {said['listen']}" if said["enabled"] else "not at all"
        return warn(f"the supervisor serves it {now}; configured is {listen}", "nsm reload")
    if url and not problem:
        return ok(url)
    other = "" if url else _who_listens(host, listen)
    return warn(
        f"{url or 'not served'}: {problem}{other and f' ({other})'}",
        "Fix that, then: nsm reload",
    )


def _possible(host: Host, listen: str) -> HostCheck:
    """Check what the next supervisor will find."""
    match parse_listen(listen):
        case UnixPath(path=path):
            try:
                check_way(os.path.dirname(host.real(path)), trusted_owners())
            except PlaceError as error:
                fix = "Give `[http] listen` a path in a directory that is yours alone."
                return warn(str(error), fix)
        case Port():
            if other := _who_listens(host, listen):
                return warn(
                    f"no supervisor answers, and {other}",
                    "If that is what keeps sessions, any command of nsm starts a supervisor, "
                    "which goes on with it. If it is not yours, take another `[http] listen`, and "
                    "run: nsm http token --rotate",
                )
    return ok(f"{listen}, once a supervisor runs")


def _who_listens(host: Host, listen: str) -> str:
    """Name the holder of a port for people; empty if there is none, or if it is no port."""
    place = parse_listen(listen)
    if not isinstance(place, Port):
        return ""
    wanted = ipaddress.ip_address(place.host)
    table = "/proc/net/tcp6" if wanted.version == 6 else "/proc/net/tcp"
    for line in (host.read(table) or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[3] != _LISTENS:
            continue
        address, _, number = fields[1].partition(":")
        if int(number, 16) == place.number and _address(address) in (wanted, _any(wanted)):
            whose = "yours" if int(fields[7]) == host.uid else f"user {fields[7]}'s"
            return f"a process of {whose} listens at {listen}"
    return ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse the kernel's form: words of four bytes, each as a number in this machine's order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))


def _any(
    like: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address that stands for all addresses: a listener there uses them all."""
    return ipaddress.ip_address("::" if like.version == 6 else "0.0.0.0")  # noqa: S104


def _token(host: Host, *, is_needed: bool) -> HostCheck:
    path = os.path.join(host.state, "http-token")
    try:
        httptoken.read(host.real(path))
    except FileNotFoundError:
        if not is_needed:
            return ok(f"{path}, once it is served")
        detail = f"nobody is let in: {path} is gone"
        fix = "nsm http token: makes and prints one."
        return warn(detail, fix)
    except httptoken.TokenError as error:
        return warn(
            f"nobody is let in: {error}",
            "nsm http token --rotate: clients need the other one from then on.",
        )
    return ok(path)
