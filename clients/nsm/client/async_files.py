"""Files of sessions: the part of `nsm.AsyncClient` that reads and writes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import trio

from nsm.wire.answers import read

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from nsm.client.session_files import AsyncSessionFiles
    from nsm.client.transfers import Step
    from nsm.wire.sessions import Directory, FileInfo

T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0
"""How long a cancelled transfer may still take to close its file in the session."""


class AsyncFileCalls:
    """Calls about files. `nsm.AsyncClient` is one of these."""

    async def call(self, op: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        """Any operation: the client's part."""
        raise NotImplementedError

    async def get_file(
        self,
        target: str,
        path: str,
        write: Callable[[bytes], object],
        *,
        max_bytes: int | None = None,
        on_open: Callable[[FileInfo], object] | None = None,
    ) -> FileInfo:
        """Read a file of a session; see `nsm.Client.get_file`. `write` must not block for long."""
        from nsm.client import transfers  # noqa: PLC0415  # few programs transfer files

        return await self.carry_out(transfers.get(target, path, write, max_bytes, on_open))

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
        """Write a file of a session; see `nsm.Client.put_file`. `read` must not block for long."""
        from nsm.client import transfers  # noqa: PLC0415  # few programs transfer files

        return await self.carry_out(
            transfers.put(target, path, read, permissions, overwrite=overwrite, size=size)
        )

    def files(self, session: str) -> AsyncSessionFiles:
        """Files of a live session: list, read, write, remove, copy directories and more.

        Args:
            session: an id or a name.
        """
        from nsm.client.session_files import AsyncSessionFiles  # noqa: PLC0415  # few programs ask

        return AsyncSessionFiles(self, session)

    async def list_files(self, target: str, path: str) -> Directory:
        """List a directory of a session; see `nsm.Client.list_files`."""
        from nsm.wire.sessions import Directory  # noqa: PLC0415  # few programs transfer files

        return read(Directory, await self.call("file_list", {"target": target, "path": path}))

    async def make_directory(self, target: str, path: str) -> Directory:
        """Make a directory in a session; see `nsm.Client.make_directory`."""
        from nsm.wire.sessions import Directory  # noqa: PLC0415  # few programs transfer files

        return read(Directory, await self.call("file_mkdir", {"target": target, "path": path}))

    async def carry_out(self, transfer: Generator[Step, dict[str, Any], T]) -> T:
        """Carry out steps (`nsm.client.transfers`)."""
        from nsm.client.transfers import is_operation  # noqa: PLC0415  # as above

        closing = False
        try:
            step = next(transfer)
            while True:
                answer: dict[str, Any] = {}
                try:
                    if is_operation(step):
                        # What is cancelled still closes its file: a session has few of them.
                        limit_s = CLOSE_TIMEOUT_S if closing else math.inf
                        with trio.move_on_after(limit_s, shield=closing):
                            answer = await self.call(*step)
                    elif step is not None:
                        # If it is abandoned, it ends when its pipe breaks.
                        await trio.to_thread.run_sync(step, abandon_on_cancel=True)
                    else:
                        await trio.lowlevel.checkpoint()
                except BaseException as error:  # noqa: BLE001  # the transfer raises it again
                    closing = True
                    step = transfer.throw(error)
                else:
                    step = transfer.send(answer)
        except StopIteration as end:
            outcome: T = end.value
            return outcome
