"""Application of a session's changes to the project on the host; blocks.

Each file is written beside the one that it replaces, and then takes its place in one step. The
replaced file is compared once more, and put back if it is not what the user saw and agreed to.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack

from nsm.below import DIRECTORY, look, open_below, open_file, parent_of, read_link
from nsm.dataclass import dataclass
from nsmd.sessions.changes.change import (
    Change,
    PathState,
    carried_mode,
    copy_state,
    digest_of,
    host_state,
)
from nsmd.sessions.changes.comparison import Sides, change_at, in_tree
from nsmd.sessions.changes.copy_files import (
    PIECE_BYTES,
    RENAME_EXCHANGE,
    RENAME_NOREPLACE,
    acting_as,
    fresh_name,
    remove,
    rename,
)

_NO_EXCHANGE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedChange:
    """A change that somebody agreed to.

    Attributes:
        before, after: tokens of the states that were shown; None if nothing was there.
        risky: True if the user named it, so that a risky change is allowed.
    """

    path: str
    before: str | None
    after: str | None
    risky: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedChange:
    """A change that was not made, with the reason as a sentence without its final dot."""

    path: str
    why: str


class ChangeRefusedError(Exception):
    """A change is refused; the message is the reason of a `RefusedChange`."""


def apply(
    sides: Sides, wanted: Sequence[AgreedChange], owner: tuple[int, int] | None, *, force: bool
) -> tuple[int, list[RefusedChange]]:
    """Make changes on the host.

    Args:
        owner: user and group of the new files; None for our own.
        force: apply even if the host's file was changed since the session began.

    Returns:
        Number of applied changes, and those that were refused.
    """
    refused: list[RefusedChange] = []
    made = 0
    for each in _in_order(wanted):
        if sides.stop():
            break
        try:
            change = _check(sides, each, force=force)
            if change is not None:
                _Application(sides, change, owner).run()
            made += 1
        except ChangeRefusedError as error:
            refused.append(RefusedChange(path=each.path, why=str(error)))
        except OSError as error:
            refused.append(RefusedChange(path=each.path, why=explain(error)))
    return made, refused


def explain(error: OSError) -> str:
    """Put the kernel's error into words for people."""
    match error.errno:
        case errno.ELOOP:
            return "a link is in the way on the host, and none is followed"
        case errno.EXDEV:
            return "it lies in another file system on the host"
        case errno.ENOTEMPTY:
            return "on the host there is more in it"
        case errno.EEXIST:
            return "it has come to be on the host meanwhile"
        case _:
            return error.strerror or str(error)


def _in_order(wanted: Sequence[AgreedChange]) -> list[AgreedChange]:
    """Sort changes: deletions first, the deepest first; then parents before their contents."""

    def place(each: AgreedChange) -> tuple[bool, str]:
        return each.after is not None, in_tree(each.path)

    deleted = sorted((e for e in wanted if e.after is None), key=place, reverse=True)
    return [*deleted, *sorted((e for e in wanted if e.after is not None), key=place)]


def _check(sides: Sides, wanted: AgreedChange, *, force: bool) -> Change | None:
    """Return the change as it is now; None if it has been made already."""
    change = change_at(sides, wanted.path)
    if change is None:
        return None
    if _token(change.after) != wanted.after:
        raise ChangeRefusedError("the session has changed it since it was shown")
    if _token(change.before) != wanted.before:
        raise ChangeRefusedError("it was changed on the host since it was shown")
    if change.problem:
        raise ChangeRefusedError(change.problem)
    if change.conflict and not force:
        raise ChangeRefusedError(change.conflict)
    if change.risk and not wanted.risky:
        raise ChangeRefusedError(f"{change.risk}; it has to be named")
    return change


def _token(state: PathState | None) -> str | None:
    return None if state is None else state.token


class _Application:
    """Application of one change."""

    def __init__(self, sides: Sides, change: Change, owner: tuple[int, int] | None) -> None:
        self._sides = sides
        self._change = change
        self._owner = owner

    def run(self) -> None:
        change, path = self._change, self._change.path
        with ExitStack() as stack:
            source = None
            if change.after is not None and change.after.type == "file":
                source = open_file(self._sides.changed, path)
                stack.callback(os.close, source)
            target = ""
            if change.after is not None and change.after.type == "symlink":
                target = read_link(self._sides.changed, path)
            stack.enter_context(acting_as(self._owner))
            if change.after is not None:
                self._make_parents()
            parent, name = stack.enter_context(parent_of(self._sides.project, path))
            self._make(parent, name, source, target)
            if change.after is not None:
                found = os.stat(name, dir_fd=parent, follow_symlinks=False)
                self._sides.applied[path] = found.st_ctime_ns

    def _make(self, parent: int, name: str, source: int | None, target: str) -> None:
        before, after = self._change.before, self._change.after
        if after is None or (before is not None and "directory" in (before.type, after.type)):
            if before is not None and after is not None and before.type == after.type:
                self._change_directory(parent, name, before, after)
                return
            self._delete(parent, name)
            before = None
        if after is None:
            return
        if after.type == "directory":
            _make_directory(parent, name, carried_mode(after, before))
            return
        temporary = fresh_name()
        try:
            if source is not None:
                self._copy(source, parent, temporary, carried_mode(after, before))
            else:
                os.symlink(target, temporary, dir_fd=parent)
                if not after.token.endswith(digest_of(os.fsencode(target))):
                    raise ChangeRefusedError("the session is changing it just now")
            if before is None:
                rename(parent, temporary, name, RENAME_NOREPLACE)
            else:
                self._replace(parent, temporary, name)
        finally:
            remove(parent, temporary)

    def _make_parents(self) -> None:
        """Make the parent directories that the user did not name."""
        components = self._change.path.split("/")
        for depth in range(1, len(components)):
            directory = "/".join(components[:depth])
            if look(self._sides.project, directory) is None:
                with parent_of(self._sides.project, directory) as (parent, name):
                    _make_directory(parent, name, 0o755)

    def _change_directory(
        self, parent: int, name: str, before: PathState, after: PathState
    ) -> None:
        fd = open_below(parent, name, DIRECTORY)
        try:
            os.fchmod(fd, carried_mode(after, before))
        finally:
            os.close(fd)

    def _delete(self, parent: int, name: str) -> None:
        if self._change.before is not None and self._change.before.type == "directory":
            os.rmdir(name, dir_fd=parent)
            return
        aside = fresh_name()
        rename(parent, name, aside, RENAME_NOREPLACE)
        if self._is_as_shown(parent, aside):
            remove(parent, aside)
            return
        rename(parent, aside, name, RENAME_NOREPLACE)
        raise ChangeRefusedError("it was changed on the host since it was shown")

    def _replace(self, parent: int, temporary: str, name: str) -> None:
        try:
            rename(parent, temporary, name, RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in _NO_EXCHANGE:
                raise
            # A network file system, for example. The file may change between this look and the next
            # step.
            if not self._is_as_shown(parent, name):
                raise ChangeRefusedError("it was changed on the host since it was shown") from error
            os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            return
        if not self._is_as_shown(parent, temporary):
            rename(parent, temporary, name, RENAME_EXCHANGE)
            raise ChangeRefusedError("it was changed on the host since it was shown")

    def _is_as_shown(self, parent: int, name: str) -> bool:
        """Return whether a moved file is still as it was; moving changes `st_ctime`."""
        before = self._change.before
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        now = host_state(found)
        return (
            before is not None
            and before.token.split(".")[:3] == now.token.split(".")[:3]
            and (before.type, before.mode) == (now.type, now.mode)
            and found.st_mtime_ns <= int(before.token.rpartition(".")[2] or "0", 16)
        )

    def _copy(self, source: int, parent: int, name: str, mode: int) -> None:
        """Write the session's content, and check that it is what was shown."""
        after = self._change.after
        assert after is not None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            digest = hashlib.sha256()
            written = 0
            while piece := os.read(source, PIECE_BYTES):
                digest.update(piece)
                written += len(piece)
                if written > after.size:
                    break
                with open(fd, "wb", closefd=False) as file:
                    file.write(piece)
            if copy_state(os.fstat(source), digest.hexdigest()).token != after.token:
                raise ChangeRefusedError("the session is changing it just now")
            os.fchmod(fd, mode)
        finally:
            os.close(fd)


def _make_directory(parent: int, name: str, mode: int) -> None:
    os.mkdir(name, 0o700, dir_fd=parent)
    fd = open_below(parent, name, DIRECTORY)
    try:
        os.fchmod(fd, mode)  # whatever the umask
    finally:
        os.close(fd)
