"""Choice of an execution's texts, and the evidence in them."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from nsmd.denials import lines, tracebacks
from nsmd.denials.evidence import Evidence, Kind, is_beyond_machines
from nsmd.model.values import Outcome

HEAD_CHARS = 4_000
TAIL_CHARS = 20_000
HEAD_LINES = 100
TAIL_LINES = 400
"""Of a text, what is looked at: what went wrong stands at its end, sometimes at its beginning. It
takes 0.1 ms mostly and some milliseconds of a text that is made for it; meanwhile the supervisor
does nothing else."""

CODE_CHARS = 100_000
"""Of the code, likewise."""

SUSPICIOUS = (
    "ead-only file system",
    "etwork is unreachable",
    "ENETUNREACH",
    "ame or service not known",
    "ailure in name resolution",
    "resolve host",
    "from versions: none",
    "ENOTFOUND",
    "o space left on device",
    "llocate memory",
    "oo many open files",
    "emporarily unavailable",
    "MemoryError",
)
"""What a successful and silent program printed is looked at more closely if it has one of them."""

_ERRORS_TO_STDOUT = re.compile(
    r"2>&1|&>|\|&|\bexcept\b|\bcatch\b|stderr|\bSTDOUT\b|capture_output|getoutput|spawnSync|\bpopen\b"
)
"""Code that has errors printed like output. Of other code, output is what it says: a file that it
shows, the lines that it found."""

_WORDS: dict[Kind, tuple[str, ...]] = {
    **dict(lines.WORDS),
    "unreachable": (*dict(lines.WORDS)["unreachable"], "could not resolve host", "getaddrinfo e"),
    "memory": (*dict(lines.WORDS)["memory"], "out of memory", "bad_alloc"),
    "exhausted": ("out of memory",),
    "threads": ("can't start new thread", "resource temporarily unavailable"),
    "processes": ("resource temporarily unavailable", "cannot fork"),
    "privilege": ("operation not permitted", "must be superuser"),
}
"""Code that contains them may have printed them itself."""

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
        code: what was run.
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
    """Evidence of a text together with the code; None if it is none.

    Where pip names no package, the code says which one was to be installed. A denial for want of
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


def looks_suspicious(outcome: Outcome) -> bool:
    """Return whether a closer look may pay: False where all went well, silently."""
    if outcome.exit_code or outcome.stderr or outcome.interpreter_restarted:
        return True
    if any(_plain(display) for display in outcome.displays):
        return True
    return _is_suspicious(_bounded(outcome.stdout))


def _is_suspicious(text: str) -> bool:
    return any(words in text for words in SUSPICIOUS)


def _plain(display: Mapping[str, Any]) -> str:
    """A displayed value's text, if there is something to it."""
    text = display.get("text/plain")
    if not isinstance(text, str):
        return ""
    text = _bounded(text)
    return text if _is_suspicious(text) else ""


def _texts(outcome: Outcome, code: str) -> Iterator[list[str]]:
    """The texts that count, in lines."""
    yield _lines(outcome.stderr)
    if _ERRORS_TO_STDOUT.search(code):
        # What a value of Python or Node contains is shown with its line ends escaped.
        yield _lines(outcome.stdout, escaped=True)
        for display in outcome.displays:
            yield _lines(_plain(display), escaped=True)
    elif outcome.exit_code:
        yield list(tracebacks.of_pytest(_lines(outcome.stdout)))


def _lines(text: str, *, escaped: bool = False) -> list[str]:
    text = _bounded(text)
    found = (text.replace("\\n", "\n") if escaped else text).splitlines()
    if len(found) > HEAD_LINES + TAIL_LINES:
        return found[:HEAD_LINES] + found[-TAIL_LINES:]
    return found


def _bounded(text: str) -> str:
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text
    return text[:HEAD_CHARS] + "\n" + text[-TAIL_CHARS:]


def _counts(one: Evidence, outcome: Outcome, code: str, lowered: str) -> bool:
    if any(words in lowered for words in _WORDS.get(one.kind, ())):
        return False
    match one.kind:
        case "hidden" | "missing":
            return outcome.exit_code != 0  # programs that go on without a file say so, too
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
