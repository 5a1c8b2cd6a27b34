"""Sandboxes for programs that use threads or asyncio, such as agent frameworks."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import trio

from nsm.client.async_connection import with_grace
from nsm.client.asynchronous import AsyncClient
from nsm.client.background import BACKGROUND
from nsm.client.jobs import COLLECT_BYTES, WAIT_S
from nsm.wire.errors import DisconnectedError, NsmError
from nsm.wire.jobs import chunks_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Self, TypeVar, Unpack

    from nsm.client.jobs import AsyncJob, ProgramSettings
    from nsm.client.sandbox import AsyncSandbox, SandboxSettings
    from nsm.wire.jobs import JobChunk

    T = TypeVar("T")

FIRST_OUTPUT_S = 0.25
"""Time that the answer to the start of a program waits for its first output."""

STOP_TIMEOUT_S = 10.0
"""How long a cancelled call takes care of its program."""


class CommandResult(NamedTuple):
    """A program that has ended, with its output.

    Attributes:
        output: both streams, in the order in which they were read.
        missing: bytes of output that are not here: lost, or more than was to be kept.
        timed_out: it was ended at its time limit; the exit code is 124.
    """

    stdout: bytes
    stderr: bytes
    output: bytes
    exit_code: int
    missing: int
    timed_out: bool
    duration_s: float


class SharedSandbox:
    """A session of its own, for any thread and any asyncio task, until it is closed.

    Example::

        with nsm.SharedSandbox(labels={"batch": "7"}) as sandbox:
            result = sandbox.call(lambda box: box.run("print(6 * 7)"))
            assert result.stdout == "42\\n"

    Everything that `nsm.AsyncSandbox` can do is done through `call` or `acall`. Several calls may
    be under way at once. Without a `name`, it ends with the program at the latest, also if that is
    killed (on another machine by its idle time then), or once nobody has this object any more.

    Attributes:
        id, name, env, labels: as in `nsm.client.sandbox.Sandbox`.
    """

    def __init__(
        self,
        *,
        owner: str = "nsm",
        socket_path: str | None = None,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        """Describe the session; `open`, `aopen` or a block makes it.

        Args:
            owner: the program, for `nsm ps`; also the label ``owner``.
            socket_path: of the supervisor; None for the usual one.
            settings: as in `nsm.Client.sandbox`. Without `project`, no project is shown.
        """
        labels: Mapping[str, str] = {"owner": owner, "pid": str(os.getpid())}
        settings["labels"] = {**labels, **(settings.get("labels") or {})}
        settings.setdefault("project", None)
        self._pid = os.getpid()
        self._client = AsyncClient(name=owner, socket_path=socket_path)
        self._settings = settings
        self._opened = self._closed = False

    def open(self) -> Self:
        """Make the session, and wait for it.

        Raises:
            NsmError: it can't be made; the message says why.
        """
        BACKGROUND.blocking(self._begin)
        return self

    async def aopen(self) -> Self:
        """Make the session, as `open`, without blocking asyncio's loop."""
        await BACKGROUND.awaited(self._begin)
        return self

    async def _begin(self) -> None:
        try:
            await self._client.__aenter__()
            self._sandbox = self._client.sandbox(**leased(self._client, self._settings))
            await self._sandbox.__aenter__()
        except BaseException:
            await self._client.aclose()
            raise
        self._opened = True
        kept = self._settings.get("name") is not None
        self._ending = BACKGROUND.end_with(self, self._client, [] if kept else [self._sandbox])
        self.id, self.name = self._sandbox.id, self._sandbox.name
        self.env, self.labels = self._sandbox.env, self._sandbox.labels

    def __repr__(self) -> str:
        return f"<nsm.SharedSandbox {getattr(self, 'name', 'not begun')}>"

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self.aopen()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def call(self, step: Callable[[AsyncSandbox], Awaitable[T]]) -> T:
        """Do something with the sandbox, and wait for it in this thread.

        Example::

            with nsm.SharedSandbox() as sandbox:
                sandbox.call(lambda box: box.files.write("a", b"1"))

        Raises:
            DisconnectedError: the sandbox was closed.
        """
        return BACKGROUND.blocking(lambda: self._do(step))

    async def acall(self, step: Callable[[AsyncSandbox], Awaitable[T]]) -> T:
        """Do something with the sandbox, and wait for it in a task of asyncio.

        Cancelling the task interrupts the code that it waits for.
        """
        return await BACKGROUND.awaited(lambda: self._do(step))

    def execute(
        self,
        argv: Sequence[str],
        *,
        max_bytes: int = COLLECT_BYTES,
        on_output: Callable[[JobChunk], object] | None = None,
        **settings: Unpack[ProgramSettings],
    ) -> CommandResult:
        """Run a program to its end, and wait for it in this thread.

        Args:
            argv, settings: as in `nsm.Client.exec`.
            max_bytes: to be kept of both streams together; the end of the output is left out.
            on_output: called with each piece of output, in trio's thread. It must not block.
        """
        return self.call(
            lambda box: execute(box, argv, settings, max_bytes=max_bytes, on_output=on_output)
        )

    async def execute_async(
        self,
        argv: Sequence[str],
        *,
        max_bytes: int = COLLECT_BYTES,
        on_output: Callable[[JobChunk], object] | None = None,
        **settings: Unpack[ProgramSettings],
    ) -> CommandResult:
        """Run a program to its end, as `execute`; cancelling the task stops the program."""
        return await self.acall(
            lambda box: execute(box, argv, settings, max_bytes=max_bytes, on_output=on_output)
        )

    async def _do(self, step: Callable[[AsyncSandbox], Awaitable[T]]) -> T:
        if self._pid != os.getpid():  # it shares the parent's connection
            message = "a sandbox of nsm was used in a forked process: make another one there"
            raise RuntimeError(message)
        if self._closed:
            raise DisconnectedError("this sandbox is closed", hint="Make a new one.")
        if not self._opened:
            raise DisconnectedError("this sandbox is not open", hint="Open it, or use a block.")
        return await step(self._sandbox)

    @property
    def closed(self) -> bool:
        """True after `close`, also if the session ended by itself before."""
        return self._closed

    def close(self) -> None:
        """End the session, with all that runs in it. Another time does nothing."""
        BACKGROUND.blocking(self._end)

    async def aclose(self) -> None:
        """End the session, as `close`."""
        await BACKGROUND.awaited(self._end)

    async def _end(self) -> None:
        if not self._closed:
            self._closed = True
            if self._opened:
                self._ending.detach()
                await self._sandbox.aclose()
            await self._client.aclose()


def leased(client: AsyncClient, settings: SandboxSettings) -> SandboxSettings:
    """Have a session end with the connection, unless the settings name it.

    Not on another machine: a network that fails for a moment would end it.
    """
    lease = settings.get("name") is None and client.far_socket is None
    return {"ends_with_client": lease, **settings}


async def execute(
    sandbox: AsyncSandbox,
    argv: Sequence[str],
    settings: ProgramSettings,
    *,
    max_bytes: int,
    on_output: Callable[[JobChunk], object] | None,
) -> CommandResult:
    """Run a program to its end; if this is cancelled, stop it."""
    begin = time.monotonic()
    settings.setdefault("wait_s", FIRST_OUTPUT_S)
    stdin = settings.get("stdin")
    if isinstance(stdin, bytes):
        settings["stdin"] = bool(stdin)
    started: list[AsyncJob] = []

    async def start() -> None:
        started.append(await sandbox.exec(argv, **settings))

    try:
        await with_grace(start, STOP_TIMEOUT_S)
        (job,) = started
        if isinstance(stdin, bytes) and stdin:
            return await _fed(job, stdin, max_bytes, on_output, begin)
        return await _collect(job, max_bytes, on_output, begin)
    except BaseException:
        for job in started:
            with (
                trio.move_on_after(STOP_TIMEOUT_S, shield=True),
                suppress(NsmError),  # the session may have ended
            ):
                await job.stop(grace_s=0)
        raise


async def _fed(
    job: AsyncJob,
    stdin: bytes,
    max_bytes: int,
    on_output: Callable[[JobChunk], object] | None,
    begin: float,
) -> CommandResult:
    """Collect output while the input is written: a program may print before it has read all."""
    result: CommandResult | None = None
    failure: Exception | None = None

    async def feed() -> None:
        with suppress(NsmError):  # reading tells the same
            await job.feed(stdin)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        try:
            result = await _collect(job, max_bytes, on_output, begin)
        except Exception as error:  # noqa: BLE001  # the nursery would put it into a group
            failure = error
            nursery.cancel_scope.cancel()  # the program may never read its input
    if result is None:
        raise failure or AssertionError
    return result


async def _collect(
    job: AsyncJob, max_bytes: int, on_output: Callable[[JobChunk], object] | None, begin: float
) -> CommandResult:
    streams = {"stdout": bytearray(), "stderr": bytearray()}
    output = bytearray()
    missing = 0
    ended = False
    while not ended:
        piece = await job.read(wait_s=WAIT_S)
        ended = piece.is_last
        for chunk in chunks_of(piece):
            kept = chunk.data[: max_bytes - len(output)]
            output += kept
            streams[chunk.stream] += kept
            missing += chunk.missing + len(chunk.data) - len(kept)
            if on_output is not None:
                on_output(chunk)
    info = job.info
    return CommandResult(
        stdout=bytes(streams["stdout"]),
        stderr=bytes(streams["stderr"]),
        output=bytes(output),
        exit_code=info.exit_code or 0,
        missing=missing,
        timed_out=info.timed_out,
        duration_s=time.monotonic() - begin,
    )
