"""Directories laid out like artifacts, whose programs do nothing: to be found, not to be run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PROGRAM = "#!/bin/sh\necho this must never be run in these tests >&2; exit 1\n"


def artifact(
    folder: Path, directory: str = "science", *, programs: tuple[str, ...] = (), **facts: Any
) -> Path:
    """A directory laid out like an artifact, of the older schema unless facts say more.

    Args:
        folder: where.
        directory: its own name, and the environment's unless facts say another.
        programs: beside `run` and `session-run`.
        facts: of its metadata.
    """
    path = folder / directory
    (path / "bin").mkdir(parents=True)
    for program in ("run", "session-run", *programs):
        (path / "bin" / program).write_text(PROGRAM)
        (path / "bin" / program).chmod(0o755)
    said = {"name": directory, "interpreter_type": "python", **facts}
    (path / "metadata.json").write_text(json.dumps(said))
    return path
