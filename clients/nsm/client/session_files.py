"""``client.files(session)``: the files of a session."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.client import file_steps, local_trees, transfers
from nsm.wire.answers import read
from nsm.wire.errors import FileError, NsmError
from nsm.wire.sessions import FileEvent, FileEvents, Watching, path_on_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Self, TypeVar

    from nsm.client.async_files import AsyncFileCalls
    from nsm.client.files import FileCalls
    from nsm.client.transfers import Step
    from nsm.wire.sessions import FileEntry, FileInfo, TreeReport

    T = TypeVar("T")
    Path = str | bytes
    OnProgress = Callable[[int], object]
    Entries = list[FileEntry]

WAIT_S = 30.0
"""Longest wait of one request for events."""


class SessionFiles:
    """Files of one session. `nsm.Client.files` makes it.

    Paths are absolute, or relative to the session's workspace. A name may have any byte but NUL and
    ``/``: text has lone surrogates for bytes that are not UTF-8 (PEP 383), as `os.listdir` has
    them, and bytes will do, too. Everything works while code runs in the session.

    Example::

        with nsm.Client() as client:
            client.run("x = 1", env="python", session="work")
            files = client.files("work")
            files.write("data/in.csv", b"1,2\\n", parents=True)
            assert [entry.name for entry in files.list("data")] == ["in.csv"]

    Raises:
        FileError: it cannot be done; `data["errno"]` has the name of the error, such as ``ENOENT``.
        NsmError: the session has ended, or cannot do that.
    """

    def __init__(self, client: FileCalls, session: str) -> None:
        self._client = client
        self._session = session

    def __repr__(self) -> str:
        return f"<nsm files of {self._session!r}>"

    def _do(self, steps: Generator[Step, dict[str, Any], T]) -> T:
        return transfers.carry_out(steps, self._client.call)

    def list(self, path: Path = ".") -> Entries:
        """List a directory, by name."""
        return self._do(file_steps.list_directory(self._session, path))

    def stat(self, path: Path, *, follow: bool = True) -> FileEntry:
        """Return what a path leads to.

        Args:
            follow: symbolic links are followed; else the link itself is told, with its `target`.
        """
        return self._do(file_steps.stat(self._session, path, follow=follow))

    def exists(self, path: Path) -> bool:
        """Return whether a path leads to anything."""
        try:
            self.stat(path)
        except FileError as error:
            if error.data.get("errno") in ("ENOENT", "ENOTDIR"):
                return False
            raise
        return True

    def read(
        self,
        path: Path,
        *,
        offset: int = 0,
        length: int | None = None,
        max_bytes: int | None = None,
    ) -> bytes:
        """Read a file, or a part of it.

        Args:
            offset: first byte.
            length: number of bytes, fewer at the end of the file; None for all that follow.
            max_bytes: refuse to read more into memory.
        """
        steps = file_steps.read_bytes(
            self._session, path, offset=offset, length=length, max_bytes=max_bytes
        )
        return self._do(steps)

    def write(
        self,
        path: Path,
        data: bytes | str,
        *,
        permissions: int | None = None,
        overwrite: bool = True,
        parents: bool = False,
    ) -> FileInfo:
        """Write a file. It appears whole, or not at all.

        Args:
            data: text is written as UTF-8.
            permissions: as in `os.chmod`; None for those of the older file, or the usual ones.
            overwrite: replace an older file.
            parents: make missing directories.
        """
        steps = file_steps.write_bytes(
            self._session,
            path,
            data.encode() if isinstance(data, str) else data,
            permissions=permissions,
            overwrite=overwrite,
            parents=parents,
        )
        return self._do(steps)

    def append(self, path: Path, data: bytes | str, *, permissions: int | None = None) -> None:
        """Add bytes at the end of a file, which is made if it is missing."""
        raw = data.encode() if isinstance(data, str) else data
        self._do(file_steps.append(self._session, path, raw, permissions=permissions))

    def mkdir(self, path: Path, *, parents: bool = False) -> None:
        """Make a directory, if there is none."""
        self._do(file_steps.make_directory(self._session, path, parents=parents))

    def remove(self, path: Path, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty directory.

        Args:
            recursive: remove a directory with all that is in it. No link is followed.
        """
        self._do(file_steps.remove(self._session, path, recursive=recursive))

    def rename(self, path: Path, to: Path, *, overwrite: bool = True) -> None:
        """Give a file or a directory another name on its file system.

        Args:
            overwrite: replace a file that has that name.
        """
        self._do(file_steps.rename(self._session, path, to, overwrite=overwrite))

    def archive(self, path: Path, write: Callable[[bytes], object]) -> TreeReport:
        """Read what is in a directory as a tar archive.

        Args:
            write: called with each piece of the archive.
        """

        def take(pipe: int) -> None:
            with open(pipe, "rb", buffering=0) as reader:
                while data := reader.read(local_trees.COPY_BYTES):
                    write(data)

        return self._do(file_steps.archive(self._session, path, take))

    def unpack(self, path: Path, read: Callable[[int], bytes]) -> TreeReport:
        """Unpack a tar archive into a directory, which is made if it is missing.

        What would lie outside is left out, and so is what is neither file, directory nor link.

        Args:
            read: called with a number of bytes until it returns none.
        """

        def give(pipe: int) -> None:
            with open(pipe, "wb", buffering=0) as writer:
                while data := read(local_trees.COPY_BYTES):
                    local_trees.write_whole(writer, data)

        return self._do(file_steps.unpack(self._session, path, give))

    def upload(
        self, local: str | os.PathLike[str], path: Path, *, on_progress: OnProgress | None = None
    ) -> TreeReport:
        """Copy a file or a directory from here. What is in a directory goes into the directory
        `path`, which is made if it is missing.

        Args:
            on_progress: called with the number of bytes so far, of the archive if it is a
                directory. What it raises ends the copy.

        Returns:
            What was copied, and what was left out.
        """
        return self._do(file_steps.upload(self._session, os.fspath(local), path, on_progress))

    def download(
        self, path: Path, local: str | os.PathLike[str], *, on_progress: OnProgress | None = None
    ) -> TreeReport:
        """Copy a file or a directory to here: to the file `local`, or into the directory `local`,
        which is made if it is missing.

        Of a directory, only files and directories come. Nothing is written outside of `local`, and
        through no link.

        Args:
            on_progress: as in `upload`.

        Returns:
            What was copied, and what was left out; `path` is that in the session.
        """
        return self._do(file_steps.download(self._session, path, os.fspath(local), on_progress))

    def watch(self, path: Path = ".", *, recursive: bool = False) -> ChangeWatch:
        """Watch a file, or what is in a directory, from now on.

        Example::

            with nsm.Client() as client:
                client.run("x = 1", env="python", session="work")
                with client.files("work").watch() as watch:
                    client.files("work").write("a", b"1")
                    assert next(iter(watch)).path == "a"

        Args:
            recursive: watch directories below, too: at most 1,000.
        """
        arguments = {"target": self._session, "path": path_on_wire(path), "recursive": recursive}
        return ChangeWatch(self._client, read(Watching, self._client.call("file_watch", arguments)))


class ChangeWatch:
    """A path that is watched. It is an iterator of `FileEvent` until that path is gone.

    Attributes:
        path: absolute, in the session.
    """

    def __init__(self, client: FileCalls, opened: Watching) -> None:
        self.path = opened.path
        self._client = client
        self._handle = opened.watch
        self._waiting: deque[FileEvent] = deque()
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(NsmError):  # the session or the connection may be gone
            self.close()

    def close(self) -> None:
        """Watch no longer."""
        self._client.call("file_unwatch", {"watch": self._handle})

    def read(self, wait_s: float = 0.0) -> FileEvents:
        """Return what has happened since the last time.

        Args:
            wait_s: wait so long for the first event; at most 60.
        """
        arguments = {"watch": self._handle, "wait_s": wait_s}
        return read(FileEvents, self._client.call("file_events", arguments))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FileEvent:
        while not self._waiting:
            if self._ended:
                raise StopIteration
            found = self.read(WAIT_S)
            self._waiting.extend(found.events)
            if found.overflow:
                self._waiting.append(FileEvent("overflow", ""))
            self._ended = found.ended
        return self._waiting.popleft()


class AsyncSessionFiles:
    """Files of one session, as `SessionFiles` has them. `nsm.AsyncClient.files` makes it.

    Callbacks are called in a thread while a directory is copied.
    """

    def __init__(self, client: AsyncFileCalls, session: str) -> None:
        self._client = client
        self._session = session

    def __repr__(self) -> str:
        return f"<nsm files of {self._session!r}>"

    async def _do(self, steps: Generator[Step, dict[str, Any], T]) -> T:
        return await self._client.carry_out(steps)

    async def list(self, path: Path = ".") -> Entries:
        """List a directory, by name; see `SessionFiles`."""
        return await self._do(file_steps.list_directory(self._session, path))

    async def stat(self, path: Path, *, follow: bool = True) -> FileEntry:
        """Return what a path leads to; see `SessionFiles`."""
        return await self._do(file_steps.stat(self._session, path, follow=follow))

    async def exists(self, path: Path) -> bool:
        """Return whether a path leads to anything; see `SessionFiles`."""
        try:
            await self.stat(path)
        except FileError as error:
            if error.data.get("errno") in ("ENOENT", "ENOTDIR"):
                return False
            raise
        return True

    async def read(
        self,
        path: Path,
        *,
        offset: int = 0,
        length: int | None = None,
        max_bytes: int | None = None,
    ) -> bytes:
        """Read a file, or a part of it; see `SessionFiles`."""
        steps = file_steps.read_bytes(
            self._session, path, offset=offset, length=length, max_bytes=max_bytes
        )
        return await self._do(steps)

    async def write(
        self,
        path: Path,
        data: bytes | str,
        *,
        permissions: int | None = None,
        overwrite: bool = True,
        parents: bool = False,
    ) -> FileInfo:
        """Write a file. It appears whole, or not at all; see `SessionFiles`."""
        steps = file_steps.write_bytes(
            self._session,
            path,
            data.encode() if isinstance(data, str) else data,
            permissions=permissions,
            overwrite=overwrite,
            parents=parents,
        )
        return await self._do(steps)

    async def append(
        self, path: Path, data: bytes | str, *, permissions: int | None = None
    ) -> None:
        """Add bytes at the end of a file, which is made if it is missing; see `SessionFiles`."""
        raw = data.encode() if isinstance(data, str) else data
        await self._do(file_steps.append(self._session, path, raw, permissions=permissions))

    async def mkdir(self, path: Path, *, parents: bool = False) -> None:
        """Make a directory, if there is none; see `SessionFiles`."""
        await self._do(file_steps.make_directory(self._session, path, parents=parents))

    async def remove(self, path: Path, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty directory; see `SessionFiles`."""
        await self._do(file_steps.remove(self._session, path, recursive=recursive))

    async def rename(self, path: Path, to: Path, *, overwrite: bool = True) -> None:
        """Give a file or a directory another name on its file system; see `SessionFiles`."""
        await self._do(file_steps.rename(self._session, path, to, overwrite=overwrite))

    async def archive(self, path: Path, write: Callable[[bytes], object]) -> TreeReport:
        """Read what is in a directory as a tar archive; see `SessionFiles`."""

        def take(pipe: int) -> None:
            with open(pipe, "rb", buffering=0) as reader:
                while data := reader.read(local_trees.COPY_BYTES):
                    write(data)

        return await self._do(file_steps.archive(self._session, path, take))

    async def unpack(self, path: Path, read: Callable[[int], bytes]) -> TreeReport:
        """Unpack a tar archive into a directory; see `SessionFiles`."""

        def give(pipe: int) -> None:
            with open(pipe, "wb", buffering=0) as writer:
                while data := read(local_trees.COPY_BYTES):
                    local_trees.write_whole(writer, data)

        return await self._do(file_steps.unpack(self._session, path, give))

    async def upload(
        self, local: str | os.PathLike[str], path: Path, *, on_progress: OnProgress | None = None
    ) -> TreeReport:
        """Copy a file or a directory from here; see `SessionFiles`."""
        return await self._do(file_steps.upload(self._session, os.fspath(local), path, on_progress))

    async def download(
        self, path: Path, local: str | os.PathLike[str], *, on_progress: OnProgress | None = None
    ) -> TreeReport:
        """Copy a file or a directory to here; see `SessionFiles`."""
        return await self._do(
            file_steps.download(self._session, path, os.fspath(local), on_progress)
        )

    async def watch(self, path: Path = ".", *, recursive: bool = False) -> AsyncChangeWatch:
        """Watch a file, or what is in a directory; see `SessionFiles`."""
        arguments = {"target": self._session, "path": path_on_wire(path), "recursive": recursive}
        opened = read(Watching, await self._client.call("file_watch", arguments))
        return AsyncChangeWatch(self._client, opened)


class AsyncChangeWatch:
    """A path that is watched. It is an async iterator of `FileEvent` until that path is gone.

    Attributes:
        path: absolute, in the session.
    """

    def __init__(self, client: AsyncFileCalls, opened: Watching) -> None:
        self.path = opened.path
        self._client = client
        self._handle = opened.watch
        self._waiting: deque[FileEvent] = deque()
        self._ended = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(NsmError):  # the session or the connection may be gone
            await self.close()

    async def close(self) -> None:
        """Watch no longer."""
        await self._client.call("file_unwatch", {"watch": self._handle})

    async def read(self, wait_s: float = 0.0) -> FileEvents:
        """Return what has happened since the last time.

        Args:
            wait_s: wait so long for the first event; at most 60.
        """
        arguments = {"watch": self._handle, "wait_s": wait_s}
        return read(FileEvents, await self._client.call("file_events", arguments))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileEvent:
        while not self._waiting:
            if self._ended:
                raise StopAsyncIteration
            found = await self.read(WAIT_S)
            self._waiting.extend(found.events)
            if found.overflow:
                self._waiting.append(FileEvent("overflow", ""))
            self._ended = found.ended
        return self._waiting.popleft()
