"""Sources that are read now, and again whenever something that they depend on changes; and the
kernel's notices of changes in directories (inotify(7)), by which that is known.

Nothing polls: after a notice of the kernel a source is read again, a moment later, since changes
come in bursts. If the kernel cannot tell (no watches left; a network file system that others write
to), a source is read when somebody asks. Each has a task, and a thread while it is read, so that
one that hangs delays only itself.

The notices take three calls and a structure read through ctypes. Packages that wrap them bring a
thread or an event loop, or are this module again, and each would have to be packaged for Nix, too.
Threads that read directories add watches, since that may block; the event loop reads notices. A
lock guards the data, and is never held while anything blocks.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import struct
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import trio

from nsm.wire.tuples import NamedTuple
from nsmd.host.paths import ANY, WatchedPaths

log = logging.getLogger(__name__)


# <sys/inotify.h>
ATTRIB = 0x4
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
UNMOUNT = 0x2000
Q_OVERFLOW = 0x4000
IGNORED = 0x8000
_ONLYDIR = 0x1000000
_DONT_FOLLOW = 0x2000000
_EXCL_UNLINK = 0x4000000
_MASK_ADD = 0x20000000

OF_ITSELF = DELETE_SELF | MOVE_SELF
OF_ENTRIES = ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE

_HEAD = struct.Struct("iIII")
_READ_BYTES = 64 * 1024


class Notice(NamedTuple):
    """One change.

    Attributes:
        watch: watch of the directory; -1 if notices were lost.
        name: name of the entry; empty for the directory itself.
    """

    watch: int
    mask: int
    name: str


class Inotify:
    """A queue of notices, with a descriptor until `close`. Any thread may call its methods."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)

    def __repr__(self) -> str:
        return f"<Inotify fd={self.fd}>"

    def add(self, directory: str, mask: int) -> int:
        """Watch a directory, in addition to what it is watched for already.

        It has the same watch by any path.
        """
        path = ctypes.c_char_p(os.fsencode(directory))
        flags = mask | _ONLYDIR | _DONT_FOLLOW | _EXCL_UNLINK | _MASK_ADD
        return self._call("inotify_add_watch", self.fd, path, ctypes.c_uint32(flags))

    def remove(self, watch: int) -> None:
        """Stop watching a directory, which may be gone."""
        try:
            self._call("inotify_rm_watch", self.fd, watch)
        except OSError:
            return

    def read(self) -> list[Notice]:
        """Read the notices; empty if there are none."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return []
        notices: list[Notice] = []
        at = 0
        while at < len(data):
            watch, mask, _cookie, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
            notices.append(Notice(watch, mask, name))
        return notices

    def close(self) -> None:
        """Close the queue; later calls fail."""
        fd, self.fd = self.fd, -1
        os.close(fd)

    def _call(self, name: str, *arguments: object) -> int:
        result: int = getattr(self._libc, name)(*arguments)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


Stir = Callable[[], None]
"""Called for a change; it must be quick."""


class Watches:
    """Watched directories of all sources; the owner of `inotify` closes it."""

    def __init__(self, inotify: Inotify) -> None:
        self._inotify = inotify
        self._lock = threading.Lock()
        self._wanted: dict[Stir, WatchedPaths] = {}
        self._watch_of: dict[str, int] = {}
        self._places_of: dict[int, set[str]] = {}

    def __repr__(self) -> str:
        return f"<Watches of {len(self._watch_of)} directories for {len(self._wanted)}>"

    def want(self, stir: Stir, places: WatchedPaths) -> tuple[bool, str | None]:
        """Watch exactly these paths for one function.

        Args:
            places: directories without symbolic links, and the entries that matter.

        Returns:
            Whether there are new directories, so that an earlier look may be out of date; and why
                some cannot be watched.
        """
        with self._lock:
            self._wanted[stir] = places
        new, refusal = False, None
        for place, names in places.items():
            try:
                watch = self._inotify.add(place, OF_ENTRIES | OF_ITSELF if names else OF_ITSELF)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    refusal = (
                        "the limit of watched directories is reached (raise "
                        "`fs.inotify.max_user_watches` with sysctl)"
                    )
                elif names and error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    refusal = refusal or f"{place} cannot be watched: {error.strerror}"
                # Notices that came in between are handled where the watch was before.
                continue
            new = self._bind(place, watch) or new
        self._prune()
        return new, refusal

    def forget(self, stir: Stir) -> None:
        """Watch nothing more for that function."""
        with self._lock:
            self._wanted.pop(stir, None)
        self._prune()

    def read(self) -> None:
        """Read all notices, and call the functions for them."""
        for notice in self._inotify.read():
            for stir in self._concerned(notice):
                stir()
            # else the kernel has dropped the watch, or the directory stays
            if notice.mask & MOVE_SELF:
                self._inotify.remove(notice.watch)

    def _concerned(self, notice: Notice) -> list[Stir]:
        with self._lock:
            if notice.mask & Q_OVERFLOW:
                return list(self._wanted)
            here = set(self._places_of.get(notice.watch, ()))
            if notice.mask & (OF_ITSELF | IGNORED | UNMOUNT):
                # The path may be another directory by now; that one is watched when somebody wants
                # it.
                for place in here:
                    self._unbind(place)
            return [
                stir
                for stir, places in self._wanted.items()
                if any(_matters(places, place, notice.name) for place in here)
            ]

    def _prune(self) -> None:
        with self._lock:
            wanted = {place for places in self._wanted.values() for place in places}
            unwanted = [place for place in self._watch_of if place not in wanted]
            unused = [self._unbind(place) for place in unwanted]
        for watch in unused:
            if watch is not None:
                self._inotify.remove(watch)

    def _bind(self, place: str, watch: int) -> bool:
        """Note the directory of a watch. Returns whether the directory had another one, or none."""
        with self._lock:
            if self._watch_of.get(place) == watch:
                return False
            # A directory above was exchanged; that says nothing about this one.
            unused = self._unbind(place)
            self._watch_of[place] = watch
            self._places_of.setdefault(watch, set()).add(place)
        if unused is not None:
            self._inotify.remove(unused)
        return True

    def _unbind(self, place: str) -> int | None:
        """Forget a directory's watch; returns it if no other directory has it."""
        watch = self._watch_of.pop(place, None)
        if watch is None:
            return None
        places = self._places_of[watch]
        places.discard(place)
        if places:
            return None
        del self._places_of[watch]
        return watch


def _matters(places: Mapping[str, frozenset[str]], place: str, name: str) -> bool:
    names = places.get(place)
    if names is None:
        return False
    return not name or ANY in names or name in names


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
