"""Programs that only find another one and become it: what is behind them.

Version managers and installers put such shims on PATH. In a box a shim would need all of its
manager to find what the host has found, so the box has the other program in its place. Nothing is
run to find it; what managers keep is read, and what is not understood is no shim.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

_NAME = re.compile(r"[\w@+-][\w.@+-]*")
"""Name of a version, which cannot lead up."""

_OWN_PLACE = re.compile(r'"\$basedir/([^"$`\\]+)"')

_BASEDIR = 'basedir=$(dirname "$(echo "$0"'
"""How the wrappers of pnpm and npm's `cmd-shim` find themselves."""

_MAX_BYTES = 16384


def behind(path: str, variables: Mapping[str, str], directory: str) -> str | None:
    """The program that would run in the place of this one.

    Args:
        path: as PATH gives it.
        variables: the caller's.
        directory: the working directory, which may say which version is wanted.

    Returns:
        None where it is no shim; empty where nothing that is installed is behind it.
    """
    folder, name = os.path.split(path)
    root = os.path.dirname(folder)
    if os.path.basename(folder) == "shims":
        if os.path.isdir(os.path.join(root, "versions")):
            return _of_pyenv(root, name, variables, directory)
        if os.path.isdir(os.path.join(root, "installs")):
            return _of_installs(root, name)
    if os.path.basename(os.path.realpath(path)) == "volta-shim":
        return _of_volta(root, name)
    return _of_wrapper(path)


def _of_pyenv(root: str, name: str, variables: Mapping[str, str], directory: str) -> str:
    """pyenv, rbenv, nodenv: versions by the directory, then by the user."""
    for version in _pyenv_versions(root, variables, directory):
        path = os.path.join(root, "versions", version, "bin", name)
        if is_program(path):
            return path
    return ""


def _pyenv_versions(root: str, variables: Mapping[str, str], directory: str) -> Iterator[str]:
    manager = os.path.basename(root).lstrip(".")
    chosen = variables.get(f"{manager.upper()}_VERSION", "").split(":")
    yield from filter(_NAME.fullmatch, chosen)
    if any(chosen):
        return
    kind = {"rbenv": "ruby", "nodenv": "node"}.get(manager, "python")
    folder: str = directory
    while True:
        yield from _lines(os.path.join(folder, f".{kind}-version"))
        if folder == "/":
            break
        folder = os.path.dirname(folder)
    yield from _lines(os.path.join(root, "version"))


def _of_installs(root: str, name: str) -> str:
    """asdf and mise: the newest version of whatever has the program.

    Which one a directory wants is said in files of many kinds; both managers put the right one on
    PATH itself where they are activated, so that there is no shim.
    """
    installs = os.path.join(root, "installs")
    found = [
        (_in_order(version), path)
        for tool in _names(installs)
        for version in _names(os.path.join(installs, tool))
        if is_program(path := os.path.join(installs, tool, version, "bin", name))
    ]
    return max(found)[1] if found else ""


def _in_order(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:8]]


def _of_volta(root: str, name: str) -> str:
    """Volta: packages have directories of their own, node is by version."""
    tools = os.path.join(root, "tools")
    package = _told(os.path.join(tools, "user/bins", f"{name}.json"), "package")
    if package and ".." not in package:
        path = os.path.join(tools, "image/packages", package, "bin", name)
        return path if is_program(path) else ""
    version = _told(os.path.join(tools, "user/platform.json"), "node", "runtime")
    if _NAME.fullmatch(version):
        path = os.path.join(tools, "image/node", version, "bin", name)
        return path if is_program(path) else ""
    return ""


def _told(path: str, *keys: str) -> str:
    """A text in a file of Volta's; empty where there is none."""
    try:
        value: Any = json.loads(_beginning(path))
    except (ValueError, RecursionError):
        return ""
    for key in keys:
        value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def _of_wrapper(path: str) -> str | None:
    """A wrapper that runs a package's program, found by its own place."""
    if not _is_script(path) or _BASEDIR not in (text := _beginning(path)):
        return None
    folder = os.path.dirname(path)
    for place in reversed(_OWN_PLACE.findall(text)):
        program = os.path.normpath(os.path.join(folder, place))
        if "/node_modules/" in program and is_program(program):
            return program
    return None


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def is_program(path: str) -> bool:
    """Return whether the file can be executed."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    lines = (line.strip() for line in _beginning(path).splitlines())
    return [line for line in lines if _NAME.fullmatch(line)]


def _beginning(path: str) -> str:
    # A pipe in the working directory would be waited for without end.
    if not os.path.isfile(path):
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return ""
