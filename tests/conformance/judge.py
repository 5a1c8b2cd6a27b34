"""Answers of a target, and their faults. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.cases import Language, Step

SHOWN_CHARS = 400
"""Largest part of a text in a report, around the difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Outcome of one execution, as far as the target reports it.

    Attributes:
        text: the one text of a target that does not keep streams and displays apart, from which
            `stdout` and `stderr` were taken as far as that goes; else None.
        cut: streams of which a target shows less than it would by the protocol.
        exit_code, displays, truncated, timed_out, interrupted, restarted: None where the target
            does not tell.
        reason: why the interpreter's state was lost.
        refused: why the target would not run the code; empty if it did.
        ended: why the session ended in place of an answer; empty if it did not.
    """

    stdout: str = ""
    stderr: str = ""
    text: str | None = None
    cut: frozenset[str] = frozenset()
    exit_code: int | None = None
    displays: Sequence[Mapping[str, Any]] | None = None
    truncated: Mapping[str, str | None] | None = None
    timed_out: bool | None = None
    interrupted: bool | None = None
    restarted: bool | None = None
    reason: str = ""
    refused: str = ""
    ended: str = ""


def problems(step: Step, answer: Answer) -> list[str]:
    """Every way in which an answer is not what the step wants; empty when it is."""
    if answer.ended:
        return [] if step.may_end else [f"the session ended: {answer.ended}"]
    if answer.refused:
        return [] if step.refused is not False else [f"the code was refused: {answer.refused}"]
    if step.refused is True:
        return [f"the code was not refused; {_brief(answer)}"]
    found: list[str] = []
    if step.exit_code is not None and answer.exit_code not in {*step.exit_code, None}:
        wanted = " or ".join(map(str, step.exit_code))
        found.append(f"exit code {answer.exit_code}, expected {wanted}")
    found += _flags(step, answer)
    if answer.text is not None and step.displays != ():
        found += _whole_text(step, answer.text)
    else:
        for stream in ("stdout", "stderr"):
            if stream not in answer.cut:
                found += _stream(stream, step, answer)
        found += _displays(step, answer)
    found += _truncation(step, answer)
    if found:
        found.append(_brief(answer))
    return found


def _flags(step: Step, answer: Answer) -> Iterable[str]:
    for flag in ("timed_out", "interrupted", "restarted"):
        wanted, seen = getattr(step, flag), getattr(answer, flag)
        if wanted != "either" and seen is not None and seen != wanted:
            yield f"{flag} is {seen}, expected {wanted}"
    if answer.restarted and not answer.reason:
        yield "the interpreter was restarted and no reason is given"
    if step.reason_has and answer.restarted and step.reason_has not in answer.reason:
        yield f"the reason {answer.reason!r} has no {step.reason_has!r}"


def _stream(name: str, step: Step, answer: Answer) -> Iterable[str]:
    exact, text = getattr(step, name), getattr(answer, name)
    # What a model reads has a newline added where another part follows.
    same = (exact, f"{exact}\n") if answer.text is not None else (exact,)
    if exact is not None and text not in same:
        yield f"{name} is {_shown(text)}, expected {_shown(exact)}"
    yield from _parts(name, step, text)


def _parts(name: str, step: Step, text: str) -> Iterable[str]:
    for part in getattr(step, f"{name}_has"):
        if part not in text:
            yield f"{name} {_shown(text)} has no {_shown(part)}"
    for part in getattr(step, f"{name}_lacks"):
        if part in text:
            yield f"{name} {_shown(text)} has {_shown(part)}, which it must not"
    for pattern in getattr(step, f"{name}_like"):
        if re.search(pattern, text, re.DOTALL) is None:
            yield f"{name} {_shown(text)} does not match {pattern!r}"


def _displays(step: Step, answer: Answer) -> Iterable[str]:
    if step.displays is None or answer.displays is None:
        return
    if len(step.displays) != len(answer.displays):
        seen = [bundle.get("text/plain", sorted(bundle)) for bundle in answer.displays]
        yield f"{len(seen)} displays {_shown(str(seen))}, expected {len(step.displays)}"
        return
    for number, (wanted, bundle) in enumerate(zip(step.displays, answer.displays, strict=True), 1):
        for mime, data in wanted.items():
            if mime not in bundle:
                yield f"display {number} has no {mime}, but {', '.join(sorted(bundle))}"
            elif data is not True and bundle[mime] != data:
                shown = _shown(str(bundle[mime]))
                yield f"display {number} as {mime} is {shown}, expected {data!r}"


def _truncation(step: Step, answer: Answer) -> Iterable[str]:
    if answer.truncated is None or step.truncated is None:
        return
    for stream in step.truncated:
        if stream not in answer.truncated:
            yield f"{stream} is not truncated"
        elif not answer.truncated[stream]:
            yield f"no file is named that has all of {stream}"
    for stream in answer.truncated.keys() - set(step.truncated):
        yield f"part of {stream} is left out"


def _whole_text(step: Step, text: str) -> Iterable[str]:
    """A text in which displays follow what was printed without a border: all of it occurs."""
    for name in ("stdout", "stderr"):
        exact = getattr(step, name)
        if exact and exact not in text:
            yield f"the answer {_shown(text)} has no {name} {_shown(exact)}"
        yield from _parts(name, step, text)
    for wanted in step.displays or ():
        plain = wanted.get("text/plain")
        if isinstance(plain, str) and plain not in text and len(wanted) == 1:
            yield f"the answer {_shown(text)} has no display {_shown(plain)}"


SETTING: Mapping[Language, str] = {
    "python": "nsm_state = '{value}'",
    "bash": "nsm_state={value}",
    "node": "void (globalThis.nsm_state = '{value}')",
}
"""Makes state that every later probe of the session looks for."""

PROBES: Mapping[Language, str] = {
    # No name that code may have overwritten is used, but for the import itself.
    "python": "if __import__('os').write(1, f'{token} {{nsm_state}}\\n'.encode()): pass",
    "bash": "builtin printf '%s\\n' \"{token} ${{nsm_state}}\"",
    "node": "void require('node:fs').writeSync(1, `{token} ${{globalThis.nsm_state}}\\n`)",
}
"""Echoes a token that is fresh for each execution, and the state."""


def setting(language: Language, value: str) -> str:
    """Code that sets the state which probes look for."""
    return SETTING[language].format(value=value)


def probe(language: Language, token: str) -> str:
    """Code that echoes the token and the state."""
    return PROBES[language].format(token=token)


def probe_problems(step: Step, answer: Answer, wanted: str) -> list[str]:
    """List the faults of the answer to the probe that followed a step.

    Args:
        wanted: what it prints: its token and the state.
    """
    if answer.ended or answer.refused:
        return [f"the next execution got no answer: {answer.ended or answer.refused}"]
    found: list[str] = []
    if answer.stdout != wanted:
        found.append(f"the next execution printed {_shown(answer.stdout)}, expected {wanted!r}")
    if step.probe == "full" and answer.stderr:
        found.append(f"the next execution has stderr {_shown(answer.stderr)}")
    if answer.exit_code not in {0, None}:
        found.append(f"the next execution has exit code {answer.exit_code}")
    if answer.displays:
        found.append(f"the next execution has displays {_shown(str(answer.displays))}")
    flags = [f for f in ("timed_out", "interrupted", "restarted") if getattr(answer, f)]
    found += [f"the next execution is {flag}: {answer.reason}" for flag in flags]
    if found:
        found.append(f"the next execution's stderr: {_shown(answer.stderr)}")
    return found


def _brief(answer: Answer) -> str:
    flags = [f for f in ("timed_out", "interrupted", "restarted") if getattr(answer, f)]
    parts = [f"exit code {answer.exit_code}", *flags]
    if answer.text is not None:
        parts.append(f"text {_shown(answer.text)}")
    else:
        parts += [f"stdout {_shown(answer.stdout)}", f"stderr {_shown(answer.stderr)}"]
    if answer.reason:
        parts.append(f"reason {answer.reason!r}")
    return "the answer: " + ", ".join(parts)


def _shown(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return repr(text)
    half = SHOWN_CHARS // 2
    return f"{text[:half]!r} ... {text[-half:]!r} ({len(text)} characters)"
