"""Changes of a session applied to the project on the host, or discarded in the session; blocks.

On the host, each file is written beside the one that it replaces, and then takes its place in one
step. The replaced file is compared once more, and put back if it is not what the user saw and
agreed to. In the session, the kernel does not allow changes in the upper layer while it is mounted.
So `discard` works through the overlay itself, as code in the session could; code sees the same as
after its own writes.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from nsm.below import DIRECTORY, look, open_below, open_file, parent_of, read_link
from nsm.dataclass import dataclass
from nsmd.sessions.changes.comparison import (
    PIECE_BYTES,
    Change,
    PathState,
    Sides,
    carried_mode,
    change_at,
    copy_state,
    digest_of,
    host_state,
    in_tree,
)

RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)


def rename(parent: int, old: str, new: str, flags: int) -> None:
    """Call renameat2(2) within one directory; EINVAL if the file system does not support it."""
    if _libc.renameat2(parent, os.fsencode(old), parent, os.fsencode(new), flags) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), new)


def fresh_name() -> str:
    """Make a random name that nobody can predict."""
    return f".nsm-{secrets.token_hex(8)}"


@contextmanager
def acting_as(user: tuple[int, int] | None) -> Generator[None]:
    """Let this thread access files as another user, without root's rights."""
    if user is None:
        yield
        return
    # setfsuid(2): the C library leaves it to the thread, unlike setuid(2).
    _libc.setfsgid(user[1])
    _libc.setfsuid(user[0])
    try:
        if _libc.setfsuid(-1) != user[0] or _libc.setfsgid(-1) != user[1]:
            raise PermissionError(errno.EPERM, f"cannot write files as user {user[0]}")
        yield
    finally:
        _libc.setfsuid(os.geteuid())
        _libc.setfsgid(os.getegid())


def remove(parent: int, name: str) -> None:
    """Remove a file that may be gone already."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


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
    """Make changes on the host; returns how many, and those that were refused.

    Args:
        owner: user and group of the new files; None for our own.
        force: apply even if the host's file was changed since the session began.
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
                _set_directory_mode(parent, name, carried_mode(after, before))
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
    _set_directory_mode(parent, name, mode)  # whatever the umask


def _set_directory_mode(parent: int, name: str, mode: int) -> None:
    fd = open_below(parent, name, DIRECTORY)
    try:
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def discard(
    sides: Sides,
    shown: int,
    changes: Sequence[Change],
    user: tuple[int, int] | None,
    owner: tuple[int, int] | None,
) -> tuple[int, list[RefusedChange]]:
    """Make a session's files as they are on the host now; returns as `apply`.

    Args:
        user: user and group of the session's files; None for our own.
        owner: user and group with whose rights the session reads the project; None for our own.
            Nothing else is read with them: a deleted file that is restored belongs to the session,
            whoever may read it on the host.
    """
    refused: dict[str, str] = {}
    session = _SessionFiles(sides, shown, user, owner)

    def attempt(step: Callable[[Change], None], change: Change) -> None:
        try:
            step(change)
        except OSError as error:
            refused[change.path] = explain(error)

    in_order = sorted(changes, key=lambda change: in_tree(change.path))
    for change in reversed(in_order):
        if change.after is not None and not _stays(change.before, change.after):
            attempt(session.remove, change)
    for change in in_order:
        if change.before is not None and change.path not in refused:
            attempt(session.restore, change)
    return len(changes) - len(refused), [RefusedChange(path=p, why=w) for p, w in refused.items()]


def _stays(before: PathState | None, after: PathState) -> bool:
    """Return whether the session's file can be replaced or changed in place."""
    return before is not None and (before.type == "directory") == (after.type == "directory")


class _SessionFiles:
    """The project as a session sees it, which is made as it is on the host."""

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

    def remove(self, change: Change) -> None:
        """Remove what the session has at a path."""
        assert change.after is not None
        with acting_as(self._user), parent_of(self._shown, change.path) as (parent, name):
            if change.after.type == "directory":
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)

    def restore(self, change: Change) -> None:
        """Put what the host has at a path there."""
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
                if change.after is None or change.after.type != "directory":
                    os.mkdir(name, dir_fd=parent)
                _set_directory_mode(parent, name, before.mode)
            else:
                self._put(parent, name, source, target, before)

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
