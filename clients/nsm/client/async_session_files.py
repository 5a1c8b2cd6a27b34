"""``client.files(session)`` of the client on trio."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.client import file_steps, transfers
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TypeVar

    from nsm.client.async_steps import AsyncCalls
    from nsm.client.steps import Steps
    from nsm.wire.files import FileEntry, FileEvent, FileEvents, FileInfo, TreeReport

    T = TypeVar("T")
    Path = str | bytes
    OnProgress = Callable[[int, int | None], object]
    Entries = list[FileEntry]


class AsyncSessionFiles:
    """Files of one session, as `SessionFiles` has them. `nsm.AsyncClient.files` makes it.

    Callbacks are called in a thread while a directory is copied.
    """

    def __init__(self, client: AsyncCalls, session: str) -> None:
        self._client = client
        self._session = session

    def __repr__(self) -> str:
        return f"<nsm files of {self._session!r}>"

    async def _do(self, steps: Steps[T]) -> T:
        return await self._client.carry_out(steps)

    async def list(self, path: Path = ".") -> Entries:
        """List a directory, by name; see `SessionFiles`."""
        found = await self._do(file_steps.list_directory(self._session, path))
        return list(found.entries)

    async def stat(self, path: Path, *, follow: bool = True) -> FileEntry:
        """Return what a path leads to; see `SessionFiles`."""
        return await self._do(file_steps.stat(self._session, path, follow=follow))

    async def exists(self, path: Path) -> bool:
        """Return whether a path leads to anything; see `SessionFiles`."""
        return await self._do(file_steps.exists(self._session, path))

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
            data,
            permissions=permissions,
            overwrite=overwrite,
            parents=parents,
        )
        return await self._do(steps)

    async def read_to(
        self,
        path: Path,
        write: Callable[[bytes], object],
        *,
        max_bytes: int | None = None,
        on_open: Callable[[FileInfo], object] | None = None,
    ) -> FileInfo:
        """Read a file piece by piece; see `SessionFiles`. `write` must not block for long."""
        return await self._do(transfers.get(self._session, path, write, max_bytes, on_open))

    async def write_from(
        self,
        path: Path,
        read: Callable[[int], bytes],
        *,
        permissions: int | None = None,
        overwrite: bool = True,
        size: int | None = None,
    ) -> FileInfo:
        """Write a file piece by piece; see `SessionFiles`. `read` must not block for long."""
        steps = transfers.put(
            self._session, path, read, permissions, overwrite=overwrite, size=size
        )
        return await self._do(steps)

    async def append(
        self, path: Path, data: bytes | str, *, permissions: int | None = None
    ) -> None:
        """Add bytes at the end of a file, which is made if it is missing; see `SessionFiles`."""
        await self._do(file_steps.append(self._session, path, data, permissions=permissions))

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
        return await self._do(file_steps.archive(self._session, path, write))

    async def unpack(self, path: Path, read: Callable[[int], bytes]) -> TreeReport:
        """Unpack a tar archive into a directory; see `SessionFiles`."""
        return await self._do(file_steps.unpack(self._session, path, read))

    async def upload(
        self,
        local: str | os.PathLike[str],
        path: Path,
        *,
        follow: bool = False,
        on_progress: OnProgress | None = None,
    ) -> TreeReport:
        """Copy a file or a directory from here; see `SessionFiles`."""
        return await self._do(
            file_steps.upload(self._session, os.fspath(local), path, on_progress, follow=follow)
        )

    async def download(
        self,
        path: Path,
        local: str | os.PathLike[str],
        *,
        into: bool = False,
        follow: bool = False,
        on_progress: OnProgress | None = None,
    ) -> TreeReport:
        """Copy a file or a directory to here; see `SessionFiles`."""
        place = os.fspath(local)
        steps = file_steps.download(
            self._session, path, place, on_progress, into=into, follow=follow
        )
        return await self._do(steps)

    async def watch(self, path: Path = ".", *, recursive: bool = False) -> AsyncChangeWatch:
        """Watch a file, or what is in a directory; see `SessionFiles`."""
        steps = file_steps.watch(self._session, path, recursive=recursive)
        return AsyncChangeWatch(self._client, await self._do(steps))


class AsyncChangeWatch:
    """A path that is watched. It is an async iterator of `FileEvent` until that path is gone.

    Attributes:
        path: absolute, in the session.
    """

    def __init__(self, client: AsyncCalls, watch: file_steps.Watch) -> None:
        self.path = watch.path
        self._client = client
        self._watch = watch

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(NsmError):  # the session or the connection may be gone
            await self.close()

    async def close(self) -> None:
        """Watch no longer."""
        await self._client.carry_out(self._watch.close())

    async def read(self, wait_s: float = 0.0) -> FileEvents:
        """Return what has happened since the last time; see `ChangeWatch`."""
        return await self._client.carry_out(self._watch.read(wait_s))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileEvent:
        event = await self._client.carry_out(self._watch.next())
        if event is None:
            raise StopAsyncIteration
        return event
