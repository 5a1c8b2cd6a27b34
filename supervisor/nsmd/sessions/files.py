"""Files to and from a session, piece by piece, and paths of it that clients watch.

The agent opens, reads and writes. Its answers are checked against the request and against its
earlier answers. An agent that sends more than it announced, never comes to an end or miscounts has
been taken over: its session ends, and nothing else.
"""

from __future__ import annotations

import base64
import fcntl
import os
import stat
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Literal, TypeVar

import trio

from nsm.wire.errors import FileError, FileTooLargeError
from nsmd.agent_link.file_frames import (
    FileChange,
    FileClosedFrame,
    FileContentFrame,
    FileDataFrame,
    FileDirectoryFrame,
    FileEntriesFrame,
    FileErrorFrame,
    FileEventsFrame,
    FileFrame,
    FileWatchingFrame,
)
from nsmd.agent_link.requests import NoAnswerError
from nsmd.sessions.session import Session
from sandbox.paths import VIRTUAL_FILE_SYSTEMS, file_system

Mode = Literal["read", "write", "archive", "unpack"]
Kind = TypeVar(
    "Kind",
    FileFrame,
    FileDataFrame,
    FileClosedFrame,
    FileDirectoryFrame,
    FileContentFrame,
    FileEntriesFrame,
    FileWatchingFrame,
)

ANSWER_TIMEOUT_S = 30.0
"""Time for one step. An agent takes a millisecond; one that was stopped or starved takes longer."""

TOO_LARGE_HINT = "Raise `max_file_mb` in [session] of config.toml, or split the file."

TREE_TIMEOUT_S = 3600.0
"""Time for what takes as long as a directory has files: the end of an archive, a removal."""


class Transfer:
    """One open file of a session. `open` makes it; `close`, `abandon` or an error ends it.

    Its steps run one at a time.

    Attributes:
        info: path, permissions, and its size when it was opened, as the agent says.
    """

    def __init__(self, session: Session, mode: Mode, max_bytes: int) -> None:
        self.info = FileFrame(id=session.requests.new_id(), path="", size=0, permissions=0)
        self.over = False
        self._session = session
        self._mode: Mode = mode
        self._max_bytes = max_bytes
        self._moved_bytes = 0
        self._asked = False  # the agent may have the file open
        self._direct = False
        self._pipe: int | None = None  # our end of an archive's pipe, if the client has none
        self._turn = trio.Lock()

    def __repr__(self) -> str:
        state = "over" if self.over else "open"
        return f"<Transfer {self._mode} {self.info.path!r} in {self._session.id} {state}>"

    @property
    def streams(self) -> bool:
        """True if an archive goes through `read` or `write`."""
        return self._pipe is not None

    async def open(
        self,
        path: str,
        *,
        permissions: int | None,
        overwrite: bool,
        size: int = 0,
        direct: bool = False,
    ) -> int | None:
        """Open the file.

        Args:
            direct: whoever asks reads or writes the file itself, without us. Of an archive, `read`
                and `write` do it otherwise.

        Returns:
            A descriptor of the file, or of the pipe that an archive goes through, for `direct`.
            None if the agent is too old for that, or if it was not asked.

        Raises:
            FileError: it cannot be opened, or would not fit.
            NsmError: the session has ended, or cannot do that.

        Cancellation: the file is closed again.
        """
        id_ = self.info.id
        frame: dict[str, Any] = {"type": "file_open", "path": path, "mode": self._mode}
        if self._mode == "write":
            self._check_size(size, path)
            frame |= {"overwrite": overwrite}
            if permissions is not None:
                frame |= {"permissions": permissions}
        is_tree = self._mode in ("archive", "unpack")
        if direct or is_tree:
            frame |= {"descriptor": True, "limit": self._max_bytes}
        try:
            self.info = await self._ask(
                frame, FileFrame, capability="files.direct" if is_tree else "files"
            )
            descriptor = self._claim() if self.info.descriptor else None
        except BaseException:
            if self._session.link is not None:
                self._session.link.forget_descriptor(id_)
            raise
        try:
            self._check_opened(size)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        self._direct = descriptor is not None
        if descriptor is not None and not direct:
            os.set_blocking(descriptor, False)
            self._pipe = descriptor
            return None
        return descriptor

    def _claim(self) -> int:
        """Take the descriptor that came with the answer, if it is what was asked for.

        It came out of a jail. Whoever gets it reads or writes without looking at it again.
        """
        link = self._session.link
        descriptor = None if link is None else link.claim_descriptor(self.info.id)
        if descriptor is None:
            raise self._session.distrust("a file came without its descriptor")
        if self._fits(descriptor):
            return descriptor
        os.close(descriptor)
        raise self._session.distrust("a descriptor is not of a file that can be copied")

    def _fits(self, descriptor: int) -> bool:
        mode = os.fstat(descriptor).st_mode
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_PATH)
        wanted = os.O_RDONLY if self._mode in ("read", "archive") else os.O_WRONLY
        is_tree = self._mode in ("archive", "unpack")
        is_kind = stat.S_ISFIFO(mode) if is_tree else stat.S_ISREG(mode)
        return is_kind and access == wanted and file_system(descriptor) not in VIRTUAL_FILE_SYSTEMS

    def _check_opened(self, size: int) -> None:
        """Check that the file is not too large, and that there is room for it."""
        if self._mode == "read":
            self._check_size(self.info.size, self.info.path)
        elif self.info.free_bytes is not None and size > self.info.free_bytes:
            self.abandon()
            raise FileError(
                f"{self.info.path}: {size} bytes do not fit, {self.info.free_bytes} are free there",
                hint="Remove files in the session, or raise its limit in config.toml.",
                data={"errno": "ENOSPC"},
            )

    async def read(self, count: int) -> FileDataFrame:
        """Read the next bytes, at most `count`."""
        if self._pipe is not None and self._mode == "archive":
            async with self._turn:
                data = await _read_pipe(self._pipe, count)
                return FileDataFrame(id=self.info.id, data=data, eof=not data)
        self._check_mode("read")
        async with self._turn:
            piece = await self._ask({"type": "file_read", "bytes": count}, FileDataFrame)
            self._moved_bytes += len(piece.data)
            if len(piece.data) > count or self._moved_bytes > self.info.size:
                raise self._session.distrust("more of a file came than was asked for")
            if not piece.data and not piece.eof:
                raise self._session.distrust("a file came to no end")
            return piece

    async def write(self, data: bytes) -> int:
        """Append bytes. Returns the size so far, also of what somebody else has written."""
        if self._pipe is not None and self._mode == "unpack":
            async with self._turn:
                self._moved_bytes += await _write_pipe(self._pipe, data)
                return self._moved_bytes
        self._check_mode("write")
        async with self._turn:
            self._check_size(self._moved_bytes + len(data), self.info.path)
            text = base64.b64encode(data).decode()
            written = await self._ask({"type": "file_write", "data": text}, FileFrame)
            self._moved_bytes += len(data)
            if self._direct:
                self._check_size(written.size, self.info.path)
            else:
                self._check_count(written.size)
            return written.size

    async def close(self, *, keep: bool) -> FileClosedFrame:
        """End the transfer; a written file appears if it is kept."""
        async with self._turn:
            self._close_pipe()
            frame = {"type": "file_close", "keep": keep}
            is_tree = self._mode in ("archive", "unpack")
            timeout_s = TREE_TIMEOUT_S if is_tree else ANSWER_TIMEOUT_S
            closed = await self._ask(frame, FileClosedFrame, timeout_s=timeout_s)
            self.over = True
            if not self._direct:
                self._check_count(closed.size)
            return closed

    def abandon(self) -> None:
        """Close the file without keeping what was written, and without waiting."""
        self._close_pipe()
        if self._asked and not self.over:
            frame = {"type": "file_close", "id": self.info.id, "keep": False}
            self._session.requests.send(frame)
        self.over = True

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            trio.lowlevel.notify_closing(pipe)
            os.close(pipe)

    async def _ask(
        self,
        frame: Mapping[str, Any],
        kind: type[Kind],
        *,
        capability: str = "files",
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Kind:
        if self.over:
            raise FileError("This transfer is over.", hint="Open the file again.")
        self._asked = True
        frame = {**frame, "id": self.info.id}
        try:
            answer = await _ask(self._session, capability, frame, kind, timeout_s)
        except BaseException:
            self.abandon()
            raise
        if isinstance(answer, FileErrorFrame):
            self.over = True
            raise _refusal(answer)
        return answer

    def _check_mode(self, mode: Mode) -> None:
        if self._mode != mode:
            raise FileError(f"The file is open to {self._mode}, not to {mode}.")

    def _check_size(self, size: int, path: str) -> None:
        if size > self._max_bytes:
            self.abandon()
            raise FileTooLargeError(
                f"{path} has {size} bytes or more; the limit is {self._max_bytes}.",
                hint=TOO_LARGE_HINT,
                data={"size": size, "limit": self._max_bytes},
            )

    def _check_count(self, size: int) -> None:
        if size != self._moved_bytes:
            raise self._session.distrust("the size of a file is not what was transferred")


async def _read_pipe(pipe: int, count: int) -> bytes:
    """Read what there is, once there is something; empty at the end."""
    while True:
        await trio.lowlevel.wait_readable(pipe)
        with suppress(BlockingIOError):
            return os.read(pipe, count)


async def _write_pipe(pipe: int, data: bytes) -> int:
    """Write all; returns how much of it somebody still read."""
    written = 0
    while written < len(data):
        await trio.lowlevel.wait_writable(pipe)
        try:
            written += os.write(pipe, data[written:])
        except BlockingIOError:
            continue
        except BrokenPipeError:  # the answer to `close` says why
            break
    return written


async def ask(
    session: Session,
    request: str,
    path: str,
    kind: type[Kind],
    *,
    capability: str = "files.direct",
    timeout_s: float = ANSWER_TIMEOUT_S,
    fields: Mapping[str, object] = MappingProxyType({}),
) -> Kind:
    """Ask the agent something about files that leaves nothing open."""
    frame = {"type": request, "id": session.requests.new_id(), "path": path, **fields}
    answer = await _ask(session, capability, frame, kind, timeout_s)
    if isinstance(answer, FileErrorFrame):
        raise _refusal(answer)
    return answer


async def _ask(
    session: Session,
    capability: str,
    frame: Mapping[str, Any],
    kind: type[Kind],
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> Kind | FileErrorFrame:
    try:
        answer = await session.requests.ask(capability, frame, (kind, FileErrorFrame), timeout_s)
    except NoAnswerError:
        raise FileError(
            f"The session's agent has not answered within {timeout_s:.0f} s.",
            hint="Its processes may be stopped, or the machine is overloaded.",
        ) from None
    session.note_activity()
    assert isinstance(answer, (kind, FileErrorFrame)), "nothing else was asked for"
    return answer


def _refusal(frame: FileErrorFrame) -> FileError:
    if frame.code == "EFBIG":
        return FileTooLargeError(frame.message, hint=TOO_LARGE_HINT, data={"errno": frame.code})
    return FileError(frame.message, data={"errno": frame.code})


class OpenFiles:
    """Open files of one connection, by handle; they are closed with it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._transfers: dict[int, Transfer] = {}
        # Elsewhere for each connection: a handle of another one leads to none of these files.
        self._last = int.from_bytes(os.urandom(4))

    def __len__(self) -> int:
        return len(self._transfers)

    async def open(
        self,
        session: Session,
        path: str,
        mode: Mode,
        *,
        permissions: int | None,
        overwrite: bool,
        size: int = 0,
        direct: bool = False,
    ) -> tuple[int, Transfer, int | None]:
        """Open a file of a session. Returns its handle, and a descriptor as `Transfer.open`, which
        raises the same errors.
        """
        transfer = Transfer(session, mode, self._max_bytes)
        descriptor = await transfer.open(
            path, permissions=permissions, overwrite=overwrite, size=size, direct=direct
        )
        self._last += 1
        self._transfers = {h: t for h, t in self._transfers.items() if not t.over}
        self._transfers[self._last] = transfer
        return self._last, transfer, descriptor

    def get(self, handle: int) -> Transfer:
        """Return the open file of that handle."""
        transfer = self._transfers.get(handle)
        if transfer is None or transfer.over:
            raise FileError(
                f"No file {handle} is open on this connection.",
                hint="A transfer is over after an error and with its connection.",
            )
        return transfer

    def abandon_all(self) -> None:
        """Close all files: the connection is gone."""
        for transfer in self._transfers.values():
            transfer.abandon()
        self._transfers.clear()


MAX_WAITING = 10_000
"""Largest number of events that wait for a client; more are left out, which it is told."""


class WatchedPath:
    """One path that a client watches; `open` begins it.

    Attributes:
        path: without links.
    """

    def __init__(self, session: Session) -> None:
        self.path = ""
        self._session = session
        self._id = session.requests.new_id()
        self._events: deque[FileChange] = deque()
        self._overflow = self._ended = False
        self._news = trio.Event()

    def __repr__(self) -> str:
        return f"<WatchedPath {self.path!r} in {self._session.id}, {len(self._events)} waiting>"

    async def open(self, path: str, *, recursive: bool) -> None:
        """Begin to watch a path, which must be there."""
        self._session.requests.listen(self._id, self._take)
        try:
            answer = await ask(
                self._session,
                "file_watch",
                path,
                FileWatchingFrame,
                capability="files.watch",
                fields={"id": self._id, "recursive": recursive},
            )
        except BaseException:
            self.close()
            raise
        self.path = answer.path

    def close(self) -> None:
        """End it."""
        self._session.requests.unlisten(self._id)
        self._session.requests.send({"type": "file_unwatch", "id": self._id})
        self._ended = True
        self._news.set()

    def _take(self, frame: FileEventsFrame | None) -> None:
        if frame is None:
            self._ended = True
        else:
            room = MAX_WAITING - len(self._events)
            self._events.extend(frame.events[:room])
            self._overflow = self._overflow or frame.overflow or len(frame.events) > room
            self._ended = self._ended or frame.ended
        self._news.set()

    async def next(self, wait_s: float) -> tuple[list[FileChange], bool, bool]:
        """Wait for events; returns them, whether some are missing, and whether none will follow."""
        with trio.move_on_after(wait_s):
            while not self._events and not self._overflow and not self._ended:
                self._news = trio.Event()
                await self._news.wait()
        events, overflow = list(self._events), self._overflow
        self._events.clear()
        self._overflow = False
        return events, overflow, self._ended


class OpenWatches:
    """Paths that one connection watches, by handle."""

    def __init__(self) -> None:
        self._watches: dict[int, WatchedPath] = {}
        self._last = 0

    async def open(
        self, session: Session, path: str, *, recursive: bool
    ) -> tuple[int, WatchedPath]:
        """Watch a path. Returns its handle. Raises the same errors as `WatchedPath.open`."""
        watch = WatchedPath(session)
        await watch.open(path, recursive=recursive)
        self._last += 1
        self._watches[self._last] = watch
        return self._last, watch

    def get(self, handle: int) -> WatchedPath:
        """Return the watch of that handle."""
        watch = self._watches.get(handle)
        if watch is None:
            raise FileError(f"Nothing is watched as {handle} on this connection.")
        return watch

    def close(self, handle: int) -> None:
        """Stop watching; raises as `get`."""
        self.get(handle).close()
        del self._watches[handle]

    def close_all(self) -> None:
        """Stop watching everything: the connection is gone."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
