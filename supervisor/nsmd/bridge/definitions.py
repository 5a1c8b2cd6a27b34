"""One file as a program, or the reason why it describes none. Blocks."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from typing import NoReturn

from nsm.dataclass import dataclass
from nsm.wire.errors import BadProgramError
from nsmd.bridge.arguments import MAX_ARGUMENTS
from nsmd.bridge.commands import open_command
from nsmd.bridge.front_matter import FrontMatterError, Value, is_control, read
from nsmd.bridge.values import DEFAULT_TIMEOUT_S, Problem, Program
from nsmd.host.paths import printable
from nsmd.host.watching.trail import Trail

MAX_FILE_BYTES = 256 * 1024

MAX_DESCRIPTION_CHARACTERS = 500
"""Largest description: a line of a list; longer text is documentation."""

MAX_TIMEOUT_S = 86_400.0
"""A day."""

MAX_VARIABLES = 64

_MOST_READS = 3
"""Attempts to read a file that changes while it is read."""

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_definition(path: str, trail: Trail, home: str) -> Program | Problem:
    """Read a file's definition.

    Args:
        path: absolute path of the file, or of a link to it.
        trail: notes the paths on which the answer depends.
        home: home directory of the user, for `~`.
    """
    name: str | None = None
    try:
        parts = read(_content(path, trail))
        fields = _Fields(parts.values, home)
        name = fields.name()
        program = fields.program(name, parts.body, path)
        _check_places(program, trail, parts.values)
    except FrontMatterError as error:
        return Problem(source=path, reason=error.reason, line=error.line, name=name)
    return program


def _content(path: str, trail: Trail) -> bytes:
    """Read the content of a file.

    Raises:
        FrontMatterError: it cannot be read, or others can write it.
    """
    try:
        real = trail.follow(path)
        for _ in range(_MOST_READS):
            if (content := _read_once(real)) is not None:
                return content
    except OSError as error:
        raise FrontMatterError(_why(error)) from None
    raise FrontMatterError("it changes while it is read; it is read again after the next change")


def _read_once(path: str) -> bytes | None:
    """Read the content of a regular file; None if it changed meanwhile.

    Raises:
        FrontMatterError: it is no regular file, or too large.
        OSError: it cannot be read.
    """
    # Its type is checked before it is opened: opening a device may do something.
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            raise FrontMatterError("it is no file")
        fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(place)
    with open(fd, "rb", buffering=0) as file:
        before = state_of(fd)
        data = bytearray()
        while len(data) <= MAX_FILE_BYTES and (part := file.read(MAX_FILE_BYTES + 1 - len(data))):
            data += part
        if len(data) > MAX_FILE_BYTES:
            raise FrontMatterError(f"it is larger than {MAX_FILE_BYTES // 1024} KiB")
        return bytes(data) if state_of(fd) == before else None


def state_of(fd: int) -> tuple[int, int, int]:
    """Return the part of a file's state that a write changes."""
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _why(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "it is a link to nothing"
    return printable(f"{error.strerror}")


@dataclass(frozen=True, slots=True)
class _Fields:
    """Values of a front matter, with checks.

    Args:
        values: values by key.
        home: home directory of the user.
    """

    values: Mapping[str, Value]
    home: str

    def name(self) -> str:
        """Read the name.

        Raises:
            FrontMatterError: there is none, or it is invalid.
        """
        name = self._text("name")
        if not NAME.fullmatch(name):
            self._refuse(
                "name",
                f"`name` is {name!r:.80}: 1 to 64 lower-case letters, digits, `_` and `-` are "
                "expected, a letter or digit first",
            )
        return name

    def program(self, name: str, body: str, source: str) -> Program:
        """Make the program. Name and body were checked."""
        for key, value in self.values.items():
            if key not in KEYS:
                known = ", ".join(f"`{each}`" for each in KEYS)
                raise FrontMatterError(f"`{key:.80}` is not known; there are {known}", value.line)
        return Program(
            name=name,
            description=self._description(),
            command=self._path("command"),
            documentation=body,
            source=source,
            timeout_s=self._timeout_s(),
            cwd=self._path("cwd") if "cwd" in self.values else None,
            env=self._variables(),
            max_args=self._max_args(),
            allow_options=self._allow_options(),
            line=self.values["name"].line,
        )

    def _description(self) -> str:
        description = " ".join(self._text("description").split())
        if len(description) > MAX_DESCRIPTION_CHARACTERS:
            self._refuse(
                "description",
                f"`description` has {len(description)} characters; at most "
                f"{MAX_DESCRIPTION_CHARACTERS} are expected: the rest belongs below the front "
                "matter",
            )
        return description

    def _path(self, key: str) -> str:
        written = path = self._text(key)
        if path == "~" or path.startswith("~/"):
            path = self.home + path[1:]
        elif path.startswith("~"):
            self._refuse(key, f"`{key}` is {written!r:.200}: only `~/` is your home directory")
        if ".." in path:
            shown = written if ".." in written else path
            self._refuse(key, f"`{key}` is {shown!r:.200}: it must not contain `..`")
        if not os.path.isabs(path):
            self._refuse(key, f"`{key}` is {path!r:.200}: an absolute path is expected, or `~/...`")
        if len(os.fsencode(path)) > os.pathconf("/", "PC_PATH_MAX"):
            self._refuse(key, f"`{key}` is longer than a path can be")
        return path

    def _timeout_s(self) -> float:
        if "timeout_seconds" not in self.values:
            return DEFAULT_TIMEOUT_S
        value = self.values["timeout_seconds"].value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse("timeout_seconds", "`timeout_seconds` must be a number, as 300")
        if not 0 < value <= MAX_TIMEOUT_S:
            self._refuse(
                "timeout_seconds",
                f"`timeout_seconds` is {value}: more than 0 and at most {MAX_TIMEOUT_S:.0f} are "
                "expected",
            )
        return float(value)

    def _max_args(self) -> int | None:
        if "max_args" not in self.values:
            return None
        value = self.values["max_args"].value
        if isinstance(value, bool) or not isinstance(value, int):
            self._refuse("max_args", "`max_args` must be a whole number")
        if not 0 <= value <= MAX_ARGUMENTS:
            self._refuse("max_args", f"`max_args` is {value}: 0 to {MAX_ARGUMENTS} are expected")
        return value

    def _allow_options(self) -> bool:
        if "allow_options" not in self.values:
            return False
        value = self.values["allow_options"].value
        if not isinstance(value, bool):
            self._refuse("allow_options", "`allow_options` must be `true` or `false`")
        return value

    def _variables(self) -> tuple[str, ...]:
        if "env" not in self.values:
            return ()
        names = self.values["env"].value
        if not isinstance(names, tuple):
            self._refuse("env", "`env` must be a list of names, as [LANG, DEPLOY_TOKEN]")
        if len(names) > MAX_VARIABLES:
            self._refuse("env", f"`env` has {len(names)} names; at most {MAX_VARIABLES} are taken")
        chosen: list[str] = []
        for name in names:
            if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
                self._refuse(
                    "env",
                    f"`env` has {name!r:.80}: a variable's name is expected (its value is the "
                    "supervisor's own)",
                )
            chosen.append(name)
        return tuple(dict.fromkeys(chosen))

    def _text(self, key: str) -> str:
        if key not in self.values:
            raise FrontMatterError(f"`{key}` is missing", 1)
        value = self.values[key].value
        if value is None:
            self._refuse(key, f"`{key}` is empty")
        if isinstance(value, tuple):
            self._refuse(key, f"`{key}` is a list; one text is expected")
        if not isinstance(value, str):
            self._refuse(key, f"`{key}` must be text; put it in quotes")
        # YAML's escapes can write characters that the file itself may not have.
        value = value.strip()
        allowed = "\n\t" if key == "description" else ""
        if bad := next((c for c in value if is_control(c) and c not in allowed), None):
            self._refuse(key, f"`{key}` has the character U+{ord(bad):04X}")
        if not value:
            self._refuse(key, f"`{key}` is empty")
        return value

    def _refuse(self, key: str, reason: str) -> NoReturn:
        raise FrontMatterError(reason, self.values[key].line)


KEYS = (
    "name",
    "description",
    "command",
    "timeout_seconds",
    "cwd",
    "env",
    "max_args",
    "allow_options",
)
"""Keys that a front matter may have."""


def _check_places(program: Program, trail: Trail, values: Mapping[str, Value]) -> None:
    """Check the paths that a description names, and note what that depended on.

    Raises:
        FrontMatterError: it cannot be used.
    """
    _note(trail, program.command)
    try:
        open_command(program).close()
    except BadProgramError as error:
        raise FrontMatterError(
            f"`command`: {error.data['reason']}", values["command"].line
        ) from None
    if program.cwd is None:
        return
    _note(trail, program.cwd)
    if not os.path.isdir(program.cwd):
        raise FrontMatterError(
            f"`cwd` is {printable(program.cwd)}, which is no directory", values["cwd"].line
        )


def _note(trail: Trail, path: str) -> None:
    """Note a path, so that changes are noticed."""
    try:
        trail.follow(path, trusted=False)
    except OSError:
        return  # an error shows when it is used


def unique(found: list[Program | Problem]) -> tuple[list[Program], list[Problem]]:
    """Sort programs by name. Programs that share a name are dropped, with a problem."""
    programs = [each for each in found if isinstance(each, Program)]
    problems = [each for each in found if isinstance(each, Problem)]
    of_name: dict[str, list[Program]] = {}
    for program in programs:
        of_name.setdefault(program.name, []).append(program)
    alone: list[Program] = []
    for name, those in sorted(of_name.items()):
        if len(those) == 1:
            alone += those
            continue
        for each in those:
            others = ", ".join(printable(other.source) for other in those if other is not each)
            problems.append(
                Problem(
                    source=each.source,
                    reason=f"the name `{name}` is that of {others}, too: neither is used",
                    line=each.line,
                    name=name,
                )
            )
    return alone, problems
