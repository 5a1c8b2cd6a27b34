"""Notes about a result, for people who ran code. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.render.formats import duration, size, visible_lines

if TYPE_CHECKING:
    from nsm.wire.results import RunResult


NOTICEABLE_WAIT_S = 1.0
"""Waiting for another execution of the session is told from here on."""


def run_notes(result: RunResult, *, fresh_name: bool, left_out: dict[str, int]) -> list[str]:
    """List the notes for the person who ran code, besides its output.

    Args:
        fresh_name: a session under a fresh name was asked for, so its name is news.
        left_out: bytes of each stream that were not printed.
    """
    session = result.session
    notes: list[str] = []
    if session.replaced is not None:
        notes.append(
            f"session {session.name!r} is new: the earlier one {session.replaced}; "
            "variables and /workspace were lost"
        )
    elif fresh_name and session.name is not None:
        notes.append(f"the session is {session.name}; `-s {session.name}` goes on in it")
    if result.clamped_from_s is not None:
        notes.append(
            f"the limit is {result.timeout_s:g} s, not the {result.clamped_from_s:g} s asked for; "
            "config.toml can raise it"
        )
    if result.waited_s >= NOTICEABLE_WAIT_S:
        notes.append(f"waited {duration(result.waited_s)} for other executions of the session")
    for stream, missing in left_out.items():
        truncation = result.truncated.get(stream)
        where = ""
        if truncation is not None and truncation.file is not None:
            where = (
                f"; {truncation.where(f'{truncation.file} of the session')}"
                if session.name is not None
                else "; with a session (-s NAME) up to 64 MiB are kept in a file"
            )
        notes.append(f"{size(missing)} of {stream} left out{where}")
    if result.timed_out:
        longer = (
            "; -t sets the time limit, at most the environment's, and in a session (-s NAME) work "
            "can go on in the background"
        )
        notes.append(
            f"timed out after {result.timeout_s:g} s{longer if session.name is None else ''}"
        )
    if result.interrupted:
        notes.append("interrupted")
    if result.interpreter_restarted and session.name is not None:
        reason = f" ({result.restart_reason})" if result.restart_reason else ""
        notes.append(f"the interpreter was restarted{reason}; its variables were lost")
    notes += result.notes
    return [visible_lines(text) for text in notes]
