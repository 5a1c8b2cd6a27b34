"""Check of a program's file and its owners; exactly the file that was checked is started.

A command is refused if anybody but the user and root could exchange it, or anything on the way to
it. An agent in a box runs as the user, so places that the box can write are refused for it, too.
All of this blocks.

A binary is executed by its descriptor (`/proc/self/fd/N`), so nobody can exchange it any more. A
script is executed by its path, since most begin with `dirname "$0"`. So the child compares the way
to it (device, inode and change time of the file and of each link) right before `execve`, and the
monitor right after. If it differs, the program isn't started, or is killed. That suffices since
every part of the way belongs to the user or root: only they could exchange anything. The user's own
processes have a millisecond between the last look and the interpreter's.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Self

from nsm import paths
from nsm.wire.errors import BadProgramError
from nsm.wire.tuples import NamedTuple
from nsmd.bridge.path_walk import Way, Ways, state_of, state_on_way, walk
from nsmd.bridge.programs import Program
from nsmd.host.paths import is_within, printable, trusted_owners, why_replaceable

MAX_INTERPRETERS = 4
"""Largest number of interpreters that are scripts themselves: as many as Linux follows (exec_binprm
of fs/exec.c).
"""

MAX_FIRST_LINE_BYTES = 256
"""Bytes of a script that Linux reads (BINPRM_BUF_SIZE)."""

_ESCAPED = re.compile(r"\\([0-7]{3})")

_ELF = b"\x7fELF"
_ACCESS_LIST = "system.posix_acl_access"


class Command:
    """A program's file, checked and held open; made by `open_command`: its descriptor, closed in
    other programs (O_CLOEXEC); its path as written, which the program gets as its own name; and the
    checked ways of that path, and of its interpreters' if it is a script.
    """

    __slots__ = ("fd", "path", "script", "ways")

    def __init__(self, fd: int, path: str, ways: Ways, *, script: bool) -> None:
        self.fd = fd
        self.path = path
        self.script = script
        self.ways = ways

    def __repr__(self) -> str:
        return f"<Command {self.path} fd={self.fd}{' script' if self.script else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be repeated."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class CommandError(Exception):
    """A command cannot be started; the message is a clause that says why."""

    hint = "The user of this machine can see with `nsm bridge check` what is wrong."


class WithinReachError(CommandError):
    """The client could have written the file itself."""

    hint = (
        "The user of this machine can move the program, its definition and links to them to where "
        "the client cannot write."
    )


def open_command(
    program: Program, writable: Sequence[str] = (), *, search_path: str = ""
) -> Command:
    """Check a program's file, and keep it open until the command is closed. A `BadProgramError`
    says that it cannot be started; its `data` has the `reason` as a clause.

    `writable` are absolute directories and files that the caller can write to: nothing that lies or
    is described there is started, and none of the directories of the program's PATH may be there
    either.
    """
    try:
        reach = WriteAccess(writable)
        if writable:
            _check_definition(program, reach)
            _check_search_path(program, search_path, reach)
        return _open(program.command, reach)
    except CommandError as error:
        raise BadProgramError(
            f"Program '{program.name}' is not started: {error}.",
            hint=error.hint,
            data={"program": program.name, "reason": str(error)},
        ) from None


def _open(path: str, reach: WriteAccess) -> Command:
    """Open and check a command."""
    fd, ways = _open_checked(path, trusted_owners(), reach, MAX_INTERPRETERS)
    return Command(fd, path, ways, script=len(ways) > 1)


def _open_checked(
    path: str, owners: Collection[int], reach: WriteAccess, interpreters: int
) -> tuple[int, Ways]:
    """Open a program whose whole way can be trusted. Returns its descriptor, that way, and the ways
    of its interpreters.
    """
    folder = ""
    folder_mode = 0
    way: Way = ()

    def step(part: str, status: os.stat_result, fd: int) -> None:
        nonlocal folder, folder_mode, way
        directory = stat.S_ISDIR(status.st_mode)
        if reason := why_replaceable(part, status, owners, may_be_shared=directory):
            raise CommandError(printable(reason))
        if reason := _why_listed(part, status):
            raise CommandError(printable(reason))
        _check_reach(reach, part, status, fd)
        way += state_on_way(part, status)
        if directory:
            folder, folder_mode = part, status.st_mode

    try:
        fd = walk(path, step)
    except OSError as error:
        raise CommandError(f"{printable(path)}: {error.strerror}") from None
    except ValueError:
        raise CommandError(f"{printable(path)} cannot be a path") from None
    try:
        _check_file(path, fd, folder, folder_mode)
        way += state_of(os.fstat(fd))
        start = _first_bytes(fd)
        if start is None or start.startswith(_ELF):
            return fd, ((path, way),)
        further = _check_interpreter(path, start, owners, reach, interpreters)
    except BaseException:
        os.close(fd)
        raise
    return fd, ((path, way), *further)


def _check_file(path: str, fd: int, folder: str, folder_mode: int) -> None:
    """Check a program's file, by its descriptor and the directory that it lies in."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise CommandError(f"{printable(path)} is not a file")
    if not os.access(f"/proc/self/fd/{fd}", os.X_OK):
        raise CommandError(
            f"{printable(path)} is not executable, or on a file system where nothing is"
        )
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        # It also has more rights than the user. Somebody who wants that can write a script that
        # calls it.
        raise CommandError(
            f"{printable(path)} runs as user {status.st_uid} (set-user-ID), so nsm could not stop "
            "it"
        )
    if folder_mode & stat.S_ISVTX and folder_mode & stat.S_IWOTH:
        # Nobody else can move a file of ours there, but anybody could have taken its name before.
        raise CommandError(f"{printable(folder)}, where it lies, is writable by everyone")


def _why_listed(part: str, status: os.stat_result) -> str | None:
    """Return why an access list may let others write. If there is a list, the group's bits are the
    most that anybody in it has (acl(5)).
    """
    if not status.st_mode & stat.S_IWGRP or status.st_mode & stat.S_ISVTX:
        return None
    try:
        os.getxattr(part, _ACCESS_LIST, follow_symlinks=False)
    except OSError:
        return None  # there is none
    return f"{part} has an access list that lets others write (see getfacl)"


def _first_bytes(fd: int) -> bytes | None:
    """Read the first bytes of a file; None if it may be executed but not read."""
    try:
        readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return None
    try:
        return os.read(readable, MAX_FIRST_LINE_BYTES)
    finally:
        os.close(readable)


def _check_interpreter(
    path: str, start: bytes, owners: Collection[int], reach: WriteAccess, interpreters: int
) -> Ways:
    """Check the interpreter of a script like the script. Returns its way, and those of its own
    interpreters.
    """
    if not start.startswith(b"#!"):
        raise CommandError(
            f"{printable(path)} is neither a program (ELF) nor a script that begins with `#!` and "
            "its interpreter"
        )
    line, newline, _ = start[2:].partition(b"\n")
    words = re.split(rb"[ \t]+", line.strip(b" \t"))
    if not words[0] or not (newline or len(start) < MAX_FIRST_LINE_BYTES or len(words) > 1):
        raise CommandError(f"{printable(path)} has no interpreter in its first line")
    interpreter = os.fsdecode(words[0])
    if interpreter.endswith("\r"):
        raise CommandError(
            f"{printable(path)} ends its first line with a carriage return, as on Windows: a "
            "newline alone is expected"
        )
    if not os.path.isabs(interpreter):
        raise CommandError(
            f"{printable(path)} has {printable(interpreter)} as its interpreter: an absolute path "
            "is expected"
        )
    if not interpreters:
        raise CommandError(f"{printable(path)}: its interpreter is a script, and so is that one's")
    try:
        fd, ways = _open_checked(interpreter, owners, reach, interpreters - 1)
    except CommandError as error:
        raise type(error)(f"its interpreter: {error}") from None
    os.close(fd)
    return ways


def _check_reach(reach: WriteAccess, part: str, status: os.stat_result, fd: int) -> None:
    """Check that the caller cannot write a part of the way."""
    if reason := reach.why_within(part, status, fd):
        raise WithinReachError(printable(reason))


def _check_definition(program: Program, reach: WriteAccess) -> None:
    """Check that the caller cannot write the definition."""
    try:
        os.close(walk(program.source, partial(_check_reach, reach)))
    except OSError as error:
        raise CommandError(f"{printable(program.source)}: {error.strerror}") from None


def _check_search_path(program: Program, search_path: str, reach: WriteAccess) -> None:
    """Check that the caller cannot write to directories of PATH."""
    for directory in search_path.split(":") if search_path else ():
        # An empty entry is the working directory. A missing one could be made.
        place = os.path.join(program.cwd or paths.home(), directory)
        while not os.path.exists(place):
            place = os.path.dirname(place)
        with suppress(OSError):
            os.close(walk(place, partial(_check_reach, reach)))


class _Location(NamedTuple):
    """Position of a file: major and minor number of its device, and the path from the root of that
    file system, wherever it is mounted.
    """

    file_system: str
    path: str


class WriteAccess:
    """Write access of a client to absolute directories and files, by any path that names them.
    Missing ones are compared by name alone.

    An agent in a box writes to its working directory. A program that lies there, or whose path
    leads through it, could be the agent's own, run outside of the box. The same directory may be
    mounted elsewhere, and a file may have a second name. So places are compared by their position
    in their file system.
    """

    def __init__(self, writable: Sequence[str]) -> None:
        self._paths = {os.path.normpath(path) for path in writable}
        self._paths |= {os.path.realpath(path) for path in writable}
        self._mounts = _mounts() if writable else {}
        self._locations: set[_Location] = set()
        for path in self._paths:
            with suppress(OSError):
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
                try:
                    location = self._location(os.path.realpath(path), fd)
                finally:
                    os.close(fd)
                if location is not None:
                    self._locations.add(location)

    def __repr__(self) -> str:
        return f"<WriteAccess to {sorted(self._paths)}>"

    def why_within(self, part: str, status: os.stat_result, fd: int) -> str | None:
        """Return why a file is within reach, as a clause; None if it is not. Its absolute path has
        no links in its directories.
        """
        if not self._paths:
            return None
        if any(is_within(part, path) for path in self._paths):
            return f"{part} lies where the client that asks can write"
        location = self._location(part, fd)
        if location is not None and any(
            location.file_system == there.file_system and is_within(location.path, there.path)
            for there in self._locations
        ):
            return f"{part} is mounted from where the client that asks can write"
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and status.st_uid == _writer():
            return f"{part} has {status.st_nlink} names (hard links), and the client may have one"
        return None

    def _location(self, part: str, fd: int) -> _Location | None:
        mount = self._mounts.get(_mount_id(fd))
        if mount is None:
            return None
        inside = os.path.relpath(part, mount.at) if is_within(part, mount.at) else "."
        return _Location(mount.file_system, os.path.normpath(os.path.join(mount.root, inside)))


class _Mount(NamedTuple):
    """A line of `mountinfo`."""

    file_system: str
    root: str
    at: str


def _mounts() -> dict[int, _Mount]:
    """Mounts by id, proc_pid_mountinfo(5); empty if they cannot be read."""
    found: dict[int, _Mount] = {}
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            number, _, file_system, root, at, *_ = os.fsdecode(line).split(" ")
            found[int(number)] = _Mount(file_system, _plain(root), _plain(at))
    return found


def _mount_id(fd: int) -> int:
    with suppress(OSError), open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            if line.startswith("mnt_id:"):
                return int(line.partition(":")[2])
    return -1


def _plain(escaped: str) -> str:
    """Unescape a path: blanks and backslashes are octal numbers there."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), escaped)


def _writer() -> int:
    """The host user of code in boxes: it can write no file of another user. Root has no boxes, and
    too many files with several names.
    """
    return os.geteuid() or -1
