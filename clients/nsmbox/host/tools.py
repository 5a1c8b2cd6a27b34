"""Programs on the caller's PATH: where they are, and what a box has to show for each to work.

A program outside of the system is shown with its own prefix and no more. HOME, directories above
it, and `~/.local` are never one: what lies beside a program there is not a part of it.

Version managers and installers put shims on PATH, which only find another program and become it. In
a box a shim would need all of its manager to find what the host has found, so the box has the other
program in its place. Nothing is run to find it; what managers keep is read, and what is not
understood is no shim.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from nsm.dataclass import replace
from nsmbox.host.facts import Tool
from nsmbox.protection import secrets

_NAME = re.compile(r"[\w@+-][\w.@+-]*")
"""Name of a version, which cannot lead up."""

_OWN_PLACE = re.compile(r'"\$basedir/([^"$`\\]+)"')

_BASEDIR = 'basedir=$(dirname "$(echo "$0"'
"""Code by which the wrappers of pnpm and npm's `cmd-shim` find themselves."""

_MAX_BYTES = 16384


def behind(path: str, variables: Mapping[str, str], directory: str) -> str | None:
    """The program that would run in the place of this one.

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


INSTALLATIONS = (
    ".asdf/installs",
    ".bun/install",
    ".local/share/mise/installs",
    ".local/share/pnpm",
    ".local/share/uv/python",
    ".nodenv/versions",
    ".npm-global",
    ".nvm/versions",
    ".pyenv/versions",
    ".rbenv/versions",
    ".rustup/toolchains",
    ".volta/tools",
    "anaconda3",
    "miniconda3",
    "miniforge3",
)
"""Below HOME: programs that others have written, and nothing else."""

ENVIRONMENTS = (".venv", "venv")
"""Virtual environments in the working directory, as they are usually called."""

_MAX_LINKS = 40
"""On one path; the kernel follows no more (path_resolution(7))."""

_SHEBANG = re.compile(rb"#![ \t]*([^\n]+)")


class ProgramFinder:
    """Finds programs as a shell of the caller's would.

    Args:
        writable: all directories of the user in which the box can write.
        roots: paths that the box shows anyway: the system's directories and the working directory.
        known: paths that no box shows: programs there are skipped.

    Attributes:
        hidden: names that were looked for, and where they were passed over.
    """

    def __init__(
        self,
        *,
        variables: Mapping[str, str],
        home: str,
        directory: str,
        writable: tuple[str, ...],
        roots: tuple[str, ...],
        standard: tuple[str, ...],
        known: secrets.Known,
    ) -> None:
        self._variables = variables
        self._home = home
        self._directory = directory
        self._writable = writable
        self._roots = roots
        self._standard = standard
        self._known = known
        self.hidden: dict[str, str] = {}
        self._search = [
            folder for folder in variables.get("PATH", "").split(":") if os.path.isabs(folder)
        ]
        self._found: dict[str, Tool | None] = {}

    def find(self, name: str) -> Tool | None:
        """A program by its name: the first on PATH that can be executed. `python` may be `python3`,
        since people and models type that."""
        if name not in self._found:
            self._found[name] = None  # an interpreter of its own, in a circle
            place = next(self._places(name), None)
            self._found[name] = self._tool(name, place) if place else None
            if name == "python" and not place and (python3 := self.find("python3")):
                self._found[name] = replace(python3, name=name, linked=True)
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
            if not is_program(path):
                continue
            found = behind(path, self._variables, self._directory)
            if found is None:
                found = path
            if found and not self.is_for_boxes(found, told_by=path):
                self.hidden.setdefault(name, path)
            elif found:
                yield found

    def is_for_boxes(self, place: str, told_by: str = "") -> bool:
        """Return whether a box may see the target of a path.

        Args:
            told_by: the file that has the path in it; empty for the user.
        """
        path = os.path.realpath(place)
        if secrets.holder(self._known, path):
            return False
        shown = (path, self._environment(place, path) or path)
        if all(_in_one_of(each, self._roots) for each in shown):
            return True
        if not self._is_of_project(place) and not (told_by and self._is_of_project(told_by)):
            return True
        # A box may have written that there: it must not say what of the user's is shown.
        places = (os.path.join(self._home, each) for each in INSTALLATIONS)
        allowed = (*self._roots, "/opt", *places)
        return all(_in_one_of(each, allowed) for each in shown)

    def _is_of_project(self, path: str) -> bool:
        # Where its links lead to is not enough: `.venv` may be one, too.
        return any(_in_one_of(step, self._writable) for step in _steps(path))

    def environments(self) -> Iterator[Tool]:
        """Yield the outside paths that Pythons of the project's virtual environments need."""
        for name in ENVIRONMENTS:
            place = os.path.join(self._directory, name, "bin/python")
            if is_program(place) and self.is_for_boxes(place):
                tool = self._tool(name, place)
                if tool.environment and tool.shown:
                    yield replace(tool, linked=False)

    def _tool(self, name: str, place: str) -> Tool:
        path = os.path.realpath(place)
        folder = os.path.realpath(os.path.dirname(place))
        environment = self._environment(place, path)
        whole = os.path.dirname(folder)
        return Tool(
            name=name,
            place=place,
            path=path,
            shown=(
                *(() if _in_one_of(path, self._roots) else prefixes(path, self._home)),
                *((whole,) if environment and not _in_one_of(whole, self._roots) else ()),
                *(self._other_name(whole) if environment else ()),
            ),
            linked=folder not in self._standard,
            environment=environment,
        )

    def _environment(self, place: str, path: str) -> str:
        """Find the program's environment, as `Tool` has it; empty, too, for one that cannot be
        shown as a whole."""
        folder = os.path.realpath(os.path.dirname(place))
        whole = os.path.dirname(folder)
        if _in_one_of(path, (whole,)) or not os.path.isfile(os.path.join(whole, "pyvenv.cfg")):
            return ""
        if not _in_one_of(whole, self._roots) and (
            not _is_prefix(whole, self._home) or secrets.holder(self._known, whole)
        ):
            return ""
        return os.path.join(folder, os.path.basename(place))

    def _other_name(self, environment: str) -> tuple[str, ...]:
        """Path of an environment's Python by a link, as uv makes them: `3.12` for `3.12.4`."""
        try:
            with open(os.path.join(environment, "pyvenv.cfg"), encoding="utf-8") as file:
                lines = [line.partition("=") for line in file.read(4096).splitlines()]
        except (OSError, UnicodeDecodeError):
            return ()
        folder = next((value.strip() for key, _, value in lines if key.strip() == "home"), "")
        prefix = os.path.dirname(folder)
        places = tuple(os.path.join(self._home, each) for each in INSTALLATIONS)
        is_link = prefix == os.path.normpath(prefix) and os.path.islink(prefix)
        if (
            is_link
            and os.path.dirname(prefix) in places
            and _in_one_of(os.path.realpath(prefix), places)
        ):
            return (prefix,)
        return ()

    def _interpreter(self, path: str) -> Tool | None:
        try:
            with open(path, "rb") as file:
                found = _SHEBANG.match(file.read(256))
        except OSError:
            return None
        if not found:
            return None
        words = os.fsdecode(found[1]).split()
        if not words:
            return None
        if os.path.basename(words[0]) == "env":
            names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
            return self.find(names[0]) if names else None
        if not os.path.isabs(words[0]) or not is_program(words[0]):
            return None
        return self.at(words[0]) if self.is_for_boxes(words[0], told_by=path) else None


def prefixes(path: str, home: str) -> tuple[str, ...]:
    """List the directories of a program: the one it was installed to, where that is plain; else the
    file alone.
    """
    parts = path.split("/")
    for place, part in enumerate(parts):
        if part in ("node_modules", ".pnpm"):
            # Packages find their siblings there, so the package alone would not do.
            return ("/".join(parts[: place + 1]),)
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
    """Return whether a directory is an installation and nothing more."""
    if prefix == "/" or _in_one_of(home, (prefix,)) or prefix == os.path.join(home, ".local"):
        return False
    if os.path.exists(os.path.join(prefix, ".git")):
        return False
    if os.path.dirname(prefix) != home:
        return os.path.isdir(os.path.join(prefix, "lib"))
    # A directory of HOME itself is often more than that: ~/.cargo has credentials.
    known = ("conda-meta", "pyvenv.cfg", "lib/node_modules", "pkg/tool")
    return any(os.path.exists(os.path.join(prefix, name)) for name in known)


def _steps(path: str) -> Iterator[str]:
    """Yield the kernel's steps along an absolute path: each without links above it."""
    here, ahead, links = "/", path.split("/")[::-1], 0
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = os.path.dirname(here)
        elif name not in ("", "."):
            step = os.path.join(here, name)
            yield step
            target = _read_link(step)
            if not target:
                here = step
                continue
            links += 1
            if links > _MAX_LINKS:
                return
            ahead += target.split("/")[::-1]
            here = "/" if target.startswith("/") else here


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # it is none
        return ""


def _in_one_of(path: str, roots: tuple[str, ...]) -> bool:
    return any(secrets.within(path, root) for root in roots)
