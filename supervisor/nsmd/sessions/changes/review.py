"""The changes of a live session, shown, applied and discarded; files are touched in threads."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeVar

import trio

from nsm.below import look, open_file, read_link
from nsm.dataclass import dataclass
from nsm.wire.errors import BadProjectError, BadRequestError
from nsmd.jail import ProjectCopy
from nsmd.model.values import ProjectMount
from nsmd.sessions.changes.application import AgreedChange, RefusedChange, apply, discard
from nsmd.sessions.changes.comparison import (
    MAX_CHANGES,
    MAX_PATHS_BYTES,
    Change,
    Sides,
    TooManyChangesError,
    change_at,
    compare,
    digest_of,
    find_linked,
)
from nsmd.sessions.session import Session

CONTENT_BYTES = 1024 * 1024
"""Largest content of a file to show, on each side; for a longer file only that it differs."""

_EXCHANGED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL})
"""Errors when the session has meanwhile removed a file, or replaced it by a FIFO or a link. They
must not hide the other changes.
"""

AT_ONCE = 2
"""Reviews that read and write at the same time; others wait."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathContents:
    """One path on both sides.

    Attributes:
        before, after: the content of a file or the target of a link; None if there is neither, or
            if it is longer than `CONTENT_BYTES`.
    """

    change: Change | None
    before: bytes | None
    after: bytes | None


class Review:
    """Operations on the changes of sessions."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(AT_ONCE)

    async def changes(self, session: Session, below: Sequence[str] = ()) -> list[Change]:
        """Find all changes, sorted by path.

        Args:
            below: only these paths and their content; empty for all.
        """
        changes = await self._run(session, lambda work: compare(work.sides))
        return [change for change in changes if is_among(change.path, below)]

    async def contents(self, session: Session, path: str) -> PathContents:
        """Read the contents of one path on both sides."""
        return await self._run(session, lambda work: contents_of(work.sides, path))

    async def apply(
        self, session: Session, wanted: Sequence[AgreedChange], *, force: bool
    ) -> tuple[int, list[RefusedChange]]:
        """Apply changes to the host.

        Args:
            force: apply even if the host's file was changed since the session began.
        """
        return await self._run(
            session, lambda work: apply(work.sides, wanted, work.owner, force=force)
        )

    async def discard(
        self, session: Session, below: Sequence[str] = ()
    ) -> tuple[int, list[RefusedChange]]:
        """Make the session's files the same as the host's again."""

        def work_on(work: _Work) -> tuple[int, list[RefusedChange]]:
            changes = compare(work.sides)
            wanted = [change for change in changes if is_among(change.path, below)]
            assert work.copy.shown is not None
            return discard(work.sides, work.copy.shown, wanted, work.user, work.owner)

        copy = _copy_of(session)
        if copy.shown is None:
            raise BadRequestError(
                "Changes cannot be discarded in this session: only its jail can reach them.",
                hint="End the session with `nsm kill`: nothing that it changed is kept.",
            )
        return await self._run(session, work_on)

    async def _run(self, session: Session, function: Callable[[_Work], Result]) -> Result:
        work = _Work(session)

        def in_thread() -> Result:
            if not work.begin():
                raise TooManyChangesError  # nobody waits for an answer
            try:
                return function(work)
            finally:
                work.close()

        try:
            async with self._limiter:
                return await trio.to_thread.run_sync(
                    in_thread, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
                )
        except TooManyChangesError:
            raise BadRequestError(
                f"The session has changed more than {MAX_CHANGES} files, or their names are longer "
                f"than {MAX_PATHS_BYTES >> 20} MiB together.",
                hint="Look at it from within, with `nsm attach`, or end it with `nsm kill`.",
            ) from None
        except OSError as error:
            raise BadProjectError(
                f"The project cannot be compared with the session's copy: {error}."
            ) from error
        finally:
            work.abandon()


class _Work:
    """Descriptors of one review, which stay open if the session ends."""

    def __init__(self, session: Session) -> None:
        project = session.spec.project
        copy = _copy_of(session)
        assert project is not None
        self._stopped = threading.Event()
        self._begin = threading.Lock()
        self._begun = False
        self._project = open_checked(project)
        try:
            self.copy = copy.duplicate()
        except OSError:
            os.close(self._project)
            raise
        self.sides = Sides(
            changed=self.copy.changed,
            project=self._project,
            since_ns=begun_ns(session),
            applied=copy.applied,
            linked=cache(partial(find_linked, self._project)),
            stop=self._stopped.is_set,
        )
        root = os.geteuid() == 0
        self.owner = _owner(self._project) if root else None
        self.user = _owner(self.copy.changed) if root else None

    def begin(self) -> bool:
        """Called in the thread. Returns True if the thread owns the descriptors now, and must close
        them.
        """
        with self._begin:
            self._begun = not self._stopped.is_set()
            return self._begun

    def abandon(self) -> None:
        """Nobody waits any more; the thread may or may not have begun."""
        with self._begin:
            self._stopped.set()
            if not self._begun:
                self.close()

    def close(self) -> None:
        """Close the descriptors; call once."""
        self.copy.close()
        os.close(self._project)


def begun_ns(session: Session) -> int:
    """Time when a session began, by the clock that stamps files now.

    If the clock was set back meanwhile, files changed since then look older than the session.
    """
    age_ns = int((trio.current_time() - session.created_s) * 1e9)
    return min(session.transcript.opened_ns, time.time_ns() - age_ns)


def is_among(path: str, below: Sequence[str]) -> bool:
    """Return whether a path is one of these or below one; True if there are none."""
    return not below or any(path == each or path.startswith(f"{each}/") for each in below)


def open_checked(project: ProjectMount) -> int:
    """Open exactly the directory that the session has an overlay of.

    Raises:
        BadProjectError: it was replaced, or is gone.
    """
    try:
        fd = os.open(project.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BadProjectError(
            f"The project directory {project.path} cannot be opened: {error.strerror}."
        ) from error
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != (project.device, project.inode):
        os.close(fd)
        raise BadProjectError(
            f"The project directory {project.path} was replaced by another one.",
            hint="What the session changed can be copied out of it with `nsm cp`.",
        )
    return fd


def _copy_of(session: Session) -> ProjectCopy:
    copy = session.project_copy
    if copy is None:
        what = "shows its project read-only" if session.spec.project else "has no project"
        raise BadRequestError(
            f"Session {session.name or session.id} {what}, so it has changed nothing there.",
            hint='A session of `nsm run --project-mode overlay`, or of [project] mode = "overlay", '
            "has a copy that code may change.",
        )
    return copy


def _owner(directory: int) -> tuple[int, int]:
    found = os.fstat(directory)
    return found.st_uid, found.st_gid


def contents_of(sides: Sides, path: str) -> PathContents:
    """Read one path on both sides; blocks."""
    try:
        return _contents(sides, path)
    except OSError as error:
        if error.errno not in _EXCHANGED:
            raise
        return PathContents(change=None, before=None, after=None)


def _contents(sides: Sides, path: str) -> PathContents:
    change = change_at(sides, path)
    if change is not None and change.problem:
        return PathContents(change=change, before=None, after=None)
    before = None if change is None or change.before is None else _content(sides.project, path)
    after = None if change is None or change.after is None else _content(sides.changed, path)
    if change is not None and change.after is not None and after is not None:
        # People agree to what is shown.
        found = look(sides.changed, path)
        digest = digest_of(after)
        if found is None or not change.after.token.endswith(digest):
            change = None if found is None else change_at(sides, path)
            after = None
    return PathContents(change=change, before=before, after=after)


def _content(root: int, path: str) -> bytes | None:
    found = look(root, path)
    if found is None:
        return None
    if stat.S_ISLNK(found.st_mode):
        return os.fsencode(read_link(root, path))
    if not stat.S_ISREG(found.st_mode) or found.st_size > CONTENT_BYTES:
        return None
    fd = open_file(root, path)
    try:
        content = b""
        while len(content) <= CONTENT_BYTES and (piece := os.read(fd, CONTENT_BYTES + 1)):
            content += piece
    finally:
        os.close(fd)
    return content if len(content) <= CONTENT_BYTES else None
