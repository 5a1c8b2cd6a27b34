"""Programs of the bridge as text, and what came of one as an exit code. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_RUN_FAILED, EXIT_TIMED_OUT
from nsm.cli.render import formats
from nsm.wire.jobs import signal_name

if TYPE_CHECKING:
    from nsm.wire.host import (
        ProgramHelp,
        ProgramProblem,
        ProgramResult,
        ProgramRow,
        ProgramsReport,
    )

_OFF = (
    "The bridge is off. `[bridge] enabled = true` in config.toml turns it on, and "
    "`nsm reload --config` has that take effect."
)
_NONE = "No programs. A file in ~/.config/nsm/tools describes each (docs/how-to/bridge.md)."


def table(report: ProgramsReport, home: str) -> str:
    """The table of `nsm bridge ls`. Paths below `home` are shown with ``~``."""
    if not report.programs:
        return _NONE if report.enabled else _OFF
    return formats.table(
        "NAME LIMIT ARGUMENTS COMMAND DESCRIPTION".split(),
        (
            (
                row.name,
                formats.limit(row.timeout_s),
                _arguments(row),
                "-" if row.command is None else formats.below_home(row.command, home),
                row.description,
            )
            for row in report.programs
        ),
        right="LIMIT",
    )


def _arguments(row: ProgramRow) -> str:
    many = (
        "any" if row.max_args is None else "none" if row.max_args == 0 else f"up to {row.max_args}"
    )
    return f"{many}, options too" if row.allow_options and row.max_args != 0 else many


def problem(found: ProgramProblem) -> str:
    """Why a file describes no program: where, and what was found."""
    where = found.source if found.line is None else f"{found.source}:{found.line}"
    return f"{formats.visible(where)}: {formats.visible_lines(found.reason)}"


def unset(row: ProgramRow) -> str:
    """Name the variables of its file that a program lacks; empty if it has all."""
    if not row.unset:
        return ""
    names = formats.visible(", ".join(row.unset))
    return (
        f"{row.name}: `env` names what the supervisor does not have: {names}. "
        "docs/how-to/bridge.md says where to set it"
    )


def documentation(found: ProgramHelp) -> str:
    """The text of `nsm bridge help`: the file's own; where it has none, the description."""
    return formats.visible_lines(found.documentation.strip("\n") or found.program.description)


def exit_code(result: ProgramResult) -> int:
    """Choose the exit code of the process."""
    match result.why_stopped:
        case "timeout":
            return EXIT_TIMED_OUT
        case "cancelled":
            return EXIT_INTERRUPTED
        case None if result.signal is not None:
            return 128 + result.signal
        case None if result.exit_code is not None:
            return result.exit_code & 0xFF or (EXIT_FAILED if result.exit_code else 0)
        case _:
            return EXIT_RUN_FAILED


def notes(result: ProgramResult) -> list[str]:
    """List the notes for the person who started it, besides its output."""
    told: list[str] = []
    match result.why_stopped:
        case "timeout":
            told.append(f"timed out after {result.timeout_s:g} s")
        case "cancelled":
            told.append("interrupted")
        case None if result.signal is not None:
            told.append(f"killed by {signal_name(result.signal)}")
        case None:
            pass
        case _:
            told.append("stopped: the supervisor ends")
    if result.left:
        who = "process that it left goes" if result.left == 1 else "processes that it left go"
        told.append(f"{result.left} {who} on")
    return told
