"""Mistakes in definitions, found before anybody asks for their programs."""

from __future__ import annotations

import json
import sys

from nsmd.bridge.definitions_index import DefinitionsScan, read_directory, render
from nsmd.host.paths import printable
from nsmd.model.settings import Settings

EXIT_BAD = 1

MOST_TOLD = 3
"""Largest number of mistakes to name in one line, for the process that started the supervisor."""


def report(directory: str, settings: Settings | None, *, as_json: bool) -> int:
    """Print the programs that a directory's definitions describe, and the problems of others.

    Args:
        directory: absolute; it may be missing.
        settings: say whether the bridge is enabled; None if they cannot be read.
        as_json: print one object, `{"directory", "enabled", "programs": [...], "problems":
            [{"source", "line", "reason", "name"}]}`.

    Returns:
        Exit code: 1 if there is a problem.
    """
    found = read_directory(directory)
    enabled = settings is not None and settings.bridge.enabled
    if as_json:
        sys.stdout.write(json.dumps(_as_values(directory, found, enabled=enabled), indent=2) + "\n")
    else:
        sys.stdout.write(_as_text(directory, found, enabled=enabled))
        sys.stderr.write("".join(f"{render(problem)}\n" for problem in found.problems))
    return EXIT_BAD if found.problems else 0


def mistakes(directory: str, settings: Settings) -> str:
    """Collect the mistakes that keep a strict supervisor from starting; empty if there are none."""
    if not settings.bridge.enabled:
        return ""
    problems = read_directory(directory).problems
    told = [render(problem) for problem in problems[:MOST_TOLD]]
    if len(problems) > MOST_TOLD:
        told.append(f"and {len(problems) - MOST_TOLD} more: run `nsm bridge check`")
    return "; ".join(told)


def _as_text(directory: str, found: DefinitionsScan, *, enabled: bool) -> str:
    lines = [
        f"{program.name}: {program.command} ({printable(program.source)})"
        for program in found.programs.values()
    ]
    if not lines and not found.problems:
        lines.append(f"{printable(directory)} has no definitions (*.md)")
    if not enabled:
        lines.append("the bridge is off: `enabled = true` in `[bridge]` of config.toml has it on")
    return "".join(f"{line}\n" for line in lines)


def _as_values(directory: str, found: DefinitionsScan, *, enabled: bool) -> dict[str, object]:
    return {
        "directory": directory,
        "enabled": enabled,
        "programs": [
            {
                "name": program.name,
                "description": program.description,
                "command": program.command,
                "source": program.source,
                "timeout_seconds": program.timeout_s,
                "cwd": program.cwd,
                "env": list(program.env),
                "max_args": program.max_args,
                "allow_options": program.allow_options,
            }
            for program in found.programs.values()
        ],
        "problems": [
            {
                "source": problem.source,
                "line": problem.line,
                "reason": problem.reason,
                "name": problem.name,
            }
            for problem in found.problems
        ],
    }
