"""Sandbox as adapters use it: made for its first use, called from threads, asyncio and trio."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import trio

from nsm import AsyncClient, NsmError
from nsm.client.job_steps import COLLECT_BYTES
from nsm.integrations.background import BACKGROUND
from nsm.wire.errors import JobError, SessionEndedError, UnknownSessionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Unpack

    from nsm import AsyncJob
    from nsm.client.async_sandbox import AsyncSandbox
    from nsm.client.sandbox import SandboxSettings

T = TypeVar("T")

STOP_S = 10.0
"""How long a cancelled call may take to stop its program."""

GONE = (UnknownSessionError, SessionEndedError)
"""Errors of a sandbox that has ended, by its idle time or otherwise."""

_CANNOT_START = {"ENOENT": 127, "EACCES": 126, "ENOEXEC": 126, "EISDIR": 126}
"""Exit codes that a shell gives where there is no such program, or it can't be started."""


class Finished(NamedTuple):
    """A program that has ended.

    Attributes:
        exit_code: as a shell has it.
        missing: bytes of output that are left out.
        timed_out: it was stopped at its time limit.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    missing: int = 0
    timed_out: bool = False


class LazySandbox:
    """A sandbox that is made when it is first used, from any thread, asyncio or trio.

    It ends with `close`, or when it was idle for as long as `idle_s` or the configuration says. It
    has labels that say which framework and which process it belongs to.

    Args:
        framework: name of the framework: the session's scope, and a label.
        session: id of a session that was made before, to use that one; None to make one.
        settings: as of `nsm.Client.sandbox`. By default it has Bash, and no project.

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
        **settings: Unpack[SandboxSettings],
    ) -> None:
        self.session = session
        self._attach = session is not None
        self._client = AsyncClient(
            scope=framework,
            name=framework,
            socket_path=socket_path,
            autostart=autostart,
            project=None,
        )
        labels = {
            "framework": framework,
            "owner": str(os.getpid()),
            **(settings.get("labels") or {}),
        }
        self._settings: SandboxSettings = {"env": "bash", **settings, "labels": labels}
        self._sandbox: AsyncSandbox | None = None
        self._opening: trio.Lock | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<nsm sandbox {self.session or 'not begun'}>"

    def do(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Call one of the methods below, and wait in this thread."""
        return BACKGROUND.blocking(partial(function, *args, **kwargs))

    async def ado(self, function: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        """Call one of the methods below, and await it under asyncio or trio."""
        return await BACKGROUND.awaited(partial(function, *args, **kwargs))

    # What follows runs in the background thread only.

    async def opened(self) -> AsyncSandbox:
        """The sandbox.

        Raises:
            UnknownSessionError: it was closed, or has ended.
            NsmError: it can't be made.
        """
        self._opening = self._opening or trio.Lock()
        async with self._opening:
            if self._closed:
                raise UnknownSessionError("this sandbox is closed", hint="Make a new one.")
            if self._sandbox is None:
                if self._client.server is None:
                    await self._client.__aenter__()
                sandbox = self._client.sandbox(**self._settings)
                if self._attach:
                    await self._attach_to(sandbox)
                else:
                    # Shielded: a session that nobody knows of would stay until it is idle.
                    with trio.CancelScope(shield=True):
                        await sandbox.__aenter__()
                self.session, self._sandbox = sandbox.id, sandbox
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

    async def start(self, argv: Sequence[str], **settings: Any) -> AsyncJob:
        """Start a program, as `nsm.AsyncClient.exec`; what the caller cancels does not start."""
        sandbox = await self.opened()
        with trio.CancelScope(shield=True):  # else nobody knows of a program that was started
            job = await sandbox.exec(argv, **settings)
        return job  # noqa: RET504  # a block that may swallow errors must not return

    async def execute(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        max_bytes: int = COLLECT_BYTES,
    ) -> Finished:
        """Run a program to its end. It is stopped if this is cancelled.

        Args:
            max_bytes: of output to keep; the rest is counted in `missing`.

        Raises:
            JobError: it can't be started; but a program that is missing or can't be executed has
                exit code 127 or 126.
        """
        settings = {"cwd": cwd, "environ": environ, "timeout_s": timeout_s, "wait_s": 1.0}
        try:
            job = await self.start(argv, stdin=bool(stdin), **settings)
        except JobError as error:
            code = _CANNOT_START.get(error.data.get("errno", ""))
            if code is None:
                raise
            return Finished(code, b"", f"{error.message}\n".encode())
        try:
            if stdin:
                await job.feed(stdin)
            result = await job.collect(max_bytes=max_bytes)
        except trio.Cancelled:
            await self.stop(job)
            raise
        timed_out = result.info.timed_out
        return Finished(result.exit_code, result.stdout, result.stderr, result.missing, timed_out)

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
            if self._sandbox is not None:
                await self._sandbox.aclose()
            if self._client.server is not None:
                await self._client.__aexit__(None, None, None)
