"""Removal of a session's changes, in the session; blocks.

The kernel does not allow changes in the upper layer while it is mounted. So this works through the
overlay itself, as code in the session could; code sees the same as after its own writes.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack

from nsm.below import DIRECTORY, open_below, open_file, parent_of, read_link
from nsmd.sessions.changes.application import RefusedChange, explain
from nsmd.sessions.changes.change import Change, PathState
from nsmd.sessions.changes.comparison import Sides, in_tree
from nsmd.sessions.changes.copy_files import PIECE_BYTES, acting_as, fresh_name, remove


def discard(
    sides: Sides,
    shown: int,
    changes: Sequence[Change],
    user: tuple[int, int] | None,
    owner: tuple[int, int] | None,
) -> tuple[int, list[RefusedChange]]:
    """Make a session's files as they are on the host now.

    Args:
        shown: descriptor of the project as the session sees it.
        user: user and group of the session's files; None for our own.
        owner: user and group with whose rights the session reads the project; None for our own.
            Nothing else is read with them: a deleted file that is restored belongs to the session,
            whoever may read it on the host.

    Returns:
        Number of discarded changes, and those that were refused.
    """
    refused: dict[str, str] = {}

    def attempt(change: Change, step: _Step) -> None:
        try:
            step.run(change)
        except OSError as error:
            refused[change.path] = explain(error)

    in_order = sorted(changes, key=lambda change: in_tree(change.path))
    removal = _Removal(sides, shown, user, owner)
    restoration = _Restoration(sides, shown, user, owner)
    for change in reversed(in_order):
        if change.after is not None and not _stays(change.before, change.after):
            attempt(change, removal)
    for change in in_order:
        if change.before is not None and change.path not in refused:
            attempt(change, restoration)
    return len(changes) - len(refused), [RefusedChange(path=p, why=w) for p, w in refused.items()]


def _stays(before: PathState | None, after: PathState) -> bool:
    """Return whether the session's file can be replaced or changed in place."""
    return before is not None and (before.type == "directory") == (after.type == "directory")


class _Step(ABC):
    def __init__(
        self,
        sides: Sides,
        shown: int,
        user: tuple[int, int] | None,
        owner: tuple[int, int] | None,
    ) -> None:
        self._sides = sides
        self._shown = shown
        self._user = user
        self._owner = owner

    @abstractmethod
    def run(self, change: Change) -> None: ...


class _Removal(_Step):
    def run(self, change: Change) -> None:
        assert change.after is not None
        with acting_as(self._user), parent_of(self._shown, change.path) as (parent, name):
            if change.after.type == "directory":
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)


class _Restoration(_Step):
    def run(self, change: Change) -> None:
        before = change.before
        assert before is not None
        with ExitStack() as stack:
            source, target = None, ""
            if before.type == "file":
                with acting_as(self._owner):
                    source = open_file(self._sides.project, change.path)
                stack.callback(os.close, source)
            elif before.type == "symlink":
                target = read_link(self._sides.project, change.path)
            elif before.type == "special":
                raise OSError(errno.EINVAL, "on the host it is neither file, directory nor link")
            stack.enter_context(acting_as(self._user))
            parent, name = stack.enter_context(parent_of(self._shown, change.path))
            if before.type == "directory":
                self._directory(parent, name, before, exists=_is_directory(change.after))
            else:
                self._put(parent, name, source, target, before)

    @staticmethod
    def _directory(parent: int, name: str, before: PathState, *, exists: bool) -> None:
        if not exists:
            os.mkdir(name, dir_fd=parent)
        fd = open_below(parent, name, DIRECTORY)
        try:
            os.fchmod(fd, before.mode)
        finally:
            os.close(fd)

    def _put(
        self, parent: int, name: str, source: int | None, target: str, before: PathState
    ) -> None:
        temporary = fresh_name()
        try:
            try:
                self._write(parent, temporary, source, target, before.mode)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                # There is room for only one of them.
                remove(parent, temporary)
                remove(parent, name)
                self._write(parent, temporary, source, target, before.mode)
            os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            remove(parent, temporary)

    @staticmethod
    def _write(parent: int, name: str, source: int | None, target: str, mode: int) -> None:
        if source is None:
            os.symlink(target, name, dir_fd=parent)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            os.lseek(source, 0, os.SEEK_SET)
            with open(fd, "wb", closefd=False) as file:
                while piece := os.read(source, PIECE_BYTES):
                    file.write(piece)
            found = os.fstat(source)
            os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))
            os.fchmod(fd, mode)
        finally:
            os.close(fd)


def _is_directory(state: PathState | None) -> bool:
    return state is not None and state.type == "directory"
