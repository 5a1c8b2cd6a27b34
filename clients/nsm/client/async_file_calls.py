"""Files of sessions: the part of `nsm.AsyncClient` that reads and writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client.async_steps import AsyncCalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsm.client.async_session_files import AsyncSessionFiles
    from nsm.wire.files import Directory, FileInfo


class AsyncFileCalls(AsyncCalls):
    """Calls about files. `nsm.AsyncClient` is one of these."""

    async def get_file(
        self,
        target: str,
        path: str,
        write: Callable[[bytes], object],
        *,
        max_bytes: int | None = None,
        on_open: Callable[[FileInfo], object] | None = None,
    ) -> FileInfo:
        """Read a file of a session, piece by piece, as ``files(target).read_to`` does."""
        files = self.files(target)
        return await files.read_to(path, write, max_bytes=max_bytes, on_open=on_open)

    async def put_file(
        self,
        target: str,
        path: str,
        read: Callable[[int], bytes],
        *,
        permissions: int | None = None,
        overwrite: bool = True,
        size: int | None = None,
    ) -> FileInfo:
        """Write a file of a session, piece by piece, as ``files(target).write_from`` does."""
        return await self.files(target).write_from(
            path, read, permissions=permissions, overwrite=overwrite, size=size
        )

    def files(self, session: str) -> AsyncSessionFiles:
        """Files of a live session: list, read, write, remove, copy directories and more.

        Args:
            session: an id or a name.
        """
        from nsm.client.async_session_files import AsyncSessionFiles  # noqa: PLC0415  # few programs ask

        return AsyncSessionFiles(self, session)

    async def list_files(self, target: str, path: str) -> Directory:
        """List a directory of a session; see `nsm.Client.list_files`."""
        from nsm.client import file_steps  # noqa: PLC0415  # few programs ask

        return await self.carry_out(file_steps.list_directory(target, path))

    async def make_directory(self, target: str, path: str) -> Directory:
        """Make a directory in a session; see `nsm.Client.make_directory`."""
        from nsm.client import file_steps  # noqa: PLC0415  # few programs ask

        return await self.carry_out(file_steps.make_directory(target, path, parents=False))
