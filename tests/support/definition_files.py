"""Definitions and programs, written for a test."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from nsmd.bridge.programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable
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


# What may lie at a path where a file is expected.


def nothing(_: Path) -> None:
    """A file that is missing."""


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o700)


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as it:
        it.bind(str(path))
    path.chmod(0o700)


def with_mode(mode: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        executable(path, mode=mode)

    return make


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)
