"""Error messages of programs, line by line: `PROGRAM: WHAT: WHY`, Node's errors, those of GPUs.

Each is evidence for a rule that may have stopped the program. The words of strerror(3) count only
at the end of a line and after the failed action, as programs print them; within a sentence they are
somebody's prose.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Literal

from nsm.dataclass import dataclass
from nsm.wire.tuples import NamedTuple

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
    """Evidence of one kind, and the path, host, package or module that the text names, if any."""

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


_GPU_MESSAGES: dict[Kind, tuple[str, ...]] = {
    "gpu-memory": (
        r"\b(?:CUDA|HIP) (?:error: )?out of memory\b",
        r"\bCUDA_ERROR_OUT_OF_MEMORY\b",
    ),
    "gpu-driver": (
        r"\bDriver/library version mismatch\b",
        r"\bunsupported display driver / cuda driver combination\b",
    ),
    "gpu-lost": (r"\bGPU is lost\b",),
    "no-gpu": (
        r"\bNo (?:CUDA|HIP) GPUs are available\b",
        r"\bno CUDA-capable device is detected\b",
        r"\bFound no NVIDIA driver on your system\b",
        r"\bcouldn't communicate with the NVIDIA driver\b",
        r"\bUnexpected error from cudaGetDeviceCount\b",
    ),
}

GPU_PHRASES: Sequence[tuple[Kind, str]] = [
    (kind, "|".join(texts)) for kind, texts in _GPU_MESSAGES.items()
]

GPU_TRIGGERS = ("CUDA", "NVIDIA", "HIP ", "cuda", "GPU", "library version mismatch")
"""A line without any of them is none of these messages."""

GPU_KINDS = frozenset(_GPU_MESSAGES)

MAX_LINE_CHARS = 1000
"""Largest line to examine. Messages are shorter, and this bounds the time of patterns."""

WORDS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("read-only", ("read-only file system",)),
    ("full", ("no space left on device", "disk quota exceeded")),
    (
        "unreachable",
        (
            "network is unreachable",
            "name or service not known",
            "temporary failure in name resolution",
            "no address associated with hostname",
            "no such host",
        ),
    ),
    ("memory", ("cannot allocate memory", "memory exhausted")),
    ("descriptors", ("too many open files",)),
    ("group", ("value too large for defined data type",)),
)
"""Texts at the end of a line, in any case."""

_KIND_OF: dict[str, Kind] = {words: kind for kind, all_words in WORDS for words in all_words}

_END = re.compile(
    r"(?:^|[:=,>\]\)] ?|\[|\()(?P<words>"
    + "|".join(re.escape(words) for words in _KIND_OF)
    # Each of these begins with another character, so that there is only one way to read a line.
    + r")(?:[.!,;'\")\]>}]|: /[^\s:]*| \([^()]*\)| \[[^\[\]]*\])*$",
    re.IGNORECASE,
)


TRIGGERS = (
    "nly file system",
    "o space left",
    "uota exceeded",
    "unreachable",
    "UNREACH",
    "service not known",
    "name resolution",
    "ddress associated",
    "such host",
    "resolv",
    "UnknownHost",
    "translate host",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ETIMEOUT",
    "onnect to",
    "no servers could",
    "lookup address",
    "ENOSPC",
    "alue too large",
    "EMFILE",
    "ENOMEM",
    "EAGAIN",
    "emporarily unavailable",
    "annot fork",
    "new thread",
    "ut of memory",
    "OOM",
    "llocat",
    "emory exhausted",
    "bad_alloc",
    "oo many open",
    "ot permitted",
    "namespace",
    "superuser",
    "sandbox!",
    "Docker daemon",
    "from versions: none",
    "externally-managed",
    "No module named pip",
    "request to http",
    "annot find ",
    "locate package",
    "ermission denied",
    "sudo:",
    "are you root",
    "o such file",
    "us error",
    "a terminal",
    "not a tty",
    "tty get",
    "ning terminal",
    "is dumb",
    "sign the data",
    "oad public key",
    *GPU_TRIGGERS,
)
"""A line without any of them is skipped, as most lines are."""


class _Phrase(NamedTuple):
    """A message other than those of strerror(3)."""

    kind: Kind
    pattern: re.Pattern[str]


def _phrase(kind: Kind, pattern: str) -> _Phrase:
    return _Phrase(kind, re.compile(pattern))


_FORK = r"[:(] ?(?:v?fork(?:\(\))?|[Cc]an(?:not|'t) fork)\b"

_PACKAGE = r"(?:@[\w.-]+/)?[A-Za-z0-9_][\w.-]*"

PHRASES = (
    _phrase(
        "npm",
        rf"^npm (?:error|ERR!) network request to https?://\S+?/(?P<name>{_PACKAGE}) failed,"
        r" reason: (?:getaddrinfo|connect ENETUNREACH)",
    ),
    _phrase(
        "node-module",
        rf"^(?:Uncaught )?Error\b.*: Cannot find (?:module|package) '(?P<name>{_PACKAGE})[/']",
    ),
    _phrase("apt", r"^E: Unable to locate package (?P<name>\S+)$"),
    _phrase("apt", r"^E: (?:Could not open lock file|List directory) /var/lib/(?:apt|dpkg)/"),
    _phrase("unreachable", r"[Cc]ould(?: not|n't) resolve host(?:name)?:? (?P<host>[^\s,;']+)"),
    _phrase("unreachable", r"Could not resolve '(?P<host>[\w-]+(?:\.[\w-]+)+)'"),
    _phrase("unreachable", r"unable to resolve host address .(?P<host>[\w.-]+)"),
    _phrase("unreachable", r"Temporary failure resolving '(?P<host>[^']+)'"),
    _phrase("unreachable", r"Failed to resolve '(?P<host>[^']+)'"),
    _phrase("unreachable", r"could not translate host name \"(?P<host>[^\"]+)\" to address"),
    _phrase("unreachable", r"UnknownHostException: (?P<host>\S+)"),
    _phrase("unreachable", r"getaddrinfo (?:ENOTFOUND|EAI_AGAIN) (?P<host>\S+)"),
    _phrase("unreachable", r"(?:connect|send) ENETUNREACH (?P<host>\S+?)(?::\d+)?(?:\s|$)"),
    _phrase("unreachable", r"query\w+ (?:ECONNREFUSED|ETIMEOUT) (?P<host>\S+)"),
    _phrase("unreachable", r"^curl: \(7\) Failed to connect to (?P<host>\S+) port \d+"),
    _phrase("unreachable", r"^fatal: .*: Failed to connect to (?P<host>\S+) port \d+"),
    _phrase("unreachable", r"^fatal: unable to connect to (?P<host>[^\s:]+):$"),
    _phrase("unreachable", r"; (?:no servers could be reached)$"),
    _phrase("unreachable", r"failed to lookup address information: (?:Name or|Temporary)"),
    _phrase("unreachable", r"\[Errno -[235]\] (?:Name or service not known|Temporary failure in)"),
    _phrase("unreachable", r"\[Errno 101\] Network is unreachable"),
    # pip says no more if it should not try again. With a network it says this about a wrong name.
    _phrase(
        "index",
        r"^ERROR: Could not find a version that satisfies the requirement (?P<name>[\w.-]*).*"
        r"\(from versions: none\)",
    ),
    _phrase("index", r"^error: externally-managed-environment$|: No module named pip$"),
    _phrase("unreachable", r"^\s*Network is unreachable \(os error 101\)$"),
    _phrase("read-only", r"^\s*Read-only file system \(os error 30\)$"),
    _phrase("full", r"^\s*No space left on device \(os error 28\)$"),
    _phrase("read-only", r"\bEROFS: read-only file system, \w+ '"),
    _phrase("read-only", r"\[Errno 30\] Read-only file system: '"),
    _phrase("full", r"\bENOSPC: no space left on device, (?!watch)\w+"),
    _phrase("full", r"\[Errno 28\] No space left on device"),
    _phrase("descriptors", r"\bEMFILE: too many open files, (?!watch)\w+|\bspawn \S+ EMFILE$"),
    _phrase("descriptors", r"\[Errno 24\] Too many open files"),
    _phrase("processes", r"\bspawn \S+ EAGAIN$|\bspawnSync \S+ EAGAIN$"),
    _phrase("processes", _FORK + r".*: Resource temporarily unavailable$"),
    _phrase("processes", r"^\S*: (?:\d+: )?Cannot fork$"),
    _phrase("threads", r"^Uncaught Error: EAGAIN$"),
    _phrase("threads", r"pthread_create\b.*(?:Resource temporarily unavailable|\bEAGAIN\b)"),
    _phrase("threads", r"can't start new thread$"),
    _phrase("exhausted", r"^FATAL ERROR: .*out of memory"),
    _phrase("exhausted", r"^# Fatal (?:process|[Jj]ava[Ss]cript) (?:OOM|out of memory)\b"),
    _phrase("memory", r"^  what\(\):  std::bad_alloc$"),
    _phrase("memory", r"^Out of memory!$|^\S+: out of memory(?: allocating \d+ bytes.*)?$"),
    _phrase("memory", r"^fatal error: runtime: (?:cannot allocate|out of) memory"),
    _phrase("memory", r"^memory allocation of \d+ bytes failed$"),
    _phrase("exhausted", r"^bash: x(?:re|m)alloc: cannot allocate \d+ bytes"),
    _phrase("memory", r": x(?:re|m)alloc: cannot allocate \d+ bytes"),
    _phrase(
        "memory", r"^virtual memory exhausted: |^java\.lang\.OutOfMemoryError: unable to create"
    ),
    _phrase("memory", r"ENOMEM: not enough memory, \w+|\bspawn \S+ ENOMEM$"),
    _phrase("array", r"^Uncaught RangeError: Array buffer allocation failed$"),
    _phrase("socket", r"^ping6?: (?:socket|[\w ]*socket\w*|).*Operation not permitted"),
    _phrase("socket", r"\(socket: Operation not permitted\)$"),
    _phrase("hidden", r"^Cannot connect to the Docker daemon at unix://(?P<path>/\S+?)\. "),
    _phrase("privilege", r"\bNo usable sandbox!|Failed to move to new namespace:"),
    _phrase("privilege", r"^unshare: unshare failed: Operation not permitted$"),
    _phrase(
        "privilege", r"^bwrap: (?:No permissions to create new namespace|Creating new namespace)"
    ),
    _phrase(
        "privilege",
        r"^u?mount: .*(?:must be superuser to|Operation not permitted|permission denied)",
    ),
    _phrase(
        "privilege",
        r"^sudo: (?:effective uid is not 0|The \"no new privileges\" flag|.*must be owned)",
    ),
    _phrase("privilege", r"^E: .*are you root\?$|^\S+: cannot clone: Operation not permitted$"),
    _phrase("sigbus", r"^Fatal Python error: Bus error$|: +\d+ Bus error\b|by signal: Bus error\b"),
    _phrase(
        "terminal",
        r"^(?:Vim: Warning: Input is not from a terminal|\S+: standard input is not a tty"
        r"|Error opening terminal: .*|\S+: failed tty get|error: Terminal is dumb, but EDITOR unset"
        r"|(?:the input device|stdin) is not a (?:TTY|terminal|tty).*)$",
    ),
    _phrase("signing", r"^error: (?:gpg failed to sign the data|Couldn't load public key)"),
    _phrase("group", r"\bEOVERFLOW: value too large for defined data type, \w+ '"),
    *(_phrase(kind, pattern) for kind, pattern in GPU_PHRASES),
)
"""Searched in a line. If a `host` is this machine, it is no evidence."""

_WRITING = re.compile(
    r"^\S+: (?:\S+: )?(?:cannot (?:touch|remove|create|move|overwrite|rename|open output file)"
    r"|cannot open '.*' for writing|failed to (?:open|create|remove|make)|setting times of"
    r"|changing permissions of|cannot change permissions of|couldn't open (?:temporary )?file).*:"
    r" Permission denied$"
)
"""Errors of writing. If a file is another user's, the kernel checks its permissions before the
mount.
"""

_MISSING = re.compile(r"\bno such file or directory\b", re.IGNORECASE)

_BARE = re.compile(r"^[\w./-]+: (?:line \d+: )?(?P<path>[^\s:'\"]+): No such file or directory$")

WORKSPACE = "/workspace"
"""Working directory of code at its start."""

_THROWN = re.compile(
    r"^(?:Uncaught )?(?:\w+ \[cause\]: |\s*\[cause\]: )?\w*Error\b.*\bE[A-Z]{3,}\b"
)
_OWN_FRAME = re.compile(r"^\s+at (?:async )?(?:\S+ \()?<exec-\d+>")


def evidence_in(lines: Sequence[str]) -> Iterator[Evidence]:
    """Find the evidence in the lines of a text."""
    text = "\n".join(lines)
    triggers = [words for words in TRIGGERS if words in text]
    if not triggers:
        return
    for place, line in enumerate(lines):
        if len(line) > MAX_LINE_CHARS or not any(words in line for words in triggers):
            continue
        if not _thrown_by_hand(line, lines[place + 1 : place + 2]):
            yield from _of_line(line.rstrip())


def _thrown_by_hand(line: str, following: Sequence[str]) -> bool:
    """Return whether this is Node's report of an error that the code itself made.

    Node's own errors come from its own modules: their innermost frame is there.
    """
    return bool(following and _OWN_FRAME.match(following[0]) and _THROWN.match(line))


def _of_line(line: str) -> Iterator[Evidence]:
    for kind, pattern in PHRASES:
        found = pattern.search(line)
        if found is not None:
            groups = found.groupdict()
            if "path" in groups:
                yield Evidence(kind=kind, subject=groups["path"])
            elif "name" in groups:
                yield Evidence(kind=kind, subject=groups["name"])
            else:
                yield from _checked(kind, line, groups.get("host"))
            return
    end = _END.search(line)
    if end is not None and end.start() > 0:
        yield from _checked(_KIND_OF[end["words"].lower()], line[: end.start() + 1], None)
    elif _WRITING.match(line):
        yield Evidence(kind="denied", subject=path_in(line))
    elif (missing := _MISSING.search(line)) is not None:
        path = path_in(line[: missing.start()]) or path_in(line[missing.end() :])
        bare = _BARE.match(line)
        yield from not_found(path or (bare["path"] if bare is not None else ""))


def not_found(path: str) -> Iterator[Evidence]:
    """Evidence from a file that does not exist."""
    relative = path.removeprefix(f"{WORKSPACE}/")
    if relative and not relative.startswith("/"):
        yield Evidence(kind="missing", subject=relative)
    elif path:
        yield Evidence(kind="hidden", subject=path)


def _checked(kind: Kind, line: str, host: str | None) -> Iterator[Evidence]:
    if kind == "unreachable":
        hosts = [host] if host is not None else hosts_in(line)
        if all(is_elsewhere(each) for each in hosts):
            yield Evidence(kind=kind, subject=hosts[0] if hosts else "")
    elif kind == "full":
        if "inotify" not in line and "/dev/full" not in line:
            yield Evidence(kind=kind, subject=_what_of(line))
    elif kind == "read-only":
        yield Evidence(kind=kind, subject=_what_of(line))
    elif kind == "descriptors" and "inotify" in line:
        pass  # these have a limit of their own
    else:
        yield Evidence(kind=kind)


def _what_of(line: str) -> str:
    """The path in a message, without the program's own path at the beginning of some."""
    _, _, message = line.partition(": ")
    return path_in(message or line)
