"""Texts about the bridge's programs for models and people. Pure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence

from nsmd.bridge.programs import Program, ProgramEnd

NO_OUTPUT = "Done (no output)."
STDOUT_HEADING = "[stdout]"
STDERR_HEADING = "[stderr]"

_MAX_SHOWN_CHARS = 80
"""Characters to show of a requested name; existing ones have at most 64."""

_MAX_NAMES = 50
"""Largest number of names to list when one was not found."""

_MAX_DESCRIPTION_CHARS = 200


def program_not_found(name: str, available: Iterable[str]) -> str:
    """Why a name starts nothing, with the names of the programs that the client may know."""
    names = list(available)
    listed = ", ".join(names[:_MAX_NAMES]) or "none"
    if len(names) > _MAX_NAMES:
        listed += f" and {len(names) - _MAX_NAMES} more"
    return f"Program '{_one_line(name, _MAX_SHOWN_CHARS)}' not found. Available: {listed}"


def list_text(programs: Sequence[Program]) -> str:
    """List programs, one per line."""
    if not programs:
        return "No programs are available."
    return "\n".join(
        f"- {p.name}: {_one_line(p.description, _MAX_DESCRIPTION_CHARS)}" for p in programs
    )


def help_text(program: Program) -> str:
    """A program's documentation, or its description if there is none."""
    return program.documentation if program.documentation.strip() else program.description


def result_text(ended: ProgramEnd) -> str:
    """Describe the outcome of a program that was started."""
    stdout, stderr = ended.stdout, ended.stderr
    if ended.succeeded:
        blocks = [stdout, _marked(STDERR_HEADING, stderr)] if stdout or stderr else [NO_OUTPUT]
    else:
        blocks = _blocks_of_failure(ended, _headline(ended))
    if ended.left:
        blocks.append(f"[{_processes(ended.left)} in the background]")
    text = _joined(blocks)
    return text if ended.succeeded else text.rstrip("\n")


def _blocks_of_failure(ended: ProgramEnd, said: str) -> list[str]:
    stdout, stderr = ended.stdout, ended.stderr
    if ended.why_stopped is not None:
        return [said, _marked(STDOUT_HEADING, stdout), _marked(STDERR_HEADING, stderr)]
    if stderr.strip():
        return [f"{said}: {stderr}", _marked(STDOUT_HEADING, stdout)]
    return [f"{said}: {stdout}" if stdout.strip() else f"{said} (no output)"]


def _headline(ended: ProgramEnd) -> str:
    match ended.why_stopped:
        case "timeout":
            return f"Timed out after {seconds(ended.timeout_s)}"
        case "cancelled":
            return f"Cancelled after {seconds(ended.duration_s)}"
        case "shutdown":
            return f"Stopped after {seconds(ended.duration_s)}: nsm's supervisor ends"
        case None:
            return f"Command failed ({how_ended(ended)})"


def how_ended(ended: ProgramEnd) -> str:
    """Describe an end: `exit 1`, or the name of the signal."""
    if ended.signal is None:
        return f"exit {ended.exit_code}"
    try:
        name = signal.Signals(ended.signal).name
    except ValueError:  # real-time signals have none
        name = f"signal {ended.signal}"
    return f"killed by {name}"


def seconds(duration_s: float) -> str:
    """Format a duration for people: `300 s`, `0.5 s`."""
    shown = f"{duration_s:.1f}".removesuffix(".0")
    return f"{duration_s:.2g} s" if 0 < duration_s < 0.1 else f"{shown} s"


def _marked(heading: str, text: str) -> str:
    return f"{heading}\n{text}" if text else ""


def _processes(count: int) -> str:
    return "1 process goes on" if count == 1 else f"{count} processes go on"


def _joined(blocks: Sequence[str]) -> str:
    """Join the blocks that are not empty, each on lines of its own; the end of the last one stays
    as it is.
    """
    text = ""
    for block in filter(None, blocks):
        text += block if not text or text.endswith("\n") else f"\n{block}"
    return text


def _one_line(text: str, limit: int) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
