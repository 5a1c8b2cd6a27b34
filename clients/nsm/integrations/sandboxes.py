"""Sandbox as adapters use it: `nsm.SharedSandbox`, with files and commands as frameworks know them.

What is awaited here runs in the background thread: adapters call it by `do` or `ado`.
"""

from __future__ import annotations

import errno
import posixpath
from typing import TYPE_CHECKING, ClassVar, TypeVar

from nsm import CommandResult, SharedSandbox
from nsm.wire.errors import FileError, SessionEndedError, UnknownSessionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import Any

    from nsm import AsyncSessionFiles, PortRow

T = TypeVar("T")

PIECE_CHARS = 30_000
"""Size of a command that surely is one argument of Linux's, which has at most 128 KiB."""

READ_S = 20.0
"""Time that one request waits for output of a program; then it is asked again."""

GONE = (UnknownSessionError, SessionEndedError)
"""Errors of a sandbox that has ended, by its idle time or otherwise."""

CANNOT_START = {"ENOENT": 127, "EACCES": 126, "ENOEXEC": 126, "EISDIR": 126}
"""Exit codes that a shell gives where there is no such program, or it can't be started."""

_JOINED = 'IFS=; eval "unset IFS; set --\n$*"'
"""Has a shell run its arguments, one after the other without blanks."""


class AdapterSandbox(SharedSandbox):
    """A sandbox that is made when it is first used, from any thread, asyncio or trio.

    It ends with `close`, when this object or the program ends, also if that is killed (on another
    machine by its idle time then), or when it was idle for as long as `idle_s` or the configuration
    says. It has labels that say which framework and which process it belongs to.

    Args:
        framework: name of the framework: the session's scope, and its label ``owner``.
        given: other arguments of `nsm.SharedSandbox`. By default it has Python and Bash, and no
            project.
    """

    cannot_start: ClassVar[Mapping[str, int]] = CANNOT_START

    def __init__(self, framework: str, **given: Any) -> None:
        super().__init__(owner=framework, scope=framework, **given)

    async def files(self, call: Callable[[AsyncSessionFiles], Awaitable[T]]) -> T:
        """Call something with the sandbox's files.

        Raises:
            OSError: it can't be done; of the type that Python has for that, such as
                `FileNotFoundError`.
        """
        files = (await self.opened()).files
        try:
            return await call(files)
        except FileError as error:
            number = getattr(errno, error.data.get("errno") or "", errno.EIO)
            raise OSError(number, str(error)) from error

    async def write(self, path: str, data: bytes) -> None:
        """Write a file as `open` does: through a link, with the directories that are missing.

        Raises:
            OSError: it can't be written.
        """

        async def write(files: AsyncSessionFiles) -> None:
            try:
                await files.write(path, data, parents=True)
            except FileError as error:
                if error.data.get("errno") == "EEXIST":  # a directory should be there
                    real = await resolved(files, path)
                    if real != path:  # a link leads to one
                        await files.write(real, data, parents=True)
                        return
                    error.data["errno"] = "ENOTDIR"
                if error.data.get("errno") != "ELOOP":
                    raise
                entry = await files.stat(path)
                await files.write(entry.path, data)

        await self.files(write)

    async def open_port(self, port: int) -> PortRow:
        """Open a port on the host's loopback; one that is open stays where it is."""
        return (await self.open_ports()).get(port) or await (await self.opened()).open_port(port)

    async def open_ports(self) -> dict[int, PortRow]:
        """The open ports, by their numbers in the session."""
        sandbox = await self.opened()
        rows = await self._client.ports.list(sandbox.id)
        return {row.port: row for row in rows if row.is_open}


def shell_words(command: str) -> list[str]:
    """Arguments that have a shell run a command, however long it is."""
    if len(command) <= PIECE_CHARS:
        return ["-c", command]
    starts = range(0, len(command), PIECE_CHARS)
    return ["-c", _JOINED, "bash", *(command[start : start + PIECE_CHARS] for start in starts)]


def merged_shell(command: str) -> list[str]:
    """A program that has Bash run a command, with its errors in its output."""
    return ["bash", "-c", 'exec bash "$@" 2>&1', "bash", *shell_words(command)]


def left_out(missing: int) -> str:
    """Note at the end of output that lacks this many bytes; empty if it lacks none."""
    return f"\n[{missing:,} bytes of the output are left out]\n" if missing else ""


def texts_of(done: CommandResult) -> tuple[str, str]:
    """Standard output and standard error, with a note if some of it is left out."""
    stdout, stderr = (each.decode(errors="replace") for each in (done.stdout, done.stderr))
    return stdout, stderr + left_out(done.missing)


async def resolved(files: AsyncSessionFiles, path: str) -> str:
    """Return a path of a session without links, as far as it leads to something."""
    missing: list[str] = []
    while True:
        try:
            entry = await files.stat(path or ".")
        except FileError as error:
            if error.data.get("errno") != "ENOENT" or not path.strip("/"):
                raise
            path, name = posixpath.split(path.rstrip("/"))
            missing.insert(0, name)
        else:
            return posixpath.join(entry.path, *missing)
