"""The Python packages in the stand-in's seed (tools/standin.py): copies of those in .venv.

Standard library only, as what imports it.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path


def requirements(project: Path) -> list[str]:
    """Read the requirements of nsm and of its build from its pyproject.toml."""
    told = tomllib.loads(project.read_text())
    return [*told["project"]["dependencies"], *told["build-system"]["requires"]]


def closure(wanted: Sequence[str]) -> dict[str, str]:
    """Versions by name of what is installed of these requirements and of those that they have.

    Markers are not evaluated, but for extras: what they rule out is not installed.
    """
    found: dict[str, str] = {}
    pending = list(wanted)
    done: set[str] = set()
    while pending:
        requirement = pending.pop()
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^]]*)])?", requirement)
        if match is None or requirement in done:
            continue
        done.add(requirement)
        name = re.sub(r"[-_.]+", "-", match[1]).lower()
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        extras = [extra.strip() for extra in (match[2] or "").split(",")]
        for needed in distribution.requires or ():
            condition = re.search(r"extra == ['\"]([^'\"]+)", needed)
            if condition is None or condition[1] in extras:
                pending.append(needed)
    return found


def copy(name: str, target: Path) -> None:
    """Copy an installed distribution, without programs and compiled modules."""
    for source, place in _files(name):
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target / place)


def _files(name: str) -> Iterator[tuple[str, Path]]:
    distribution = importlib.metadata.distribution(name)
    for file in distribution.files or ():
        if file.parts[0] != ".." and "__pycache__" not in file.parts:
            yield str(distribution.locate_file(file)), Path(file)
