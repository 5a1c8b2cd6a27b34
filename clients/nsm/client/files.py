"""Files of sessions: the part of `nsm.Client` that reads and writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.wire.answers import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nsm.client.session_files import SessionFiles
    from nsm.wire.sessions import Directory, FileInfo


class FileCalls:
    """Calls about files. `nsm.Client` is one of these."""

    def call(self, op: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        """Any operation: the client's part."""
        raise NotImplementedError

    def get_file(
        self,
        target: str,
        path: str,
        write: Callable[[bytes], object],
        *,
        max_bytes: int | None = None,
        on_open: Callable[[FileInfo], object] | None = None,
    ) -> FileInfo:
        """Read a file of a session, piece by piece.

        Example::

            with open("plot.png", "wb") as file:
                client.get_file("work", "plot.png", file.write)

        Args:
            path: in the session; relative to its workspace.
            write: called with each piece; what it raises ends the transfer.
            max_bytes: refuse a larger file. (The supervisor has a limit of its own.)
            on_open: called with the file before its first piece; what it raises ends the transfer.

        Returns:
            The file's absolute path in the session, its size and permissions.

        Raises:
            FileError: it cannot be read; the message says why.
            FileTooLargeError: it is too large.
        """
        from nsm.client import transfers  # noqa: PLC0415  # for `nsm cp`

        return transfers.carry_out(
            transfers.get(target, path, write, max_bytes, on_open), self.call
        )

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
        """Write a file of a session, piece by piece. It appears whole at the end, or not at all.

        Example::

            with open("data.csv", "rb") as file:
                client.put_file("work", "data.csv", file.read)

        Args:
            path: in the session; relative to its workspace.
            read: called with a number of bytes until it returns none; what it raises ends the
                transfer and leaves an older file as it was.
            permissions: as in `os.chmod`; None for the session's own choice.
            overwrite: replace an older file.
            size: bytes that will come, if that is known: what cannot fit is refused at once.

        Raises:
            FileError: it cannot be written; the message says why.
            FileTooLargeError: it is too large.
        """
        from nsm.client import transfers  # noqa: PLC0415  # for `nsm cp`

        transfer = transfers.put(target, path, read, permissions, overwrite=overwrite, size=size)
        return transfers.carry_out(transfer, self.call)

    def files(self, session: str) -> SessionFiles:
        """Files of a live session: list, read, write, remove, copy directories and more.

        Args:
            session: an id or a name.
        """
        from nsm.client.session_files import SessionFiles  # noqa: PLC0415  # few programs ask

        return SessionFiles(self, session)

    def list_files(self, target: str, path: str) -> Directory:
        """List a directory of a session, one level of it.

        Raises:
            FileError: it cannot be read; the message says why.
        """
        from nsm.wire.sessions import Directory  # noqa: PLC0415  # for `nsm cp`

        return read(Directory, self.call("file_list", {"target": target, "path": path}))

    def make_directory(self, target: str, path: str) -> Directory:
        """Make a directory in a session where there is none; its entries are not told.

        Raises:
            FileError: it cannot be made; the message says why.
        """
        from nsm.wire.sessions import Directory  # noqa: PLC0415  # for `nsm cp`

        return read(Directory, self.call("file_mkdir", {"target": target, "path": path}))
