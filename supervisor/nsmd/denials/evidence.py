"""Evidence in a text for the rule that stopped a program."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Literal

Kind = Literal[
    "read-only",
    "denied",
    "unreachable",
    "index",
    "module",
    "node-module",
    "npm",
    "apt",
    "socket",
    "memory",
    "array",
    "exhausted",
    "threads",
    "processes",
    "descriptors",
    "full",
    "hidden",
    "missing",
    "privilege",
]
"""What a program could not do: change a file; change one, as far as its permissions go; reach a
host; install a package of Python; import a module; require a module of Node; install one; install a
package of the system; make a socket of that kind; get memory, or an array of that size,
or live without; start a thread, or a process; open a file; write more; see a file of the host; find
one in its working directory; be root, mount or make namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """
    Attributes:
        subject: the path, host, package or module, as far as the text has one.
    """

    kind: Kind
    subject: str = ""


_LOCAL_NAMES = ("localhost", "nsm", "ip6-localhost", "localhost.localdomain")
_LOCAL_ENDS = (".localhost", ".invalid")
"""RFC 6761: the first is always this machine, the second never anything."""


def is_elsewhere(host: str) -> bool:
    """Return whether only a network leads to a host name or address."""
    host = host.strip("[]").rstrip(".").lower()
    if not host or host in _LOCAL_NAMES or host.endswith(_LOCAL_ENDS):
        return False
    try:
        address = ip_address(host)
    except ValueError:
        return True
    return not (address.is_loopback or address.is_unspecified)


_ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}|\[?[0-9a-f]{0,4}:[0-9a-f:]*:[0-9a-f.:]*\]?"
_NAME = r"(?:[a-z0-9_-]+\.)+[a-z][a-z0-9-]*"
_HOSTS = re.compile(
    rf"(?<![\w.:/@-])(?:\w+://|git@)?({_ADDRESS}|localhost|{_NAME})(?![\w-])", re.IGNORECASE
)
_NO_HOSTS = re.compile(
    r"^(?:socket\.|urllib|requests\.|http\.|[\w.]*\.(?:py|js|c|so|error|Error)$)"
)


def hosts_in(text: str) -> list[str]:
    """Find texts like host names and addresses in a line."""
    return [host for host in _HOSTS.findall(text) if not _NO_HOSTS.match(host)]


_QUOTES = "'\"\u2018\u2019\u201c\u201d`"
"""The straight ones and those of GNU's programs."""

_QUOTED = re.compile(rf"[{_QUOTES}]([^{_QUOTES}]+)[{_QUOTES}]")
_BARE_PATH = re.compile(rf"(?<![\w/.])(/[^\s:,;()\[\]{_QUOTES}]+)")


def path_in(text: str) -> str:
    """The last absolute path that a message names; else what it quotes last; else nothing."""
    quoted: list[str] = _QUOTED.findall(text)
    absolute: list[str] = [path for path in quoted if path.startswith("/")] or _BARE_PATH.findall(
        text
    )
    return (absolute or quoted or [""])[-1]


MOST_BITS = 44
"""16 TiB of anything are more than machines have: that there is no room is no rule's doing."""

_POWERS = re.compile(r"\b(\d{1,6})\s*(<<|\*\*)\s*(\d{1,4})\b")
_NUMBERS = re.compile(r"\b\d(?:\.\d*)?e(\d{1,3})\b|\b(\d{14,})\b|\b\d+(?:\.\d+)? ([PE]iB)\b")


def is_beyond_machines(text: str) -> bool:
    """Return whether code or a message has a number too big for any machine's memory."""
    for base, operator, exponent in _POWERS.findall(text):
        bits = int(base).bit_length() - 1
        if (bits * int(exponent) if operator == "**" else bits + int(exponent)) >= MOST_BITS:
            return True
    return any(
        many or unit or int(exponent) * 3.3 >= MOST_BITS
        for exponent, many, unit in _NUMBERS.findall(text)
    )
