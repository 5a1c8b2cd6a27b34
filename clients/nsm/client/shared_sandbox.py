"""Sandboxes for programs that use threads or asyncio, such as agent frameworks.

Their calls run in a thread of this process in which trio runs, since callers are in threads, under
asyncio and under trio. The async client carries them out, so a call that is cancelled in the
framework is cancelled in nsm too, and any number of them share one connection.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import trio

from nsm.client.asynchronous import AsyncClient
from nsm.client.jobs import COLLECT_BYTES, WAIT_S, AsyncJob
from nsm.client.places import check_names
from nsm.client.sandbox import SandboxSettings
from nsm.wire.errors import JobError, NsmError, UnknownSessionError
from nsm.wire.jobs import chunks_of
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Self, Unpack

    from nsm.client.jobs import ProgramSettings
    from nsm.client.sandbox import AsyncSandbox
    from nsm.wire.jobs import JobChunk

P = ParamSpec("P")
T = TypeVar("T")

FIRST_OUTPUT_S = 0.25
"""Time that the answer to the start of a program waits for its first output."""

STOP_TIMEOUT_S = 10.0
"""Time in which a cancelled call takes care of its program."""

END_S = 10.0
"""Time that a program that ends waits for the end of the sandboxes that it has left open."""


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
    """A session of its own, for any thread, any asyncio task and trio, until it is closed.

    Example::

        with nsm.SharedSandbox(labels={"batch": "7"}) as sandbox:
            result = sandbox.call(lambda box: box.run("print(6 * 7)"))
            assert result.stdout == "42\\n"

    Everything that `nsm.AsyncSandbox` can do is done through `call` or `acall`. Several calls may
    be under way at once. Without a `name`, it ends with the program at the latest, also if that is
    killed (on another machine by its idle time then), or once nobody has this object any more.

    Attributes:
        session: id of the session; None before there is one.
        id, name, env, labels: as in `nsm.client.sandbox.Sandbox`, once there is one.
        MAX_OUTPUT_BYTES: of output that `execute` keeps if it is not told.
        cannot_start: exit codes of programs that cannot be started, by the names of what Linux
            says; for other names, `execute` raises `JobError`.
    """

    MAX_OUTPUT_BYTES = COLLECT_BYTES
    cannot_start: ClassVar[Mapping[str, int]] = {}

    def __init__(
        self,
        *,
        owner: str = "nsm",
        scope: str = "cli",
        session: str | None = None,
        socket_path: str | None = None,
        autostart: bool = True,
        keep: bool = False,
        lasting: bool = False,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        """Describe the session. `open`, `aopen`, a block or the first call makes it.

        Args:
            owner: the program, for `nsm ps`; also the label ``owner``.
            scope, autostart: as in `nsm.Client`.
            session: id of a session that was made before, to use that one.
            socket_path: of the supervisor; None for the usual one.
            keep: the session outlives this object, and ends with the program.
            lasting: the session outlives the program, too, as one with a `name` does.
            settings: as in `nsm.Client.sandbox`. Without `project`, no project is shown.
        """
        check_names(settings, SandboxSettings)
        labels: Mapping[str, str] = {"owner": owner, "pid": str(os.getpid())}
        self._settings: SandboxSettings = {
            **settings,
            "labels": {**labels, **(settings.get("labels") or {})},
        }
        self.session = session
        self._attach = session is not None
        self._keep = keep
        self._lasting = lasting or self._attach or settings.get("name") is not None
        self._client = AsyncClient(
            name=owner, scope=scope, socket_path=socket_path, autostart=autostart, project=None
        )
        self._sandbox: AsyncSandbox | None = None
        self._ended_with_us: list[AsyncSandbox] = []
        self._ending: weakref.finalize[..., Any] | None = None
        self._opening: trio.Lock | None = None
        self._closed = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<nsm.{type(self).__name__} {self.session or 'not begun'}>"

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self.aopen()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def open(self) -> Self:
        """Make the session, and wait for it.

        Raises:
            NsmError: it can't be made; the message says why.
        """
        self.do(self.made)
        return self

    async def aopen(self) -> Self:
        """Make the session, as `open`, without blocking asyncio's loop."""
        await self.ado(self.made)
        return self

    def call(self, step: Callable[[AsyncSandbox], Awaitable[T]]) -> T:
        """Do something with the sandbox, and wait for it in this thread.

        Example::

            with nsm.SharedSandbox() as sandbox:
                sandbox.call(lambda box: box.files.write("a", b"1"))

        Raises:
            UnknownSessionError: the sandbox was closed, or has ended.
        """
        return self.do(self._take, step)

    async def acall(self, step: Callable[[AsyncSandbox], Awaitable[T]]) -> T:
        """Do something with the sandbox, and wait for it in a task of asyncio or trio.

        Cancelling the task interrupts the code that it waits for.
        """
        return await self.ado(self._take, step)

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
        return self.do(self.run_program, argv, settings, max_bytes, on_output)

    async def execute_async(
        self,
        argv: Sequence[str],
        *,
        max_bytes: int = COLLECT_BYTES,
        on_output: Callable[[JobChunk], object] | None = None,
        **settings: Unpack[ProgramSettings],
    ) -> CommandResult:
        """Run a program to its end, as `execute`; cancelling the task stops the program."""
        return await self.ado(self.run_program, argv, settings, max_bytes, on_output)

    @property
    def closed(self) -> bool:
        """True after `close`, also if the session ended by itself before."""
        return self._closed

    def close(self) -> None:
        """End the session, with all that runs in it. Another time does nothing."""
        self.do(self._end)

    async def aclose(self) -> None:
        """End the session, as `close`."""
        await self.ado(self._end)

    # For adapters: calls of what runs in the background thread, as the rest of this class does.

    def do(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the background thread, and wait in this one."""
        return BACKGROUND.blocking(partial(function, *args, **kwargs), self._stop_lost)

    async def ado(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function in the background thread, and await it under asyncio or trio."""
        return await BACKGROUND.awaited(partial(function, *args, **kwargs), self._stop_lost)

    def submit(
        self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Call a function in the background thread, and wait for nothing."""
        return BACKGROUND.start(partial(function, *args, **kwargs), self._stop_lost)

    async def made(self) -> AsyncSandbox:
        """The sandbox that `open` makes."""
        return await self.opened()

    async def opened(self) -> AsyncSandbox:
        """The sandbox, which is made if there is none.

        Raises:
            UnknownSessionError: it was closed, or has ended.
            NsmError: it can't be made.
            RuntimeError: a parent of this process has made it.
        """
        if self._pid != os.getpid():  # it shares the parent's connection
            raise RuntimeError(
                "a sandbox of nsm was used in a forked process: make another one there"
            )
        self._opening = self._opening or trio.Lock()
        async with self._opening:
            if self._closed:
                raise UnknownSessionError("this sandbox is closed", hint="Make a new one.")
            if self._sandbox is None:
                self._sandbox = await self._begin()
                self.session = self.id = self._sandbox.id
                self.name, self.env = self._sandbox.name, self._sandbox.env
                self.labels = self._sandbox.labels
            return self._sandbox

    async def start(self, argv: Sequence[str], **settings: Unpack[ProgramSettings]) -> AsyncJob:
        """Start a program, as `nsm.AsyncClient.exec`. If the caller is cancelled, it is stopped."""
        sandbox = await self.opened()
        with trio.CancelScope(shield=True):  # else nobody knows of a program that was started
            return await sandbox.exec(argv, **settings)
        raise AssertionError("what is shielded is not cancelled")

    async def run_program(
        self,
        argv: Sequence[str],
        settings: ProgramSettings,
        max_bytes: int,
        on_output: Callable[[JobChunk], object] | None,
    ) -> CommandResult:
        """Run a program to its end, as `execute`; if this is cancelled, stop it."""
        begin = time.monotonic()
        stdin = settings.get("stdin")
        given = stdin if isinstance(stdin, bytes) else b""
        begun: ProgramSettings = {"wait_s": FIRST_OUTPUT_S, **settings, "stdin": bool(stdin)}
        try:
            job = await self.start(argv, **begun)
        except JobError as error:
            code = self.cannot_start.get(error.data.get("errno", ""))
            if code is None:
                raise
            text = f"{error.message}\n".encode()
            return CommandResult(b"", text, text, code, 0, timed_out=False, duration_s=0.0)
        collect = partial(_collect, job, max_bytes, on_output, begin)
        try:
            return await (_while_fed(job, given, collect) if given else collect())
        except BaseException:
            await self.stop(job)
            raise

    async def stop(self, job: AsyncJob) -> None:
        """Stop a program, with all that it has started, also if the caller is cancelled."""
        with trio.move_on_after(STOP_TIMEOUT_S, shield=True), suppress(NsmError):
            await job.stop(grace_s=0)  # the session may have ended

    async def _stop_lost(self, result: object) -> None:
        """Stop a program whose caller was cancelled while it was started."""
        if isinstance(result, AsyncJob):
            await self.stop(result)

    async def _take(self, step: Callable[[AsyncSandbox], Awaitable[T]]) -> T:
        return await step(await self.opened())

    async def _begin(self) -> AsyncSandbox:
        if self._ending is None:
            await self._client.__aenter__()
            # The client is kept for its own end: it lasts as long as the program.
            owner = self._client if self._keep and not self._lasting else self
            self._ending = BACKGROUND.end_with(owner, self._client, self._ended_with_us)
        if self._attach:
            return await self._attached()
        # Not on another machine: a network that fails for a moment would end it.
        leased = not self._lasting and self._client.far_socket is None
        settings: SandboxSettings = {"ends_with_client": leased, **self._settings}
        sandbox = self._client.sandbox(**settings)
        # Shielded: a session that nobody knows of would stay until it is idle.
        with trio.CancelScope(shield=True):
            await sandbox.__aenter__()
        if not self._lasting:
            self._ended_with_us.append(sandbox)
        return sandbox

    async def _attached(self) -> AsyncSandbox:
        sandbox = self._client.sandbox(**self._settings)
        for row in await self._client.sessions():
            if row.id == self.session and row.name is not None:
                sandbox.id, sandbox.name, sandbox.env = row.id, row.name, row.env
                sandbox.labels, sandbox.files = row.labels, self._client.files(row.id)
                return sandbox
        raise UnknownSessionError(
            f"the session {self.session} has ended", hint="Make a new sandbox."
        )

    async def _end(self) -> None:
        self._opening = self._opening or trio.Lock()
        async with self._opening:
            if self._closed:
                return
            self._closed = True
            if self._ending is None:  # it was never used
                return
            self._ending.detach()
            await _end_sandboxes(self._client, [self._sandbox] if self._sandbox is not None else [])


async def _end_sandboxes(client: AsyncClient, sandboxes: Sequence[AsyncSandbox]) -> None:
    """End sandboxes and their client."""
    client.autostart = False  # they have ended with a supervisor that is gone
    for sandbox in sandboxes:
        await sandbox.aclose()
    await client.aclose()


async def _while_fed(job: AsyncJob, data: bytes, collect: Callable[[], Awaitable[T]]) -> T:
    """Collect output while input is written: a program may print before it has read all."""
    result: list[T] = []
    failure: Exception | None = None

    async def feed() -> None:
        with suppress(NsmError):  # reading tells the same
            await job.feed(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed)
        try:
            result.append(await collect())
        except Exception as error:  # noqa: BLE001  # the nursery would put it into a group
            failure = error
            nursery.cancel_scope.cancel()  # the program may never read its input
    if failure is not None:
        raise failure
    return result[0]


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


class Background:
    """The thread of this process in which trio runs. It is made for the first call, and ends with
    the process.
    """

    def __init__(self) -> None:
        self._endings = weakref.WeakKeyDictionary[object, Any]()
        self._forget()
        os.register_at_fork(after_in_child=self._close_in_child)
        atexit.register(self._end_all)

    def end_with(
        self, owner: object, client: AsyncClient, sandboxes: Sequence[AsyncSandbox]
    ) -> weakref.finalize[..., Any]:
        """End a client and its sandboxes once nobody has their owner, or the program ends.

        What `weakref.finalize` holds is not collected with the owner. `__del__` would come after
        the collector has closed the client's socket, while another file may have its number.

        Args:
            sandboxes: as they are then.

        Returns:
            What to detach if they have ended before.
        """
        ending = weakref.finalize(owner, self._end, client, sandboxes)
        ending.atexit = False  # it would not wait
        self._endings[owner] = ending
        return ending

    def _end(self, client: AsyncClient, sandboxes: Sequence[AsyncSandbox]) -> Future[None]:
        return self.start(partial(_end_sandboxes, client, sandboxes))

    def _end_all(self) -> None:
        """End what the program has left open. Threads still run when it ends."""
        futures = [ending() for ending in list(self._endings.values())]
        wait([future for future in futures if future is not None], END_S)

    def _close_in_child(self) -> None:
        """Close a forked child's copies of connections, so that those end with its parent."""
        for ending in list(self._endings.values()):
            if (found := ending.detach()) is not None:
                found[2][0].close_in_child()
        self._forget()

    def _forget(self) -> None:
        """A forked child has none of its parent's threads."""
        self._lock = threading.Lock()
        self._nursery: trio.Nursery | None = None
        self._token: trio.lowlevel.TrioToken | None = None

    def blocking(
        self,
        function: Callable[[], Awaitable[T]],
        lost: Callable[[T], Awaitable[None]] | None = None,
    ) -> T:
        """Call a function there, and wait for its end in this thread.

        Args:
            lost: called there with a result that the caller does not get.
        """
        future = self.start(function, lost)
        try:
            return future.result()
        except BaseException:  # Ctrl-C
            self._give_up(future, lost)
            raise

    async def awaited(
        self,
        function: Callable[[], Awaitable[T]],
        lost: Callable[[T], Awaitable[None]] | None = None,
    ) -> T:
        """Call a function there, and await its end under asyncio or trio.

        Args:
            lost: called there with a result that the caller does not get.

        Cancellation: the function is cancelled, and its end is not waited for.
        """
        future = self.start(function, lost)
        if not trio.lowlevel.in_trio_run():
            try:
                return await asyncio.wrap_future(future)
            except BaseException:
                self._give_up(future, lost)
                raise
        done, token = trio.Event(), trio.lowlevel.current_trio_token()

        def tell(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done.set)

        future.add_done_callback(tell)
        try:
            await done.wait()
        except BaseException:
            self._give_up(future, lost)
            raise
        return future.result()

    def _give_up(self, future: Future[T], lost: Callable[[T], Awaitable[None]] | None) -> None:
        """Cancel a call whose caller has gone; its result may be there already."""
        future.cancel()
        if lost is not None and not future.cancelled() and future.exception() is None:
            self.start(partial(lost, future.result()))

    def start(
        self,
        function: Callable[[], Awaitable[T]],
        lost: Callable[[T], Awaitable[None]] | None = None,
    ) -> Future[T]:
        """Start a function there. To cancel the future cancels what the function waits for.

        Args:
            lost: called there with a result that comes after the future was cancelled.
        """
        future: Future[T] = Future()
        token = self._started()

        async def run() -> None:
            with trio.CancelScope() as scope:

                def cancel_with(done: Future[T]) -> None:
                    if done.cancelled():
                        token.run_sync_soon(scope.cancel)

                future.add_done_callback(cancel_with)
                try:
                    result = await function()
                except Exception as error:  # noqa: BLE001  # the caller gets it
                    with suppress(InvalidStateError):
                        future.set_exception(error)
                else:
                    try:
                        future.set_result(result)
                    except InvalidStateError:
                        if lost is not None:
                            await lost(result)

        assert self._nursery is not None, "the thread is up"
        token.run_sync_soon(self._nursery.start_soon, run)
        return future

    def _started(self) -> trio.lowlevel.TrioToken:
        if self._token is not None:
            return self._token  # without the lock: the collector calls this anywhere
        with self._lock:
            if self._token is None:
                ready = threading.Event()
                # A daemon: it must not keep the process from ending.
                name = "nsm"
                threading.Thread(
                    target=trio.run, args=(self._main, ready), name=name, daemon=True
                ).start()
                ready.wait()
            assert self._token is not None, "it was set before `ready`"
            return self._token

    async def _main(self, ready: threading.Event) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery, self._token = nursery, trio.lowlevel.current_trio_token()
            ready.set()
            await trio.sleep_forever()


BACKGROUND = Background()
