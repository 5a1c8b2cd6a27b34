"""Files of sessions: the part of `nsm.Client` that reads and writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client.steps import Calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsm.client.session_files import SessionFiles
    from nsm.wire.files import Directory, FileInfo


class FileCalls(Calls):
    """Calls about files. `nsm.Client` is one of these."""

    def get_file(
        self,
        target: str,
        path: str,
        write: Callable[[bytes], object],
        *,
        max_bytes: int | None = None,
        on_open: Callable[[FileInfo], object] | None = None,
    ) -> FileInfo:
        """Read a file of a session, piece by piece, as ``files(target).read_to`` does."""
        return self.files(target).read_to(path, write, max_bytes=max_bytes, on_open=on_open)

    def put_file(
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
        return self.files(target).write_from(
            path, read, permissions=permissions, overwrite=overwrite, size=size
        )

    def files(self, session: str) -> SessionFiles:
        """Files of a live session: list, read, write, remove, copy directories and more.

        Args:
            session: an id or a name.
        """
        from nsm.client.session_files import SessionFiles  # noqa: PLC0415  # few programs ask

        return SessionFiles(self, session)

    def list_files(self, target: str, path: str) -> Directory:
        """List a directory of a session, as ``files(target).list`` does.

        Returns:
            The directory's absolute path in the session, and its entries.
        """
        from nsm.client import file_steps  # noqa: PLC0415  # few programs ask

        return self.carry_out(file_steps.list_directory(target, path))

    def make_directory(self, target: str, path: str) -> Directory:
        """Make a directory in a session where there is none, as ``files(target).mkdir`` does.

        Returns:
            The directory's absolute path in the session; its entries are not told.
        """
        from nsm.client import file_steps  # noqa: PLC0415  # few programs ask

        return self.carry_out(file_steps.make_directory(target, path, parents=False))
