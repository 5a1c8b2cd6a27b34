"""What a model reads: a result or an error as text. Pure functions.

The order is that of the specification: output first, then in brackets only what there is to say,
so that success and failure can be told apart from the text alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nsm.wire.errors import NsmError, StartFailedError, UnknownEnvironmentError
from nsmd.mcp.text import clean, head_and_tail, one_line, shares
from nsmd.values import Outcome, RunResult

MAX_RESULT_CHARS = 40_000
"""Default of `[mcp] max_result_chars`: most characters of output in one result."""

NOTICEABLE_WAIT_S = 1.0
"""A wait for other calls of a session is told from here on; below, nobody noticed."""

META_KEY = "nsm"
"""Where a result's `_meta` has what programs want. Not `structuredContent`: several clients show
the model nothing else where that is present."""

_MAX_ERROR_CHARS = 8000
"""Of an error's text, which may quote what bubblewrap or a build said."""

_STDERR_HEADING = "--- stderr ---\n"
_TEXT_TYPES = ("text/plain", "text/markdown", "application/json", "image/svg+xml", "text/html")
"""MIME types of displayed values that a model can read, the plainest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """The answer to a tool call before it becomes the SDK's type.

    Attributes:
        text: what the model reads.
        is_error: the code failed, or could not be run.
        meta: plain values for programs.
    """

    text: str
    is_error: bool
    meta: Mapping[str, Any]


def render_result(
    result: RunResult, *, max_chars: int = MAX_RESULT_CHARS, name_chosen: bool = False
) -> ToolReply:
    """The reply for a call that was carried out, whatever its exit code.

    Args:
        result: what came of it.
        max_chars: most characters of output; notes come on top.
        name_chosen: the session's name was chosen for the caller, who must be told it.
    """
    outcome = result.outcome
    body, omitted = _body(outcome, max_chars)
    notes = _session_notes(result, name_chosen) + _outcome_notes(result, omitted)
    if not body and not outcome.exit_code:
        body = "(no output)\n"
    if body and notes and not body.endswith("\n"):
        body += "\n"
    return ToolReply(
        text=body + "\n".join(f"[{note}]" for note in notes),
        is_error=outcome.exit_code != 0,
        meta={META_KEY: _extras(result, omitted)},
    )


def render_error(error: NsmError) -> ToolReply:
    """The reply for a call that could not be carried out."""
    hint = error.hint or _DEFAULT_HINTS.get(type(error), "")
    text = f"{error.message}\n{hint}" if hint else error.message
    text, _ = head_and_tail(clean(text), _MAX_ERROR_CHARS)
    return ToolReply(text=text, is_error=True, meta={META_KEY: {"error": error.code}})


_DEFAULT_HINTS: Mapping[type[NsmError], str] = {
    StartFailedError: "`nsm doctor` says what is missing on this machine.",
    UnknownEnvironmentError: "The tool's description lists the environments.",
}


def _body(outcome: Outcome, max_chars: int) -> tuple[str, int]:
    """Stdout, stderr and displayed values within the limit, and the characters left out."""
    displays = "".join(_display(bundle) for bundle in outcome.displays)
    parts = [clean(outcome.stdout), clean(outcome.stderr), clean(displays)]
    # Each stream has its share: a flood of one must not push the other out.
    grants = shares([len(part) for part in parts], max_chars)
    cut = [head_and_tail(part, grant) for part, grant in zip(parts, grants, strict=True)]
    stdout, stderr, shown = (text for text, _ in cut)
    body = stdout
    if stderr:
        body = _line_end(body) + _STDERR_HEADING + stderr
    if shown:
        body = _line_end(body) + shown
    return body, sum(omitted for _, omitted in cut)


def _line_end(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _display(bundle: Mapping[str, Any]) -> str:
    """One displayed value: the most readable of its forms, and a line for each that is not."""
    lines: list[str] = []
    readable = next((kind for kind in _TEXT_TYPES if kind in bundle), None)
    if readable is not None:
        data = bundle[readable]
        lines.append(data if isinstance(data, str) else _as_json(data))
    for kind, data in bundle.items():
        if kind not in _TEXT_TYPES:
            size = len(data) * 3 // 4 if isinstance(data, str) else 0  # base64
            lines.append(f"[{one_line(kind, 80)}, {_size(size)}, is not shown]")
    return "".join(_line_end(line) for line in lines)


def _as_json(data: object) -> str:
    try:
        return json.dumps(data, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return "(a value that cannot be shown)"


def _session_notes(result: RunResult, name_chosen: bool) -> list[str]:
    """What there is to say about where the code ran."""
    notes: list[str] = []
    name = result.session_name
    if name is not None and result.replaced is not None:
        notes.append(
            f"session '{name}' is new: the earlier one {one_line(result.replaced, 200)}; "
            "variables and /workspace were lost"
        )
    elif name is not None and name_chosen:
        notes.append(f"session: {name}")
    elif name is not None and result.created:
        # Said even when nothing is known of an earlier one: a supervisor that was restarted has
        # forgotten it, the model has not.
        notes.append(f"session '{name}' is new")
    if result.waited_s >= NOTICEABLE_WAIT_S:
        notes.append(f"waited {_seconds(result.waited_s)} for an earlier call in this session")
    if result.clamped_from_s is not None:
        notes.append(
            f"timeout_seconds lowered from {_seconds(result.clamped_from_s)} to "
            f"{_seconds(result.timeout_s)}, the limit of {result.env}"
        )
    return notes


def _outcome_notes(result: RunResult, omitted_chars: int) -> list[str]:
    """What there is to say about how it went: nothing, or one line."""
    outcome = result.outcome
    said: list[str] = []
    if outcome.timed_out:
        said.append(f"timed out after {_seconds(result.timeout_s)}")
    if outcome.interrupted:
        said.append("interrupted")
    if outcome.exit_code:
        said.append(f"exit code {outcome.exit_code}")
    if outcome.interpreter_restarted and result.session_name is not None:  # else it goes anyway
        why = one_line(outcome.restart_reason, 200).rstrip(".")
        said.append(f"interpreter restarted (state lost){': ' if why else ''}{why}")
    said += _truncation(result, omitted_chars)
    return ["; ".join(said)] if said else []


def _truncation(result: RunResult, omitted_chars: int) -> list[str]:
    said: list[str] = []
    for stream, truncation in sorted(result.outcome.truncated.items()):
        note = f"{stream} truncated, {_size(truncation.omitted_bytes)} left out"
        if result.session_name is None:
            note += ": repeat with a session to keep all of it in a file"
        elif truncation.file is not None:
            note += f": all of it is in {one_line(truncation.file, 200)}"
        said.append(note)
    if omitted_chars and not said:
        said.append(
            f"output truncated, {omitted_chars:,} characters left out: print less, or write it to "
            "a file in a session and read parts of it"
        )
    return said


def _extras(result: RunResult, omitted_chars: int) -> dict[str, Any]:
    outcome = result.outcome
    return {
        "exit_code": outcome.exit_code,
        "duration_s": round(outcome.duration_s, 6),
        "execution_id": result.execution_id,
        "env": result.env,
        "session": result.session_name,
        "session_id": result.session_id,
        "session_created": result.created,
        "timed_out": outcome.timed_out,
        "interrupted": outcome.interrupted,
        "interpreter_restarted": outcome.interpreter_restarted,
        "waited_s": round(result.waited_s, 3),
        "timeout_s": result.timeout_s,
        "omitted_bytes": {name: t.omitted_bytes for name, t in outcome.truncated.items()},
        "omitted_chars": omitted_chars,
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}".removesuffix(".0") + " s" if seconds < 1e15 else f"{seconds:g} s"


def _size(size: int) -> str:
    if size < 10_000:
        return f"{size:,} bytes"
    return f"{size / 1024:,.0f} KiB" if size < 10 * 1024**2 else f"{size / 1024**2:,.0f} MiB"
