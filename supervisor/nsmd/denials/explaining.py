"""Lines of a result about the rules of its jail, and the choice of its texts that count."""

from __future__ import annotations

import posixpath
import re
import signal
from collections.abc import Iterator, Sequence
from functools import partial

from nsmd.denials import tracebacks, wording
from nsmd.denials.messages import WORDS, WORKSPACE, Evidence, Kind, evidence_in, is_beyond_machines
from nsmd.denials.suspicion import bounded, is_suspicious
from nsmd.denials.wording import Circumstances, plain
from nsmd.host.event_loop import BoundedReads
from nsmd.host.paths import has_below
from nsmd.model.policy import Policy
from nsmd.model.values import LimitEvent, Outcome, ProjectMount

LOST = "variables were lost"

BASH_GIVES_UP = 2
"""Bash's exit code if it gets no memory; Node ends itself with a signal."""

NODE_GIVES_UP = "\n<--- Last few GCs --->\n"
"""First words of Node if it gets no memory. It may get none for more words, and crash."""

KILLED_BY_SIGBUS = 128 + signal.SIGBUS

MOST_MISSING = 5
"""Largest number of files to look for in the project, for one execution."""

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
    **dict(WORDS),
    "unreachable": (*dict(WORDS)["unreachable"], "could not resolve host", "getaddrinfo e"),
    "memory": (*dict(WORDS)["memory"], "out of memory", "bad_alloc"),
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


def explain(
    policy: Policy,
    outcome: Outcome,
    events: Sequence[LimitEvent] = (),
    circumstances: Circumstances = Circumstances(),  # noqa: B008  # frozen
) -> tuple[str, ...]:
    """Explain which rule of the jail stopped the code, and what is allowed: no line, one line, or
    one each for something killed, something denied, and a GPU. The events are limits that the
    session reached meanwhile.
    """
    found = _evidence_of(outcome, circumstances.code)
    if circumstances.has_input:
        found = [one for one in found if one.kind != "input"]
    if outcome.exit_code == KILLED_BY_SIGBUS and not found:
        found.append(Evidence(kind="sigbus"))
    memory = [event for event in events if event.kind == "memory"]
    lost = LOST if outcome.interpreter_restarted and circumstances.keeps_state else ""
    notes: list[str] = []
    if memory:
        notes.append(wording.killed(policy, memory[-1], lost))
    elif _ended_itself(outcome, found):
        # It was refused memory; nothing counts that.
        limit = LimitEvent(
            kind="memory",
            limit=policy.limits.memory_mb << 20,
            enforced_by=policy.limits.memory_by,
            what="",
        )
        notes.append(wording.killed(policy, limit, lost))
        found = [one for one in found if one.kind not in ("memory", "array", "exhausted")]
    if said := wording.clauses(policy, found, events, circumstances):
        notes.append(f"policy: {'; '.join(said)}")
    kinds: set[Kind] = {one.kind for one in found}
    failed = outcome.exit_code != 0
    of_gpus = wording.said_of_gpus(policy, kinds, circumstances.environments, failed=failed)
    notes += [f"gpu: {clause}" for clause in of_gpus]
    if circumstances.project is not None:
        missing = [one.subject for one in found if one.kind == "missing"]
        notes += _in_the_project(circumstances.project, missing)
    return tuple(notes)


def _in_the_project(project: ProjectMount, missing: Sequence[str]) -> list[str]:
    """Note on the place in the project of a file that code looked for in the working directory."""
    for path in missing[:MOST_MISSING]:
        try:
            is_there = BoundedReads().read(project.path, partial(has_below, project.path, path))
        except TimeoutError:
            return []
        if is_there:
            place = plain(posixpath.normpath(posixpath.join(project.mount_point, path)), 200)
            return [f"{WORKSPACE} is the working directory; the file is at {place}"]
    return []


def _ended_itself(outcome: Outcome, found: Sequence[Evidence]) -> bool:
    """Return whether the interpreter, and not a program that it ran, ended because
    memory ran out.
    """
    if not outcome.interpreter_restarted or outcome.timed_out or outcome.interrupted:
        return False
    if not any(one.kind == "exhausted" for one in found) and not (
        "SIGSEGV" in outcome.restart_reason and outcome.stderr.startswith(NODE_GIVES_UP)
    ):
        return False
    return "killed by" in outcome.restart_reason or outcome.exit_code == BASH_GIVES_UP


def _evidence_of(outcome: Outcome, code: str) -> list[Evidence]:
    """Collect the evidence in the texts of an outcome of some code, each piece once."""
    code = code[:CODE_CHARS]
    lowered = code.lower()
    found: dict[Evidence, None] = {}
    for text in _texts(outcome, code):
        errors, others = tracebacks.cut_out(text)
        for error in errors:
            found.update(dict.fromkeys(tracebacks.evidence_of(error, code)))
        found.update(dict.fromkeys(evidence_in(others)))
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
            if is_suspicious(text := display.get("text/plain", "")):
                yield _lines(text, escaped=True)
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
