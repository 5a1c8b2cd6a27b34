"""``client.files(session)``: the files of a session."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from nsm.client import file_steps
from nsm.client.retry import CutOffError, begun_again
from nsm.client.steps import (
    Async,
    AsyncPart,
    Blocking,
    BlockingPart,
    Calls,
    SyncOrAsync,
    ask,
    method,
)
from nsm.wire import files as wire
from nsm.wire.errors import FileError, NsmError
from nsm.wire.files import FileEvent, text_of_path
from nsm.wire.operation import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self

    from nsm.client.steps import Steps
    from nsm.wire.files import FileEntry, FileEvents, FileInfo, TreeReport, Watching
    from nsm.wire.operation import OperationCall

    Path = str | bytes
    OnProgress = Callable[[int, int | None], object]
    Entries = list[FileEntry]

WAIT_S = 30.0
"""Longest wait of one request for events."""


class FileMethods(Calls):
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

    _session: str

    def __repr__(self) -> str:
        return f"<nsm files of {self._session!r}>"

    @method
    def list(self, path: Path = ".") -> Steps[Entries]:
        """List a directory, by name."""
        return list((yield from file_steps.list_directory(self._session, path)).entries)

    @method
    def stat(self, path: Path, *, follow: bool = True) -> Steps[FileEntry]:
        """Return what a path leads to.

        Args:
            follow: symbolic links are followed; else the link itself is told, with its `target`.
        """
        return (yield from ask(wire.file_stat(self._session, text_of_path(path), follow=follow)))

    @method
    def exists(self, path: Path) -> Steps[bool]:
        """Return whether a path leads to anything."""
        try:
            yield from ask(wire.file_stat(self._session, text_of_path(path), follow=True))
        except FileError as error:
            if error.data.get("errno") in ("ENOENT", "ENOTDIR"):
                return False
            raise
        return True

    @method
    def read(
        self,
        path: Path,
        *,
        offset: int = 0,
        length: int | None = None,
        max_bytes: int | None = None,
    ) -> Steps[bytes]:
        """Read a file, or a part of it.

        Args:
            offset: first byte.
            length: number of bytes, fewer at the end of the file; None for all that follow.
            max_bytes: refuse to read more into memory.
        """
        begin = partial(
            file_steps.read_bytes,
            self._session,
            path,
            offset=offset,
            length=length,
            max_bytes=max_bytes,
        )
        return (yield from begun_again(begin))

    @method
    def write(
        self,
        path: Path,
        data: bytes | str,
        *,
        permissions: int | None = None,
        overwrite: bool = True,
        parents: bool = False,
    ) -> Steps[FileInfo]:
        """Write a file. It appears whole, or not at all.

        Args:
            data: text is written as UTF-8.
            permissions: as in `os.chmod`; None for those of the older file, or the usual ones.
            overwrite: replace an older file.
            parents: make missing directories.
        """
        begin = partial(
            file_steps.write_bytes,
            self._session,
            path,
            file_steps.bytes_of(data),
            permissions=permissions,
            overwrite=overwrite,
            parents=parents,
        )
        # Else nobody could tell a file of the first attempt from another one.
        return (yield from begun_again(begin) if overwrite else begin())

    @method
    def read_to(
        self,
        path: Path,
        write: Callable[[bytes], object],
        *,
        max_bytes: int | None = None,
        on_open: Callable[[FileInfo], object] | None = None,
    ) -> Steps[FileInfo]:
        """Read a file, piece by piece.

        Example::

            with open("plot.png", "wb") as file:
                client.files("work").read_to("plot.png", file.write)

        Args:
            write: called with each piece; what it raises ends the transfer.
            max_bytes: refuse a larger file. (The supervisor has a limit of its own.)
            on_open: called with the file before its first piece; what it raises ends the transfer.

        Returns:
            The file's absolute path in the session, its size and permissions.

        Raises:
            FileTooLargeError: it is too large.
        """
        return (yield from file_steps.receive_file(self._session, path, write, max_bytes, on_open))

    @method
    def write_from(
        self,
        path: Path,
        read: Callable[[int], bytes],
        *,
        permissions: int | None = None,
        overwrite: bool = True,
        size: int | None = None,
    ) -> Steps[FileInfo]:
        """Write a file, piece by piece. It appears whole at the end, or not at all.

        Example::

            with open("data.csv", "rb") as file:
                client.files("work").write_from("data.csv", file.read)

        Args:
            read: called with a number of bytes until it returns none; what it raises ends the
                transfer and leaves an older file as it was.
            permissions, overwrite: as in `write`.
            size: bytes that will come, if that is known: what cannot fit is refused at once.

        Raises:
            FileTooLargeError: it is too large.
        """
        steps = file_steps.send_file(
            self._session, path, read, permissions, overwrite=overwrite, size=size
        )
        return (yield from steps)

    @method
    def append(
        self, path: Path, data: bytes | str, *, permissions: int | None = None
    ) -> Steps[None]:
        """Add bytes at the end of a file, which is made if it is missing."""
        data = file_steps.bytes_of(data)
        append = partial(wire.file_put, self._session, text_of_path(path), append=True)
        for start in range(0, max(1, len(data)), PIECE_BYTES):
            yield from ask(append(data[start : start + PIECE_BYTES], permissions=permissions))

    @method
    def mkdir(self, path: Path, *, parents: bool = False) -> Steps[None]:
        """Make a directory, if there is none."""
        yield from ask(wire.file_mkdir(self._session, text_of_path(path), parents=parents))

    @method
    def remove(self, path: Path, *, recursive: bool = False) -> Steps[None]:
        """Remove a file, a link or an empty directory.

        Args:
            recursive: remove a directory with all that is in it. No link is followed.
        """
        call = wire.file_remove(self._session, text_of_path(path), recursive=recursive)
        try:
            yield from ask(call)
        except CutOffError:
            yield from begun_again(partial(_remove_rest, call))

    @method
    def rename(self, path: Path, to: Path, *, overwrite: bool = True) -> Steps[None]:
        """Give a file or a directory another name on its file system.

        Args:
            overwrite: replace a file that has that name.
        """
        there, new = text_of_path(path), text_of_path(to)
        yield from ask(wire.file_rename(self._session, there, new, overwrite=overwrite))

    @method
    def archive(self, path: Path, write: Callable[[bytes], object]) -> Steps[TreeReport]:
        """Read what is in a directory as a tar archive.

        Args:
            write: called with each piece of the archive.
        """
        return (yield from file_steps.archive(self._session, path, write))

    @method
    def unpack(self, path: Path, read: Callable[[int], bytes]) -> Steps[TreeReport]:
        """Unpack a tar archive into a directory, which is made if it is missing.

        What would lie outside is left out, and so is what is neither file, directory nor link.

        Args:
            read: called with a number of bytes until it returns none.
        """
        return (yield from file_steps.unpack(self._session, path, read))

    @method
    def upload(
        self,
        local: str | os.PathLike[str],
        path: Path,
        *,
        follow: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Steps[TreeReport]:
        """Copy a file or a directory from here. What is in a directory goes into the directory
        `path`, which is made if it is missing.

        Args:
            follow: read through symbolic links, which code may have put there.
            on_progress: called with the number of bytes so far, of the archive if it is a
                directory, and of the whole, None if that is not known. What it raises ends the
                copy.

        Returns:
            What was copied, and what was left out.
        """
        begin = partial(
            file_steps.upload,
            self._session,
            os.fspath(local),
            path,
            on_progress,
            follow=follow,
        )
        return (yield from begun_again(begin))

    @method
    def download(
        self,
        path: Path,
        local: str | os.PathLike[str],
        *,
        into: bool = False,
        follow: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Steps[TreeReport]:
        """Copy a file or a directory to here: to the file `local`, or into the directory `local`,
        which is made if it is missing.

        Of a directory, only files and directories come. Nothing is written outside of `local`, and
        through no link. A file that is replaced keeps its permissions, and one that is read-only
        stays.

        Args:
            into: copy into the directory `local`, under its own name.
            follow: `local` may be a symbolic link.
            on_progress: as in `upload`.

        Returns:
            What was copied, and what was left out; `path` is that in the session.
        """
        begin = partial(
            file_steps.download,
            self._session,
            path,
            os.fspath(local),
            on_progress,
            into=into,
            follow=follow,
        )
        return (yield from begun_again(begin))

    @method
    def watch(
        self, path: Path = ".", *, recursive: bool = False
    ) -> Steps[SyncOrAsync[ChangeWatch, AsyncChangeWatch]]:
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
        call = wire.file_watch(self._session, text_of_path(path), recursive=recursive)
        return self._choose(ChangeWatch, AsyncChangeWatch)(self, (yield from ask(call)))


def _remove_rest(call: OperationCall[Any]) -> Steps[None]:
    try:
        yield from ask(call)
    except FileError as error:
        if error.data.get("errno") != "ENOENT":
            raise


class SessionFiles(FileMethods, BlockingPart):
    __doc__ = FileMethods.__doc__

    def __init__(self, client: Blocking, session: str) -> None:
        super().__init__(client)
        self._session = session


class AsyncSessionFiles(FileMethods, AsyncPart):
    """Files of one session, as `SessionFiles` has them. `nsm.AsyncClient.files` makes it.

    Callbacks are called in a thread while a directory is copied; the others must not block.
    """

    def __init__(self, client: Async, session: str) -> None:
        super().__init__(client)
        self._session = session


class WatchMethods(Calls):
    """A path that is watched. It is an iterator of `FileEvent` until that path is gone.

    Attributes:
        path: absolute, in the session.
    """

    def _begin(self, opened: Watching) -> None:
        self.path = opened.path
        self._handle = opened.watch
        self._waiting: deque[FileEvent] = deque()
        self._ended = False

    @method
    def close(self) -> Steps[None]:
        """Watch no longer."""
        yield from ask(wire.file_unwatch(self._handle))

    @method
    def read(self, wait_s: float = 0.0) -> Steps[FileEvents]:
        """Return what has happened since the last time.

        Args:
            wait_s: wait so long for the first event; at most 60.
        """
        return (yield from ask(wire.file_events(self._handle, wait_s=wait_s)))

    def _next(self) -> Steps[FileEvent | None]:
        """Wait for the next event; None when none will follow."""
        while not self._waiting:
            if self._ended:
                return None
            found = yield from ask(wire.file_events(self._handle, wait_s=WAIT_S))
            self._waiting.extend(found.events)
            if found.overflow:
                self._waiting.append(FileEvent("overflow", ""))
            self._ended = found.ended
        return self._waiting.popleft()


class ChangeWatch(WatchMethods, BlockingPart):
    __doc__ = WatchMethods.__doc__

    def __init__(self, client: Blocking, opened: Watching) -> None:
        super().__init__(client)
        self._begin(opened)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(NsmError):  # the session or the connection may be gone
            self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FileEvent:
        event = self.carry_out(self._next())
        if event is None:
            raise StopIteration
        return event


class AsyncChangeWatch(WatchMethods, AsyncPart):
    """The same for `nsm.AsyncClient`: an asynchronous iterator."""

    def __init__(self, client: Async, opened: Watching) -> None:
        super().__init__(client)
        self._begin(opened)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(NsmError):  # the session or the connection may be gone
            await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileEvent:
        event = await self.carry_out(self._next())
        if event is None:
            raise StopAsyncIteration
        return event
