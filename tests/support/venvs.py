"""Virtual environments with made-up packages, which need no network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nsmd.model.values import Environment, ReadOnlyBind

WRITES = """
import os, pathlib
place = os.environ.get("PLOTS_DIR") or os.path.expanduser("~/.config/plots")
pathlib.Path(place).mkdir(parents=True, exist_ok=True)
pathlib.Path(place, "fonts.json").write_text("fonts")
STYLE = os.environ.get("PLOTS_STYLE", "none")
def save(text):
    pathlib.Path(place, "saved").write_text(text)
    return sorted(os.listdir(place))
"""
"""Module like matplotlib: it needs a writable directory while it is imported, and uses it later."""


def make_venv(directory: Path, modules: Mapping[str, str]) -> Path:
    """A virtual environment of the Python that presets find.

    Args:
        directory: for it.
        modules: source text by name.

    Returns:
        The directory of its packages.
    """
    interpreter = Path("/usr/bin/python3").resolve()
    (directory / "bin").mkdir()
    (directory / "bin/python3").symlink_to(interpreter)
    (directory / "pyvenv.cfg").write_text(f"home = {interpreter.parent}\n")
    version = interpreter.name.removeprefix("python") or "{}.{}".format(*sys.version_info)
    packages = directory / f"lib/python{version}/site-packages"
    packages.mkdir(parents=True)
    for name, source in modules.items():
        (packages / f"{name}.py").write_text(source)
    return packages


def make_project_venv(directory: Path, *packages: str) -> Path:
    """A virtual environment as `python3 -m venv` makes it, with packages like `numpy-1.26`.

    Returns:
        The directory of its packages.
    """
    command = ["/usr/bin/python3", "-m", "venv", "--without-pip", str(directory)]
    subprocess.run(command, check=True)
    (library,) = directory.glob("lib/python3*/site-packages")
    for package in packages:
        install(library, package)
    return library


def install(library: Path, package: str, *, chosen: bool = True) -> None:
    """Install a package with a module, which has its name and a `VERSION`."""
    name, _, version = package.partition("-")
    (library / f"{name}.py").write_text(f"VERSION = {version!r}\n")
    (library / f"{package}.dist-info").mkdir()
    if chosen:
        (library / f"{package}.dist-info" / "REQUESTED").touch()


def in_venv(python: Environment, directory: Path, *preload: str, **env: str) -> Environment:
    """An environment of a virtual environment from `make_venv`."""
    program = str(directory / "bin/python3")
    bind = ReadOnlyBind(source=str(directory), target=str(directory))
    return replace(
        python,
        name="science",
        agent_python=program,
        program=program,
        binds=(bind,),
        preload=preload,
        variables=tuple(env.items()),
    )
