"""``client.files(session)``: the files of a session."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.client import file_steps, transfers
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TypeVar

    from nsm.client.steps import Calls, Steps
    from nsm.wire.files import FileEntry, FileEvent, FileEvents, FileInfo, TreeReport

    T = TypeVar("T")
    Path = str | bytes
    OnProgress = Callable[[int, int | None], object]
    Entries = list[FileEntry]


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

    def __init__(self, client: Calls, session: str) -> None:
        self._client = client
        self._session = session

    def __repr__(self) -> str:
        return f"<nsm files of {self._session!r}>"

    def _do(self, steps: Steps[T]) -> T:
        return self._client.carry_out(steps)

    def list(self, path: Path = ".") -> Entries:
        """List a directory, by name."""
        found = self._do(file_steps.list_directory(self._session, path))
        return list(found.entries)

    def stat(self, path: Path, *, follow: bool = True) -> FileEntry:
        """Return what a path leads to.

        Args:
            follow: symbolic links are followed; else the link itself is told, with its `target`.
        """
        return self._do(file_steps.stat(self._session, path, follow=follow))

    def exists(self, path: Path) -> bool:
        """Return whether a path leads to anything."""
        return self._do(file_steps.exists(self._session, path))

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
            data,
            permissions=permissions,
            overwrite=overwrite,
            parents=parents,
        )
        return self._do(steps)

    def read_to(
        self,
        path: Path,
        write: Callable[[bytes], object],
        *,
        max_bytes: int | None = None,
        on_open: Callable[[FileInfo], object] | None = None,
    ) -> FileInfo:
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
        return self._do(transfers.get(self._session, path, write, max_bytes, on_open))

    def write_from(
        self,
        path: Path,
        read: Callable[[int], bytes],
        *,
        permissions: int | None = None,
        overwrite: bool = True,
        size: int | None = None,
    ) -> FileInfo:
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
        steps = transfers.put(
            self._session, path, read, permissions, overwrite=overwrite, size=size
        )
        return self._do(steps)

    def append(self, path: Path, data: bytes | str, *, permissions: int | None = None) -> None:
        """Add bytes at the end of a file, which is made if it is missing."""
        self._do(file_steps.append(self._session, path, data, permissions=permissions))

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
        return self._do(file_steps.archive(self._session, path, write))

    def unpack(self, path: Path, read: Callable[[int], bytes]) -> TreeReport:
        """Unpack a tar archive into a directory, which is made if it is missing.

        What would lie outside is left out, and so is what is neither file, directory nor link.

        Args:
            read: called with a number of bytes until it returns none.
        """
        return self._do(file_steps.unpack(self._session, path, read))

    def upload(
        self,
        local: str | os.PathLike[str],
        path: Path,
        *,
        follow: bool = False,
        on_progress: OnProgress | None = None,
    ) -> TreeReport:
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
        return self._do(
            file_steps.upload(self._session, os.fspath(local), path, on_progress, follow=follow)
        )

    def download(
        self,
        path: Path,
        local: str | os.PathLike[str],
        *,
        into: bool = False,
        follow: bool = False,
        on_progress: OnProgress | None = None,
    ) -> TreeReport:
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
        place = os.fspath(local)
        steps = file_steps.download(
            self._session, path, place, on_progress, into=into, follow=follow
        )
        return self._do(steps)

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
        steps = file_steps.watch(self._session, path, recursive=recursive)
        return ChangeWatch(self._client, self._do(steps))


class ChangeWatch:
    """A path that is watched. It is an iterator of `FileEvent` until that path is gone.

    Attributes:
        path: absolute, in the session.
    """

    def __init__(self, client: Calls, watch: file_steps.Watch) -> None:
        self.path = watch.path
        self._client = client
        self._watch = watch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(NsmError):  # the session or the connection may be gone
            self.close()

    def close(self) -> None:
        """Watch no longer."""
        self._client.carry_out(self._watch.close())

    def read(self, wait_s: float = 0.0) -> FileEvents:
        """Return what has happened since the last time.

        Args:
            wait_s: wait so long for the first event; at most 60.
        """
        return self._client.carry_out(self._watch.read(wait_s))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FileEvent:
        event = self._client.carry_out(self._watch.next())
        if event is None:
            raise StopIteration
        return event
