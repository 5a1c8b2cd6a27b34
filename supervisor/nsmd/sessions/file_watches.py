"""Paths of sessions that clients watch."""

from __future__ import annotations

from collections import deque

import trio

from nsm.wire.errors import FileError
from nsmd.agent_link.file_frames import FileChange, FileEventsFrame, FileWatchingFrame
from nsmd.sessions.files import ask
from nsmd.sessions.session import Session

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
        """Begin.

        Raises:
            FileError: it cannot be watched.
            NsmError: the session has ended, or cannot do that.
        """
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
        self._session.requests.tell({"type": "file_unwatch", "id": self._id})
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
        """Return the watch of that handle.

        Raises:
            FileError: there is none.
        """
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
