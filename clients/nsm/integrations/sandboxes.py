"""Sandbox as adapters use it: made for its first use, called from threads, asyncio and trio."""

from __future__ import annotations

import errno
import os
import posixpath
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import trio

from nsm import AsyncClient, AsyncJob, NsmError
from nsm.client.background import BACKGROUND
from nsm.client.jobs import COLLECT_BYTES
from nsm.client.places import check_names
from nsm.client.sandbox import SandboxSettings
from nsm.client.shared_sandbox import CommandResult, execute, leased
from nsm.wire.errors import FileError, JobError, SessionEndedError, UnknownSessionError

if TYPE_CHECKING:
    import weakref
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Unpack

    from nsm.client.jobs import ProgramSettings
    from nsm.client.sandbox import AsyncSandbox
    from nsm.client.session_files import AsyncSessionFiles
    from nsm.wire.ports import PortRow

P = ParamSpec("P")
T = TypeVar("T")

STOP_S = 10.0
"""How long a cancelled call may take to stop its program."""

MAX_ARGUMENT_BYTES = 100_000
"""Size of a command that Linux takes as an argument; it has 128 KiB."""

GONE = (UnknownSessionError, SessionEndedError)
"""Errors of a sandbox that has ended, by its idle time or otherwise."""

CANNOT_START = {"ENOENT": 127, "EACCES": 126, "ENOEXEC": 126, "EISDIR": 126}
"""Exit codes that a shell gives where there is no such program, or it can't be started."""


class LazySandbox:
    """A sandbox that is made when it is first used, from any thread, asyncio or trio.

    It ends with `close`, when this object or the program ends, also if that is killed (on another
    machine by its idle time then), or when it was idle for as long as `idle_s` or the configuration
    says. It has labels that say which framework and which process it belongs to.

    Args:
        keep: the session outlives this object, and ends with the program.
        lasting: the session outlives the program, too, as one with a `name` does.
        framework: name of the framework: the session's scope, and its label ``owner``.
        session: id of a session that was made before, to use that one; None to make one.
        settings: as of `nsm.Client.sandbox`. By default it has Python and Bash, and no project.

    Attributes:
        session: id of the session; None before there is one.
    """

    def __init__(
        self,
        framework: str,
        *,
        session: str | None = None,
        socket_path: str | None = None,
        autostart: bool = True,
        keep: bool = False,
        lasting: bool = False,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        check_names(settings, SandboxSettings)
        self.session = session
        self._attach = session is not None
        self._keep = keep
        self._lasting = lasting or self._attach or settings.get("name") is not None
        self._client = AsyncClient(
            scope=framework,
            name=framework,
            socket_path=socket_path,
            autostart=autostart,
            project=None,
        )
        labels = {
            "owner": framework,
            "pid": str(os.getpid()),
            **(settings.get("labels") or {}),
        }
        self._settings: SandboxSettings = {"env": "python", **settings, "labels": labels}
        self._sandbox: AsyncSandbox | None = None
        self._ended_with_us: list[AsyncSandbox] = []
        self._ending: weakref.finalize[..., Any] | None = None
        self._opening: trio.Lock | None = None
        self._closed = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<nsm sandbox {self.session or 'not begun'}>"

    def do(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call one of the methods below, and wait in this thread."""
        return BACKGROUND.blocking(partial(function, *args, **kwargs), self._stop_lost)

    async def ado(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call one of the methods below, and await it under asyncio or trio."""
        return await BACKGROUND.awaited(partial(function, *args, **kwargs), self._stop_lost)

    def stop_soon(self, job: AsyncJob) -> None:
        """Stop a program, without waiting for its end."""
        BACKGROUND.start(partial(self.stop, job))

    # What follows runs in the background thread only.

    async def opened(self) -> AsyncSandbox:
        """The sandbox.

        Raises:
            UnknownSessionError: it was closed, or has ended.
            NsmError: it can't be made.
            RuntimeError: a parent of this process has made it.
        """
        if self._pid != os.getpid():
            raise RuntimeError(
                "a sandbox of nsm was used in a forked process: make another one there"
            )
        self._opening = self._opening or trio.Lock()
        async with self._opening:
            if self._closed:
                raise UnknownSessionError("this sandbox is closed", hint="Make a new one.")
            if self._sandbox is None:
                if self._ending is None:  # not connected
                    await self._client.__aenter__()
                    # The client is kept for its own end: it lasts as long as the program.
                    owner = self._client if self._keep and not self._lasting else self
                    self._ending = BACKGROUND.end_with(owner, self._client, self._ended_with_us)
                if self._attach:
                    sandbox = self._client.sandbox(**self._settings)
                    await self._attach_to(sandbox)
                else:
                    settings = self._settings
                    if not self._lasting:
                        settings = leased(self._client, settings)
                    sandbox = self._client.sandbox(**settings)
                    # Shielded: a session that nobody knows of would stay until it is idle.
                    with trio.CancelScope(shield=True):
                        await sandbox.__aenter__()
                self.session, self._sandbox = sandbox.id, sandbox
                if not self._lasting:
                    self._ended_with_us.append(sandbox)
            return self._sandbox

    async def _attach_to(self, sandbox: AsyncSandbox) -> None:
        assert self.session is not None, "it is to be attached to"
        for row in await self._client.sessions():
            if row.id == self.session and row.name is not None:
                sandbox.id, sandbox.name, sandbox.env, sandbox.labels = (
                    row.id,
                    row.name,
                    row.env,
                    row.labels,
                )
                sandbox.files = self._client.files(row.id)
                return
        raise UnknownSessionError(
            f"the session {self.session} has ended", hint="Make a new sandbox."
        )

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

    async def start(self, argv: Sequence[str], **settings: Any) -> AsyncJob:
        """Start a program, as `nsm.AsyncClient.exec`. If the caller is cancelled, it is stopped."""
        sandbox = await self.opened()
        with trio.CancelScope(shield=True):  # else nobody knows of a program that was started
            return await sandbox.exec(argv, **settings)
        raise AssertionError("what is shielded is not cancelled")

    async def execute(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        max_bytes: int = COLLECT_BYTES,
    ) -> CommandResult:
        """Run a program to its end. It is stopped if this is cancelled.

        Args:
            max_bytes: of output to keep; the rest is counted in `missing`.

        Raises:
            JobError: it can't be started; but a program that is missing or can't be executed has
                exit code 127 or 126.
        """
        settings: ProgramSettings = {"cwd": cwd, "environ": environ, "timeout_s": timeout_s}
        sandbox = await self.opened()
        try:
            return await execute(
                sandbox, argv, {**settings, "stdin": stdin}, max_bytes=max_bytes, on_output=None
            )
        except JobError as error:
            code = CANNOT_START.get(error.data.get("errno", ""))
            if code is None:
                raise
            text = f"{error.message}\n".encode()
            return CommandResult(b"", text, text, code, 0, timed_out=False, duration_s=0.0)

    async def shell(self, command: str, **settings: Any) -> CommandResult:
        """Run a command in Bash to its end, as `execute`, with its errors in its output."""
        return await self.execute(await self.shell_argv(command, "2>&1"), **settings)

    async def shell_argv(self, command: str, redirection: str = "") -> list[str]:
        """A program that has Bash run a command, which may be longer than Linux's arguments are."""
        data = command.encode("utf-8", "surrogateescape")
        if len(data) <= MAX_ARGUMENT_BYTES:
            return ["bash", "-c", f'exec bash -c "$1" {redirection}', "bash", command]
        script = f"/tmp/nsm-{os.urandom(8).hex()}.sh"  # noqa: S108  # of the session
        await self.write(script, data)
        run_it = f'exec 9<"$1"; rm -- "$1"; exec bash /dev/fd/9 {redirection}'
        return ["bash", "-c", run_it, "bash", script]

    async def open_port(self, port: int) -> PortRow:
        """Open a port on the host's loopback; one that is open stays where it is."""
        sandbox = await self.opened()
        for row in await self._client.ports.list(sandbox.id):
            if row.port == port and row.is_open:
                return row
        return await sandbox.open_port(port)

    async def _stop_lost(self, result: object) -> None:
        """Stop a program whose caller was cancelled while it was started."""
        if isinstance(result, AsyncJob):
            await self.stop(result)

    async def stop(self, job: AsyncJob) -> None:
        """Stop a program, with all that it has started, also if the caller is cancelled."""
        with trio.CancelScope(shield=True), trio.move_on_after(STOP_S), suppress(NsmError):
            await job.stop(grace_s=0)

    async def close(self) -> None:
        """End the sandbox. To close it twice, or without one, does nothing."""
        if self._opening is None:
            self._closed = True
            return
        async with self._opening:
            if self._closed:
                return
            self._closed = True
            if self._ending is not None:
                self._ending.detach()
            if self._sandbox is not None:
                await self._sandbox.aclose()
            await self._client.aclose()


def left_out(missing: int) -> str:
    """Note at the end of output that lacks this many bytes; empty if it lacks none."""
    return f"\n[{missing:,} bytes of the output are left out]\n" if missing else ""


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
