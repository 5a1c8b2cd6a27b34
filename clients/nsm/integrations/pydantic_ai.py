"""Workspace of Pydantic AI in a session of nsm.

Example::

    from pydantic_ai import Agent
    from nsm.integrations.pydantic_ai import NsmWorkspace

    workspace = NsmWorkspace()
    result = await agent.run("Count the words of notes.txt", workspace=workspace)
    await workspace.aclose()
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import posixpath
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    SupportsCommands,
    SupportsFilesystem,
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from nsm.integrations.sandboxes import GONE, AdapterSandbox
from nsm.wire.errors import BadRequestError, FileError, JobError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
    from typing import TypeVar, Unpack

    from pydantic_ai.workspaces import WorkspaceCommand

    from nsm import AsyncSessionFiles, SandboxSettings
    from nsm.wire.files import FileEntry as SessionEntry

    T = TypeVar("T")

PROVIDER = "nsm"


class NsmWorkspace(WorkspaceBackend, SupportsCommands, SupportsFilesystem):
    """A workspace in a session of nsm, which is made for the first operation.

    It ends with `aclose`, with the program, or by its idle time: as Pydantic AI wants it, it
    outlives the run, and whoever has its `ref` can use it. With a `name` it outlives the program.

    Args:
        ref: of a workspace that was made before, to use that one.
        socket_path: socket of the supervisor; None for the usual one.
        settings: as of `nsm.Client.sandbox`.
    """

    def __init__(
        self,
        ref: WorkspaceRef | None = None,
        *,
        socket_path: str | None = None,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"a workspace of {ref.provider!r} is none of nsm's")
        session = None if ref is None else ref.id
        self._sandbox = AdapterSandbox(
            "pydantic-ai", session=session, socket_path=socket_path, keep=True, **settings
        )

    @property
    def ref(self) -> WorkspaceRef | None:
        """The session; None until there is one."""
        session = self._sandbox.session
        return None if session is None else WorkspaceRef(provider=PROVIDER, id=session)

    async def aclose(self) -> None:
        """End the session."""
        await self._sandbox.aclose()

    async def working_dir(self) -> str:
        """The session's workspace."""
        return (await self._files(lambda files: files.stat("."))).path

    async def run(
        self,
        command: WorkspaceCommand,
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # the framework's name
    ) -> CommandResult:
        """Run a command, as `SupportsCommands` says."""
        if isinstance(command, str) != shell:
            raise TypeError("a text needs shell=True, and a list of texts needs shell=False")
        _check_timeout(timeout)
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        try:
            with _gone():
                done = await self._sandbox.execute_async(argv, environ=env, timeout_s=timeout)
        except BadRequestError as error:
            raise ValueError(str(error)) from error
        except JobError as error:
            if error.data.get("errno") == "EINVAL":
                raise ValueError(str(error)) from error
            raise
        stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.timed_out:
            message = f"the command was stopped after {timeout:g} s"
            raise WorkspaceTimeoutError(message, stdout=stdout, stderr=stderr)
        if done.missing:
            kept = len(done.output)
            raise WorkspaceOutputLimitError(
                f"the command printed {done.missing:,} bytes more than the {kept:,} that "
                "are kept. Redirect its output to a file, and read a part of that.",
                limit=kept,
                stdout=stdout[:65536],
                stderr=stderr[:65536],
            )
        return CommandResult(exit_code=done.exit_code, stdout=stdout, stderr=stderr)

    async def read_bytes(self, path: str) -> bytes:
        """Read a file."""
        return await self._files(lambda files: files.read(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Write a file, through a link if there is one. It appears whole, or not at all."""
        with _gone():
            await self._sandbox.ado(self._sandbox.write, path, data)

    async def stat(self, path: str) -> FileEntry:
        """Return what a path leads to."""
        return _entry(path, await self._files(lambda files: files.stat(path)))

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """List a directory, by name."""

        async def entries(files: AsyncSessionFiles) -> builtins.list[FileEntry]:
            return [
                _entry(place := posixpath.join(path, each.name), await _target(files, place, each))
                for each in await files.list(path)
            ]

        return await self._files(entries)

    async def make_dir(self, path: str) -> None:
        """Make a directory, with its parents."""
        await self._files(lambda files: files.mkdir(path, parents=True))

    async def remove(self, path: str) -> None:
        """Remove a file or a directory, but not the workspace."""

        async def remove(files: AsyncSessionFiles) -> None:
            root = (await files.stat(".")).path
            entry = await files.stat(path, follow=False)
            if entry.kind == "directory" and (root + "/").startswith(entry.path.rstrip("/") + "/"):
                raise ValueError(f"{path} is the workspace, or has it in it; it is not removed.")
            await files.remove(path, recursive=True)

        await self._files(remove)

    async def exists(self, path: str) -> bool:
        """Return whether a path leads to anything."""
        return await self._files(lambda files: files.exists(path))

    async def _files(self, call: Callable[[AsyncSessionFiles], Awaitable[T]]) -> T:
        with _gone():
            return await self._sandbox.ado(self._sandbox.files, call)


async def _target(files: AsyncSessionFiles, path: str, entry: SessionEntry) -> SessionEntry:
    """Follow a link; return the link itself if it leads to nothing."""
    if entry.kind != "link":
        return entry
    try:
        return await files.stat(path)
    except FileError:
        return entry


def _entry(path: str, entry: SessionEntry) -> FileEntry:
    size = entry.size if entry.kind == "file" else None
    name = posixpath.basename(path.rstrip("/"))
    return FileEntry(name=name, path=path, is_dir=entry.kind == "directory", size=size)


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not (0 < timeout < float("inf")):
        raise ValueError(f"the timeout must be a number of seconds above 0, not {timeout!r}")


@contextmanager
def _gone() -> Generator[None]:
    try:
        yield
    except GONE as error:
        raise WorkspaceUnavailableError(str(error)) from error
