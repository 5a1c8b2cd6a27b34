"""Programs on the caller's PATH: where they are, and what a box has to show for each to work.

A program outside of the system is shown with its own prefix and no more. HOME, directories above
it, and `~/.local` are never one: what lies beside a program there is not a part of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from nsm.box.facts import Tool

_SHEBANG = re.compile(rb"#![ \t]*([^\n]+)")
_NAME = re.compile(r"[\w.+@-]+")


class Programs:
    """Finds programs as a shell of the caller's would.

    Args:
        variables: the caller's.
        home: HOME.
        directory: the working directory.
        roots: what the box shows anyway: the system's directories and the working directory.
        standard: directories of the box's own PATH.
    """

    def __init__(
        self,
        *,
        variables: Mapping[str, str],
        home: str,
        directory: str,
        roots: tuple[str, ...],
        standard: tuple[str, ...],
    ) -> None:
        self._variables = variables
        self._home = home
        self._directory = directory
        self._roots = roots
        self._standard = standard
        self._search = [
            folder for folder in variables.get("PATH", "").split(":") if os.path.isabs(folder)
        ]
        self._found: dict[str, Tool | None] = {}

    def find(self, name: str) -> Tool | None:
        """A program by its name: the first on PATH that can be executed."""
        if name not in self._found:
            self._found[name] = None  # an interpreter of its own, in a circle
            place = next(self._places(name), None)
            self._found[name] = self._tool(name, place) if place else None
        return self._found[name]

    def at(self, path: str) -> Tool:
        """A program at a path."""
        return self._tool(os.path.basename(path), path)

    def needs(self, tool: Tool) -> Iterator[Tool]:
        """The interpreter of a script, and so on: what has to be in the box for it to start."""
        seen = {tool.path}
        interpreter = self._interpreter(tool.path)
        while interpreter is not None and interpreter.path not in seen:
            yield interpreter
            seen.add(interpreter.path)
            interpreter = self._interpreter(interpreter.path)

    def _places(self, name: str) -> Iterator[str]:
        for folder in self._search:
            path = os.path.join(folder, name)
            if not _is_program(path):
                continue
            if _is_shim(path):
                path = self._pyenv_version(folder, name)
                if not path:
                    continue
            yield path

    def _tool(self, name: str, place: str) -> Tool:
        path = os.path.realpath(place)
        folder = os.path.realpath(os.path.dirname(place))
        return Tool(
            name=name,
            place=place,
            path=path,
            shown=() if _within(path, self._roots) else prefixes(path, self._home),
            linked=folder not in self._standard,
        )

    def _interpreter(self, path: str) -> Tool | None:
        try:
            with open(path, "rb") as file:
                found = _SHEBANG.match(file.read(256))
        except OSError:
            return None
        if not found:
            return None
        words = os.fsdecode(found[1]).split()
        if os.path.basename(words[0]) == "env":
            names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            return self.find(names[0]) if names else None
        return self.at(words[0]) if os.path.isabs(words[0]) else None

    def _pyenv_version(self, shims: str, name: str) -> str:
        """What a shim of pyenv's would run, which asks pyenv itself: a shell script that needs
        all of it."""
        root = os.path.dirname(shims)
        for version in self._pyenv_versions(root):
            path = os.path.join(root, "versions", version, "bin", name)
            if _is_program(path):
                return path
        return ""

    def _pyenv_versions(self, root: str) -> Iterator[str]:
        chosen = self._variables.get("PYENV_VERSION", "")
        yield from filter(None, chosen.split(":"))
        folder = self._directory
        while not chosen:
            yield from _lines(os.path.join(folder, ".python-version"))
            if folder == "/":
                break
            folder = os.path.dirname(folder)
        yield from _lines(os.path.join(root, "version"))


def prefixes(path: str, home: str) -> tuple[str, ...]:
    """What belongs to a program: the directory that it was installed to, where that is plain;
    else the file alone.

    Args:
        path: all links followed; not of the system.
    """
    parts = path.split("/")
    if "node_modules" in parts:
        # Packages find their siblings there, so the package alone would not do.
        return ("/".join(parts[: parts.index("node_modules") + 1]),)
    folder, prefix = os.path.dirname(path), os.path.dirname(os.path.dirname(path))
    rustup = os.path.join(home, ".rustup")
    if folder == os.path.join(home, ".cargo/bin"):
        # `cargo` there is rustup, which runs one of its toolchains; ~/.cargo has credentials.
        return (path, *(p for p in (rustup,) if os.path.isdir(p)))
    if os.path.basename(folder) in ("bin", "sbin", "libexec") and _is_prefix(prefix, home):
        return (prefix,)
    if parts[1] == "opt" and len(parts) > 3:
        return ("/".join(parts[:3]),)
    return (path,)


def _is_prefix(prefix: str, home: str) -> bool:
    """Whether a directory is an installation and nothing more."""
    if prefix == "/" or _within(home, (prefix,)) or prefix == os.path.join(home, ".local"):
        return False
    if os.path.exists(os.path.join(prefix, ".git")):
        return False
    if os.path.dirname(prefix) != home:
        return os.path.isdir(os.path.join(prefix, "lib"))
    # A directory of HOME itself is often more than that: ~/.cargo has credentials.
    known = ("conda-meta", "pyvenv.cfg", "lib/node_modules", "pkg/tool")
    return any(os.path.exists(os.path.join(prefix, name)) for name in known)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_shim(path: str) -> bool:
    folder = os.path.dirname(path)
    return os.path.basename(folder) == "shims" and os.path.isdir(
        os.path.join(os.path.dirname(folder), "versions")
    )


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file.read(4096).splitlines()]
    except (OSError, ValueError):
        return []
    return [line for line in lines if _NAME.fullmatch(line)]


def _within(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)
