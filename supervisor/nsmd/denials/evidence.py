"""Evidence in a text for the rule that stopped a program."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Literal

from nsm.dataclass import dataclass

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
    "sigbus",
    "input",
    "terminal",
    "signing",
    "group",
    "gpu-memory",
    "gpu-driver",
    "gpu-lost",
    "no-gpu",
]
"""Kind of failure: a program could not change a file; change one, because of its permissions; reach
a host; install a Python package; import a module; require a Node module; install one; install a
system package; make a socket of that kind; get memory, or an array of that size, or live without;
start a thread, or a process; open a file; write more; see a file of the host; find one in its
working directory; be root, mount or make namespaces; use memory of a file (SIGBUS); read standard
input; use a terminal; sign a commit; change a copy of a file of another group; get memory on a
GPU; use a GPU, since its driver was upgraded, since it is lost, or since there is none.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of one kind.

    Attributes:
        subject: path, host, package or module, if the text names one.
    """

    kind: Kind
    subject: str = ""


_LOCAL_NAMES = ("localhost", "nsm", "ip6-localhost", "localhost.localdomain")
_LOCAL_ENDS = (".localhost", ".invalid")
"""RFC 6761: the first is always this machine, the second never anything."""


def is_elsewhere(host: str) -> bool:
    """Return whether a host name or address can be reached only over a network."""
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
"""Straight quotes, and those of GNU programs."""

_QUOTED = re.compile(rf"[{_QUOTES}]([^{_QUOTES}]+)[{_QUOTES}]")
_BARE_PATH = re.compile(rf"(?<![\w/.])(/[^\s:,;()\[\]{_QUOTES}]+)")


def path_in(text: str) -> str:
    """Last absolute path that a message names; else its last quoted text; else empty."""
    quoted: list[str] = _QUOTED.findall(text)
    absolute: list[str] = [path for path in quoted if path.startswith("/")] or _BARE_PATH.findall(
        text
    )
    return (absolute or quoted or [""])[-1]


MOST_BITS = 44
"""16 TiB of anything are more than machines have: then no rule is the cause."""

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
