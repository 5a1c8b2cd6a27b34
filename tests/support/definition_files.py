"""Definitions and programs, written for a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsmd.bridge.programs import Program

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = "#!/bin/sh\necho hello\n"


def executable(path: Path, text: str = SCRIPT, mode: int = 0o755) -> Path:
    """A program at a path, in directories that are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def program(command: Path | str, **others: object) -> Program:
    """Make a definition, with the parts that matter to a test."""
    values: dict[str, object] = {
        "name": "deploy",
        "description": "Deploys it",
        "documentation": "# Deploy",
        "source": "/etc/passwd",
        "command": str(command),
        **others,
    }
    return Program(**values)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def definition(folder: Path, name: str, command: Path | str, *more: str, body: str = "") -> Path:
    """A definition file of a program with that name."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["---", f"name: {name}", f"description: Has {name} done", f"command: {command}"]
    path = folder / f"{name}.md"
    path.write_text("\n".join([*lines, *more, "---", body or f"# {name}", ""]))
    return path
