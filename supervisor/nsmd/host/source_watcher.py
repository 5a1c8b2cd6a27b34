"""Sources that are read now, and again whenever something that they depend on changes.

Nothing polls: after a notice of the kernel a source is read again, a moment later, since changes
come in bursts. If the kernel cannot tell (no watches left; a network file system that others write
to), a source is read when somebody asks. Each has a task, and a thread while it is read, so that
one that hangs delays only itself.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import trio

from nsmd.host.inotify import Inotify, Stir, Watches
from nsmd.host.paths import WatchedPaths

log = logging.getLogger(__name__)

QUIET_S = 0.1
"""A source is read when nothing has changed for so long: copying an artifact changes much."""

PATIENCE_S = 2.0
"""Longest time before a source is read that never gets quiet."""

LOOK_TIMEOUT_S = 5.0
"""How long a caller waits for a look; a disk may be slow, a network gone."""

_MOST_LOOKS = 4
"""Largest number of looks in a row while each finds new directories to watch."""


class Seen(Protocol):
    """Result of one look at a source."""

    @property
    def places(self) -> WatchedPaths:
        """Paths that it depended on."""
        ...


SeenT = TypeVar("SeenT", bound=Seen)

Look = Callable[[], SeenT]
"""Looks at a source; blocks."""

Report = Callable[[SeenT, str | None], None]
"""Gets the result of a look, and why changes of it will not be noticed (None if they will); it must
be quick.
"""


def _nothing() -> None:
    """Do nothing: the default for `stirred`."""


class SourceWatcher:
    """Sources that are read again when they change."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._kept: dict[object, _Source[Any]] = {}
        self._watches: Watches | None = None
        self._unwatched: str | None = None

    def __repr__(self) -> str:
        return f"<SourceWatcher of {len(self._kept)} sources>"

    def keep(
        self,
        key: object,
        where: str,
        look: Look[SeenT],
        report: Report[SeenT],
        failed: Callable[[], SeenT],
        *,
        quiet_s: float = QUIET_S,
        patience_s: float = PATIENCE_S,
        stirred: Stir = _nothing,
    ) -> None:
        """Watch a source from now on.

        Args:
            stirred: called for each change at once, before the source is read; quick.
        """
        kept = _Source(where, look, report, failed, self._watches, self._unwatched)
        kept.quiet_s, kept.patience_s, kept.stirred = quiet_s, patience_s, stirred
        self._kept[key] = kept
        self._nursery.start_soon(kept.run, name=f"watcher of {where}")

    def end(self, key: object) -> None:
        """Stop watching a source."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.end()

    async def look(self, *keys: object) -> None:
        """Read these sources again, and wait for that, but not long."""
        await self._wait([kept.look_again() for key, kept in self._kept.items() if key in keys])

    def was_read(self, key: object) -> bool:
        """Return whether a source was read, or is unknown."""
        kept = self._kept.get(key)
        return kept is None or kept.first.is_set()

    async def first_look(self, *keys: object) -> None:
        """Wait until these sources were read, but not long."""
        waits = [self._kept[key].first for key in keys if not self.was_read(key)]
        if waits:
            await self._wait(waits)

    @staticmethod
    async def _wait(waits: Sequence[trio.Event]) -> None:
        with trio.move_on_after(LOOK_TIMEOUT_S) as scope:
            for looked in waits:
                await looked.wait()
        if scope.cancelled_caught:
            log.warning("a source that is watched takes long to look at")

    def catch_up(self) -> None:
        """Read the notices that have arrived."""
        if self._watches is not None:
            self._watches.read()

    async def watch(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read the kernel's notices; returns at once if there can be none."""
        try:
            inotify = Inotify()
        except OSError as error:
            self._unwatched = (
                f"changes are not noticed: {error.strerror} (raise `fs.inotify.max_user_instances` "
                "with sysctl, then restart nsm)"
            )
            log.warning("environments and definitions: %s", self._unwatched)
            task_status.started()
            return
        try:
            self._watches = Watches(inotify)
            task_status.started()
            while True:
                await trio.lowlevel.wait_readable(inotify.fd)
                self._watches.read()
        finally:
            self._watches = None
            inotify.close()


class _Source(Generic[SeenT]):
    """One source and its task."""

    quiet_s = QUIET_S
    patience_s = PATIENCE_S

    def __init__(
        self,
        where: str,
        look: Look[SeenT],
        report: Report[SeenT],
        failed: Callable[[], SeenT],
        watches: Watches | None,
        unwatched: str | None,
    ) -> None:
        self._where = where
        self._look = look
        self._report = report
        self._failed = failed
        self._watches = watches
        self._unwatched = unwatched
        self._scope = trio.CancelScope()
        self._ended = False
        self._unsettled = False  # it changes as fast as it is read
        self._limiter = trio.CapacityLimiter(1)
        self.first = trio.Event()
        self._next = trio.Event()  # set after the next look that begins
        self._stirred = trio.Event()
        self._asked = trio.Event()
        self.stirred: Stir = _nothing

    def end(self) -> None:
        """Stop watching."""
        self._scope.cancel()

    def look_again(self) -> trio.Event:
        """Read it now; the event is set when that is done."""
        self._asked.set()
        self._stirred.set()
        return self._next

    def stir(self) -> None:
        """Note a change."""
        self.stirred()
        self._stirred.set()

    async def run(self) -> None:
        """Read, and read again after changes."""
        try:
            with self._scope:
                while True:
                    looked, self._next = self._next, trio.Event()
                    self._stirred, self._asked = trio.Event(), trio.Event()
                    self._unsettled = False
                    seen, unwatched = await trio.to_thread.run_sync(
                        self._look_and_watch, abandon_on_cancel=True, limiter=self._limiter
                    )
                    self._report(seen, unwatched)
                    self.first.set()
                    looked.set()
                    if self._unsettled:
                        self._stirred.set()
                    await self._stirred.wait()
                    await self._quiet()
        finally:
            self._ended = True
            self.first.set()
            self._next.set()
            if self._watches is not None:
                self._watches.forget(self.stir)

    async def _quiet(self) -> None:
        """Wait until nothing changes any more, or somebody asks."""
        with trio.move_on_after(self.patience_s):
            while not self._asked.is_set():
                self._stirred = trio.Event()
                with trio.move_on_after(self.quiet_s) as quiet:
                    await self._stirred.wait()
                if quiet.cancelled_caught:
                    return

    def _look_and_watch(self) -> tuple[SeenT, str | None]:
        try:
            return self._watched_look()
        except Exception:
            # Whatever lies there, a source must not end the supervisor.
            log.exception("%s cannot be looked at", self._where)
            return self._failed(), None

    def _watched_look(self) -> tuple[SeenT, str | None]:
        seen = self._look()
        unwatched = self._unwatched
        if self._watches is not None and not self._ended:
            for _ in range(_MOST_LOOKS):
                new, unwatched = self._watches.want(self.stir, seen.places)
                if not new:
                    break
                seen = self._look()
            else:
                self._unsettled = True
        return seen, unwatched


@asynccontextmanager
async def open_source_watcher() -> AsyncGenerator[SourceWatcher]:
    """Open a watcher; leaving the block ends all its sources."""
    async with trio.open_nursery() as nursery:
        watcher = SourceWatcher(nursery)
        await nursery.start(partial(SourceWatcher.watch, watcher))
        yield watcher
        nursery.cancel_scope.cancel()
