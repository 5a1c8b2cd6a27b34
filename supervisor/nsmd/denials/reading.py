"""Choice of an execution's texts, and the evidence in them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from nsmd.denials import lines, tracebacks
from nsmd.denials.evidence import Evidence, Kind, is_beyond_machines
from nsmd.denials.suspicion import bounded, suspicious_text
from nsmd.model.values import Outcome

HEAD_LINES = 100
TAIL_LINES = 400
"""Lines of a text to examine: the error is at its end, sometimes at its beginning. This mostly
takes 0.1 ms, and some milliseconds with a hostile text; meanwhile the supervisor does nothing else.
"""

CODE_CHARS = 100_000
"""Characters of the code to examine, for the same reason."""

_ERRORS_TO_STDOUT = re.compile(
    r"2>&1|&>|\|&|\bexcept\b|\bcatch\b|stderr|\bSTDOUT\b|capture_output|getoutput|spawnSync|\bpopen\b"
)
"""Code that prints errors as output. In other code, output is only data: the content of a file,
lines that were found.
"""

_WORDS: dict[Kind, tuple[str, ...]] = {
    **dict(lines.WORDS),
    "unreachable": (*dict(lines.WORDS)["unreachable"], "could not resolve host", "getaddrinfo e"),
    "memory": (*dict(lines.WORDS)["memory"], "out of memory", "bad_alloc"),
    "exhausted": ("out of memory",),
    "threads": ("can't start new thread", "resource temporarily unavailable"),
    "processes": ("resource temporarily unavailable", "cannot fork"),
    "sigbus": ("bus error",),
    "input": ("eof when reading",),
    "terminal": ("a terminal", "a tty"),
    "signing": ("failed to sign",),
    "privilege": ("operation not permitted", "must be superuser"),
    "gpu-memory": ("out of memory",),
    "gpu-driver": ("version mismatch",),
    "no-gpu": ("gpus are available", "no nvidia driver", "no cuda-capable"),
}
"""Words: code that contains them may have printed them itself."""

_OWN_LIMITS = re.compile(
    r"\bulimit\b|\bp?r?setrlimit\b|\bprlimit\b|RLIMIT_|resourceLimits|--max-|-Xmx"
)
_CD = re.compile(r"\bcd +['\"]?(/[^\s;&|'\"]*)")
_OWN_INDEX = re.compile(r"--no-index|--find-links|--(?:extra-)?index-url|\s-[fi]\b|PIP_\w*IND")
_INSTALLING = re.compile(
    r"\bpip3?\b[^\n;&|]*?\binstall\s+((?:-\S+\s+)*)(?P<name>[A-Za-z0-9][\w.-]*)"
)
_LIMITED: frozenset[Kind] = frozenset(
    ("memory", "array", "exhausted", "threads", "processes", "descriptors")
)


def evidence_of(outcome: Outcome, code: str) -> list[Evidence]:
    """Collect the evidence in the texts of an outcome, each piece once.

    Args:
        code: the code that ran.
    """
    code = code[:CODE_CHARS]
    lowered = code.lower()
    found: dict[Evidence, None] = {}
    for text in _texts(outcome, code):
        errors, others = tracebacks.cut_out(text)
        for error in errors:
            found.update(dict.fromkeys(tracebacks.evidence_of(error, code)))
        found.update(dict.fromkeys(lines.evidence_in(others)))
    resolved = dict.fromkeys(_resolved(one, code) for one in found)
    return [one for one in resolved if one is not None and _counts(one, outcome, code, lowered)]


def _resolved(one: Evidence, code: str) -> Evidence | None:
    """Combine evidence of a text with the code; None if it is no evidence.

    If pip names no package, the code says which one it should install. A denial because of
    permissions counts against the mount if the file is known; where code may write, it has denied
    it to itself.
    """
    if one.kind == "index" and not one.subject:
        installing = _INSTALLING.search(code)
        return Evidence(kind="index", subject=installing["name"]) if installing else one
    if one.kind != "denied":
        return one
    path = one.subject
    if not path.startswith("/"):
        directories = set(_CD.findall(code))
        if len(directories) != 1:
            return None
        path = posixpath.normpath(posixpath.join(directories.pop(), path))
    return Evidence(kind="read-only", subject=path)


def _texts(outcome: Outcome, code: str) -> Iterator[list[str]]:
    """Yield the texts that count, as lines."""
    yield _lines(outcome.stderr)
    if _ERRORS_TO_STDOUT.search(code):
        # Values of Python or Node are displayed with escaped line ends.
        yield _lines(outcome.stdout, escaped=True)
        for display in outcome.displays:
            yield _lines(suspicious_text(display), escaped=True)
    elif outcome.exit_code:
        yield list(tracebacks.of_pytest(_lines(outcome.stdout)))


def _lines(text: str, *, escaped: bool = False) -> list[str]:
    text = bounded(text)
    found = (text.replace("\\n", "\n") if escaped else text).splitlines()
    if len(found) > HEAD_LINES + TAIL_LINES:
        return found[:HEAD_LINES] + found[-TAIL_LINES:]
    return found


def _counts(one: Evidence, outcome: Outcome, code: str, lowered: str) -> bool:
    if any(words in lowered for words in _WORDS.get(one.kind, ())):
        return False
    match one.kind:
        case "hidden" | "missing" | "terminal":
            return outcome.exit_code != 0  # programs that continue without it print this, too
        case "index":
            return not _OWN_INDEX.search(code)
        case "array" if is_beyond_machines(code):
            return False
        case "full":
            return "/dev/full" not in code
        case kind if kind in _LIMITED:
            return not _OWN_LIMITS.search(code)
        case _:
            return True
