"""Runtime of verifiers: a session of a container image.

Example::

    from nsm.integrations.verifiers import NsmImageConfig, provision
    from verifiers.v1 import Agent

    async with provision(NsmImageConfig(image="python:3.13-slim")) as runtime:
        trace = await agent.run(task, runtime=runtime)

A verifiers configuration cannot name it, since the types of runtimes are fixed there; a program
that passes a runtime on can use it.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import posixpath
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Literal

from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes.base import (
    BaseRuntimeInfo,
    ProgramResult,
    Runtime,
    RuntimeProcess,
    register,
)
from verifiers.v1.runtimes.container import ContainerConfig

from nsm.integrations.images import ImageSandbox
from nsm.integrations.sandboxes import READ_S, texts_of
from nsm.wire.errors import NsmError
from nsm.wire.jobs import chunks_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Generator

    from nsm import AsyncJob


class NsmImageConfig(ContainerConfig):
    """Settings of a runtime: those of verifiers' containers, and the session's.

    Attributes:
        network: as of `nsm.Client.sandbox`.
        root: ``overlay``, in which programs may change the image's files, or ``readonly``.
        fresh: as of `AdapterSandbox`, for the runtimes of this process.
        socket_path: socket of the supervisor; None for the usual one.
    """

    type: Literal["nsm"] = "nsm"
    network: str | None = None
    root: Literal["overlay", "readonly"] = "overlay"
    fresh: bool = False
    socket_path: str | None = None


class NsmImageRuntimeInfo(NsmImageConfig, BaseRuntimeInfo):
    """The settings, as a trace records them."""


class NsmProcess(RuntimeProcess):
    """A program in the session, with its standard streams."""

    def __init__(self, sandbox: ImageSandbox, job: AsyncJob) -> None:
        self._sandbox = sandbox
        self._job = job
        self._pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._reading = asyncio.Lock()
        self._over = False
        self.stdout = self._read("stdout")
        self.stderr = self._read("stderr")

    async def _read(self, stream: str) -> AsyncIterator[bytes]:
        pieces = self._pieces[stream]
        while True:
            async with self._reading:  # two may read, and what comes is for either
                if not pieces and not self._over:
                    output = await self._sandbox.ado(self._job.read, wait_s=READ_S)
                    for chunk in chunks_of(output):
                        self._pieces[chunk.stream].append(chunk.data)
                    self._over = output.is_last
            while pieces:
                yield pieces.pop(0)
            if self._over:
                return

    async def write(self, data: bytes) -> None:
        await self._sandbox.ado(self._job.write, data)

    async def wait(self) -> int:
        info = await self._sandbox.ado(self._job.wait)
        return info.exit_code or 0

    async def poll(self) -> int | None:
        info = await self._sandbox.ado(self._job.wait, 0.0)
        return None if info.running else info.exit_code

    async def terminate(self) -> None:
        with suppress(NsmError):  # it may have ended
            await self._sandbox.ado(self._job.signal, "TERM")

    async def kill(self) -> None:
        await self._sandbox.ado(self._sandbox.stop, self._job)


class NsmImageRuntime(Runtime):
    """A session of nsm. `start` makes it, `stop` ends it."""

    def __init__(self, config: NsmImageConfig | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.config = config or NsmImageConfig()
        self.info = NsmImageRuntimeInfo(**self.config.model_dump())
        memory = self.config.memory
        self._sandbox = ImageSandbox(
            "verifiers",
            self.config.image,
            root=self.config.root,
            fresh=self.config.fresh,
            socket_path=self.config.socket_path,
            network=self.config.network,
            memory_mb=None if memory is None else int(memory * 1024),
            labels={"runtime": self.name},
        )

    @property
    def _workdir(self) -> str | None:
        return self.config.workdir

    async def start(self) -> None:
        """Make the session.

        Raises:
            SandboxError: it can't be made, or was asked for a GPU.
        """
        if self.config.gpu:
            raise SandboxError("a session of nsm has no GPU that a runtime could ask for")
        with _failing():
            await self._sandbox.aopen()
            if self._workdir is not None:
                workdir = self._workdir
                await self._sandbox.ado(
                    self._sandbox.files, lambda files: files.mkdir(workdir, parents=True)
                )
        self.info.id = self._sandbox.session

    async def teardown(self) -> None:
        """End the session."""
        await self._sandbox.aclose()

    def cleanup(self) -> None:
        """End the session, without a loop of asyncio."""
        self._sandbox.close()

    async def run(self, argv: list[str], env: dict[str, str]) -> ProgramResult:
        """Run a program to its end."""
        with _failing():
            done = await self._sandbox.execute_async(
                argv, cwd=self._workdir, environ=self.process_env(env)
            )
        out, err = texts_of(done)
        return ProgramResult(exit_code=done.exit_code, stdout=out, stderr=err)

    async def open_process(self, argv: list[str], env: dict[str, str]) -> RuntimeProcess:
        """Start a program with its standard streams open."""
        return NsmProcess(self._sandbox, await self._start(argv, env, stdin=True))

    async def run_background(self, argv: list[str], env: dict[str, str], log: str) -> None:
        """Start a program whose output goes to a file; it ends with the session."""
        words = ["sh", "-c", 'log="$1"; shift; exec "$@" >"$log" 2>&1', "sh", log, *argv]
        await self._start(words, env, stdin=False)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, with the directories that are missing."""
        with _failing():
            await self._sandbox.ado(self._sandbox.write, self._path(path), data)

    async def _read(self, path: str, max_bytes: int | None = None) -> bytes:
        if max_bytes is not None:
            return await super()._read(self._path(path), max_bytes)
        place = self._path(path)
        with _failing():
            return await self._sandbox.ado(self._sandbox.files, lambda files: files.read(place))

    async def expose(self, port: int) -> str:
        """Open a port of the session on this machine's loopback; return its URL."""
        with _failing():
            row = await self._sandbox.ado(self._sandbox.open_port, port)
        return f"http://{row.address}"

    async def _start(self, argv: list[str], env: dict[str, str], *, stdin: bool) -> AsyncJob:
        environ = self.process_env(env)
        with _failing():
            return await self._sandbox.ado(
                self._sandbox.start, argv, cwd=self._workdir, environ=environ, stdin=stdin
            )

    def _path(self, path: str) -> str:
        """A path of the session; relative ones are below the working directory."""
        return posixpath.join(self._workdir or "", path)


@contextmanager
def _failing() -> Generator[None]:
    """Raise errors of nsm as the framework's.

    Raises:
        SandboxError: a step in the session failed.
    """
    try:
        yield
    except (NsmError, OSError) as error:
        raise SandboxError(str(error)) from error


@asynccontextmanager
async def provision(
    config: NsmImageConfig, *, name: str | None = None, env: dict[str, str] | None = None
) -> AsyncGenerator[NsmImageRuntime]:
    """Make a runtime, and end it after the block, as `provision_runtime` of verifiers."""
    runtime = NsmImageRuntime(config, name)
    register(runtime)
    runtime.env = dict(env or {})
    try:
        await runtime.start()
        yield runtime
    finally:
        await runtime.stop()
