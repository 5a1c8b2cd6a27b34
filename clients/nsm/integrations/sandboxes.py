"""Sandbox as adapters use it: `nsm.SharedSandbox`, with files and commands as frameworks know them.

What is awaited here runs in the background thread: adapters call it by `do` or `ado`.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, TypeVar

import trio

from nsm import CommandResult, SharedSandbox
from nsm.wire.code import split_place
from nsm.wire.errors import BadRequestError, FileError, SessionEndedError, UnknownSessionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any

    from nsm import AsyncSandbox, AsyncSessionFiles, JobChunk, PortRow, ProgramSettings, RunResult

T = TypeVar("T")

PIECE_CHARS = 30_000
"""Size of a command that surely is one argument of Linux's, which has at most 128 KiB."""

READ_S = 20.0
"""Time that one request waits for output of a program; then it is asked again."""

GONE = (UnknownSessionError, SessionEndedError)
"""Errors of a sandbox that has ended, by its idle time or otherwise."""

CANNOT_START = {"ENOENT": 127, "EACCES": 126, "ENOEXEC": 126, "EISDIR": 126}
"""Exit codes that a shell gives where there is no such program, or it can't be started."""

IMAGE_SHELL = 'command -v bash >/dev/null 2>&1 && exec bash "$@"; exec sh "$@"'
"""Runs Bash, or sh where there is no Bash."""

_SHELLS = (
    ["sh", "-c"], ["bash", "-c"], ["bash", "--login", "-c"], ["sh", "-c", IMAGE_SHELL, "sh", "-c"]
)  # fmt: skip
"""Beginnings of programs that have a shell run a command."""

_JOINED = 'IFS=; eval "unset IFS; set --\n$*"'
"""Has a shell run its arguments, one after the other without blanks."""


class AdapterSandbox(SharedSandbox):
    """A sandbox that is made when it is first used, from any thread, asyncio or trio.

    It ends with `close`, when this object or the program ends, also if that is killed (on another
    machine by its idle time then), or when it was idle for as long as `idle_s` or the configuration
    says. It has labels that say which framework and which process it belongs to.

    Args:
        framework: name of the framework: the session's scope, and its label ``owner``.
        fresh: have Python programs (`python_code` says which) run in fresh interpreters of one
            session, which this process's sandboxes of the same settings share, until something
            else is done with this sandbox: only then it gets a session of its own.
        given: other arguments of `nsm.SharedSandbox`. By default it has Python and Bash, and no
            project.
    """

    cannot_start: ClassVar[Mapping[str, int]] = CANNOT_START

    def __init__(self, framework: str, *, fresh: bool = False, **given: Any) -> None:
        super().__init__(owner=framework, scope=framework, **given)
        self._fresh = fresh
        self._made_of: dict[str, Any] = {
            "framework": framework,
            "socket_path": given.get("socket_path"),
        }

    async def made(self) -> AsyncSandbox:
        """The session; with `fresh`, the shared one."""
        if self._fresh:
            return await self._in_shared(lambda shared: shared.opened())
        return await super().made()

    async def find_env(self) -> None:
        """Find the environment, where the settings do not name it."""

    async def run_program(
        self,
        argv: Sequence[str],
        settings: ProgramSettings,
        max_bytes: int,
        on_output: Callable[[JobChunk], object] | None,
    ) -> CommandResult:
        """Run a program to its end, in a fresh interpreter if that is wanted and possible."""
        code = None
        needs = {name for name, value in settings.items() if value} - {"stdin", "timeout_s"}
        if self._fresh and not (self.session or self.closed or needs or on_output):
            code = python_code(argv, settings.get("stdin"))
        if code is None:
            return await super().run_program(argv, settings, max_bytes, on_output)
        result = await self._in_shared(lambda shared: shared.run(code, settings.get("timeout_s")))
        stdout, stderr = without_displays(result).encode(), result.stderr.encode()
        missing = sum(each.omitted_bytes for each in result.truncated.values())
        ended = (result.exit_code, missing, result.timed_out, result.duration_s)
        return CommandResult(stdout, stderr, stdout + stderr, *ended)

    async def _in_shared(self, step: Callable[[FreshSession], Awaitable[T]]) -> T:
        """Do something with the session that sandboxes of these settings share."""
        await self.find_env()
        settings: dict[str, Any] = {**self._settings, "name": None}
        del settings["labels"]
        key = repr((self._made_of, sorted(settings.items())))
        _SHARED.set(shared := _SHARED.get({}))
        while (session := shared.get(key)) is not None:
            try:
                return await step(session)
            except UnknownSessionError:  # it was idle and has ended: nothing was done
                if shared.get(key) is session:
                    del shared[key]
        shared[key] = FreshSession(**self._made_of, **settings)
        return await step(shared[key])

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


class FreshSession(AdapterSandbox):
    """A session for programs of many sandboxes: as many at once as there are processors."""

    def __init__(self, framework: str, **given: Any) -> None:
        super().__init__(framework, **given)
        self._turns = trio.CapacityLimiter(os.cpu_count() or 1)
        self._is_python = False

    async def opened(self) -> AsyncSandbox:
        """The sandbox. Raise BadRequestError if its environment is not one of Python."""
        sandbox = await super().opened()
        if not self._is_python:
            runs = {row.name: row.interpreter for row in await self._client.envs()}
            if runs.get(sandbox.env) != "python":
                raise BadRequestError(
                    f"The environment {sandbox.env!r} is not one of Python, as `fresh` needs.",
                    hint="Name another one with `env`, or leave `fresh` out.",
                )
            self._is_python = True
        return sandbox

    async def run(self, code: str, timeout_s: float | None) -> RunResult:
        """Run a program, as `nsm.AsyncSandbox.run`."""
        sandbox = await self.opened()
        async with self._turns:
            return await sandbox.run(code, timeout_s=timeout_s, fresh=True)


_SHARED: trio.lowlevel.RunVar[dict[str, FreshSession]] = trio.lowlevel.RunVar("shared sessions")
"""By their settings. They are of a run of trio: a forked process has none of its parent's."""


def python_code(argv: Sequence[str], stdin: object) -> str | None:
    """Return the code of a program that is Python without options, arguments and input, or None.

    It is ``python -c CODE``, or ``python -`` with the code as its input. It may be the command of a
    shell, if there is nothing in it for the shell to do, as in what `shlex.join` makes.
    """
    words = list(argv)
    if words[:-1] in _SHELLS:
        with suppress(ValueError):  # a quote is open
            words = shlex.split(words[-1])
        if shlex.join(words) != argv[-1]:
            return None
    match words:
        case ["python" | "python3", "-c", code] if not stdin:
            return code
        case ["python" | "python3", "-"] if isinstance(stdin, bytes):
            return stdin.decode(errors="replace")
        case _:
            return None


def without_displays(result: RunResult) -> str:
    """Standard output without the text that stands there for displayed values and figures, which
    Python alone would not print.
    """
    text = result.stdout
    for bundle in result.displays:
        data, place = split_place(bundle)
        if place is not None:
            shown = f"[image {place}]" if place else data.get("text/plain")
            text = text.replace(f"{shown}\n", "", 1)
    return text


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
