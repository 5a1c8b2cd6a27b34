"""Error messages of Python: tracebacks, each with the error and the line that raised it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from nsm.dataclass import dataclass
from nsmd.denials.messages import (
    GPU_KINDS,
    Evidence,
    evidence_in,
    hosts_in,
    is_beyond_machines,
    is_elsewhere,
    not_found,
)

_HEADER = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line \d+(?:, in (?P<function>.*))?$')
_ERROR = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_ERRNO = re.compile(r"\[Errno (-?\d+)\] ([^:>)'\"]*)")
_PATHS = re.compile(r"""(['"])((?:(?!\1).)+)\1""")
_RAISES = re.compile(r"(?:^|[;:]\s*)raise\b")
_LIBRARY = re.compile(r"/(?:lib|lib64)/python[\d.]+/|/(?:site|dist)-packages/|^<frozen ")
_MOCKS = re.compile(r"/mock(?:\.py$|/)")
_FORKS = re.compile(r"\bfork\w*\(|_fork_exec|posix_spawn|forkpty|spawnv_passfds")
_WRITES = re.compile(
    r"open\(.*['\"][rbt]?[wax]|['\"]r?b?\+|write_(?:text|bytes)|mkdir|makedirs|unlink|remove|rmdir"
    r"|rename|replace|chmod|touch|truncate|symlink|link_to|utime"
)
_SOCKETS = re.compile(r"socket\.__init__\(|\bsocket\(|socketpair\(")

_ABSOLUTE = re.compile(r"""['"](/[^'"\n]+)['"]""")
_NO_MODULE = re.compile(r"No module named '(\w+)")
_DATABASE_ERRORS = ("attempt to write a readonly database", "unable to open database file")

_NAMES_NOT_FOUND = ("-2", "-3", "-5")
"""EAI_NONAME, EAI_AGAIN, EAI_NODATA (getaddrinfo(3))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceback:
    """One error. `file` and `source` belong to the frame that raised it; empty if unknown."""

    name: str
    message: str
    file: str
    function: str
    source: str

    @property
    def raised_by_hand(self) -> bool:
        """True if the code raised it, rather than Python or its libraries."""
        if _MOCKS.search(self.file):
            return True
        return not _LIBRARY.search(self.file) and _RAISES.search(self.source) is not None


def cut_out(text: Sequence[str]) -> tuple[list[Traceback], list[str]]:
    """Split a text into its tracebacks and the other lines."""
    found: list[Traceback] = []
    others: list[str] = []
    rest = iter(text)
    for line in rest:
        if not line.endswith(_HEADER):
            others.append(line)
            continue
        # In a group of exceptions, and with some loggers, lines begin with bars and blanks.
        traceback = _one(rest, others, len(line) - len(_HEADER))
        if traceback is not None:
            found.append(traceback)
    return found, others


def _one(rest: Iterator[str], others: list[str], indent: int) -> Traceback | None:
    file = function = source = ""
    for whole in rest:
        line = whole[indent:]
        frame = _FRAME.match(line)
        if frame is not None:
            file, function, source = frame["file"], frame["function"] or "", ""
            continue
        if line.startswith(" "):
            source = source or line.strip()
            continue
        error = _ERROR.match(line)
        if error is None:
            others.append(whole)
            return None
        return Traceback(
            name=error["name"].rpartition(".")[2],
            message=error["message"] or "",
            file=file,
            function=function,
            source=source,
        )
    return None


def of_pytest(text: Sequence[str]) -> Iterator[str]:
    """Turn pytest's reports of failed tests into tracebacks.

    pytest writes them to standard output: the failed line after ``>``, the error after ``E``.
    """
    source = ""
    for line in text:
        if line.startswith(">"):
            source = line[1:].strip()
        elif line.startswith("E   ") and source:
            yield from (_HEADER, '  File "", line 1', f"    {source}", line[1:].strip())
            source = ""


def evidence_of(error: Traceback, code: str) -> Iterator[Evidence]:
    """Find the evidence in an error. Errors that the code raises itself are none."""
    if error.raised_by_hand or re.search(rf"\braise\s+(?:\w+\.)*{re.escape(error.name)}\b", code):
        return
    # First: torch calls an error of the GPU's memory OutOfMemoryError.
    of_gpu = [
        one for one in evidence_in([f"{error.name}: {error.message}"]) if one.kind in GPU_KINDS
    ]
    if of_gpu:
        yield from of_gpu
        return
    if error.name.endswith("MemoryError"):
        if not is_beyond_machines(f"{error.source or code} {error.message}"):
            yield Evidence(kind="memory")
    elif error.name == "EOFError" and error.message == "EOF when reading a line":
        yield Evidence(kind="input")
    elif error.message.startswith("can't start new thread"):
        yield Evidence(kind="threads")
    elif error.name == "ModuleNotFoundError" and (found := _NO_MODULE.match(error.message)):
        yield Evidence(kind="module", subject=found[1])
    elif error.message in _DATABASE_ERRORS and "mode=ro" not in code:
        # SQLite does not name the file: one that the code names is the likely one.
        for path in _ABSOLUTE.findall(code)[-1:]:
            yield Evidence(kind="read-only", subject=path)
    numbers: list[tuple[str, str]] = _ERRNO.findall(error.message)
    for number, words in numbers:
        yield from _of_errno(number, words.strip(), error)
    if not numbers:
        # Libraries that wrap errors keep the words.
        wrapped = evidence_in([f"{error.name}: {error.message}"])
        yield from (one for one in wrapped if one.kind == "unreachable")


def _of_errno(number: str, words: str, error: Traceback) -> Iterator[Evidence]:
    paths = [path for _, path in _PATHS.findall(error.message)]
    path = paths[-1] if paths else ""
    match number:
        case "30" if words == "Read-only file system":
            for each in paths or [""]:
                yield Evidence(kind="read-only", subject=each)
        case "13" if path.startswith("/") and _WRITES.search(error.source):
            yield Evidence(kind="read-only", subject=path)
        case "28" if words == "No space left on device" and "inotify" not in error.source:
            yield Evidence(kind="full", subject=path)
        case "2":
            yield from not_found(path)
        case "24" if words == "Too many open files":
            yield Evidence(kind="descriptors")
        case "11" if _FORKS.search(error.source):
            yield Evidence(kind="processes")
        case "12":
            yield Evidence(kind="memory")
        case "1" | "97" if _SOCKETS.search(error.source):
            yield Evidence(kind="socket")
        case "75" if words == "Value too large for defined data type":
            yield Evidence(kind="group", subject=path)
        case "101" if words == "Network is unreachable":
            yield Evidence(kind="unreachable")
        case _ if number in _NAMES_NOT_FOUND and "name" in words.lower():
            hosts = hosts_in(error.message)
            if all(is_elsewhere(host) for host in hosts):
                yield Evidence(kind="unreachable", subject=hosts[0] if hosts else "")
        case _:
            pass
