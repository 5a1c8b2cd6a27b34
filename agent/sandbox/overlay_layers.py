"""Undo in an overlay, the copy of a project or of an image, whose upper layer has the changes.

The kernel does not allow changes in that layer while it is mounted. So undo writes through the
overlay, as code does. Files that were not changed yet at the time of the checkpoint are copied from
the project or the image itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from sandbox.file_states import (
    DEEPEST_REMOVED,
    OPEN_DIRECTORY,
    OPEN_FILE,
    attributes_of,
    check_socket,
    is_opaque,
    is_whiteout,
    make_special,
    opened_to_change,
    remove,
    set_facts,
    status_in,
    transfer,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from sandbox.file_states import ContentStore, Entry


def return_overlay(
    contents: ContentStore, layers: Sequence[int], wanted: Entry, *, has_mapped: bool
) -> list[str]:
    """Make an overlay what it was; returns what failed.

    Args:
        layers: descriptors of the upper layer, of the overlay, and of the project or the image.
            Code cannot reach those of the agent.
        has_mapped: code has mapped files into memory, so that they may have changed without a
            trace.
    """
    changed, shown, below = layers
    back = _LayerReturn(contents, has_mapped=has_mapped)
    try:
        back.directory(_Place(changed, shown, below), wanted)
    except OSError as error:
        back.failed.append(f"the copy of the project or image ({error.strerror})")
    if not back.failed:
        _note(changed, wanted)
    return back.failed


class _Place:
    """One directory in each of the layers; -1 where it is not there.

    Attributes:
        depth: directories around it.
        is_opaque: nothing of the directory below shows through now.
    """

    def __init__(self, changed: int, shown: int, below: int, around: _Place | None = None) -> None:
        self.changed = changed
        self.shown = shown
        self.below = below
        self.depth: int = 0 if around is None else around.depth + 1
        self.is_opaque: bool = is_opaque(changed) or (around is not None and around.is_opaque)

    @contextlib.contextmanager
    def at(self, name: bytes, *, is_below: bool) -> Generator[_Place, None, None]:
        """Open a directory in this one, in each of the layers; below, if what the project has there
        shows through."""
        if self.depth > DEEPEST_REMOVED:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        mode = os.stat(name, dir_fd=self.shown, follow_symlinks=False).st_mode
        with contextlib.ExitStack() as stack:
            below = _opened(stack, self.below, name) if is_below else -1
            shown = stack.enter_context(opened_to_change(self.shown, name, OPEN_DIRECTORY, mode))
            # Last: the modes of both may just have been changed.
            changed = _opened(stack, self.changed, name)
            yield _Place(changed, shown, below, self)


def _opened(stack: contextlib.ExitStack, parent: int, name: bytes) -> int:
    if parent < 0:
        return -1
    try:
        found = os.open(name, OPEN_DIRECTORY, dir_fd=parent)
    except OSError:
        return -1
    stack.callback(os.close, found)
    return found


class _LayerReturn:
    """One undo of the changes in a copy."""

    def __init__(self, contents: ContentStore, *, has_mapped: bool) -> None:
        self.failed: list[str] = []
        self._contents = contents
        self._has_mapped = has_mapped

    def directory(self, place: _Place, wanted: Entry | None) -> None:
        """Make a directory what it was; `wanted` is what was changed in it."""
        entries = {} if wanted is None else wanted.entries
        now = _names(place.changed)
        below = _names(place.below)
        hides = wanted is not None and wanted.is_opaque
        names = {*entries, *now}
        if hides or place.is_opaque:
            names |= below
        for name in names:
            entry = entries.get(name)
            try:
                if _is_mount(place.shown, name):
                    continue  # of the jail, or the session's own
                if entry is not None:
                    self._changed(place, name, entry, is_below=name in below and not hides)
                elif name in below and not hides:
                    self._unchanged(place, name, is_changed=name in now)
                else:
                    _clear(place.shown, name)
            except OSError as error:
                self.failed.append(f"{os.fsdecode(name)} ({error.strerror})")

    def _changed(self, place: _Place, name: bytes, wanted: Entry, *, is_below: bool) -> None:
        """Make what the session had changed what it was."""
        kind = stat.S_IFMT(wanted.mode)
        if kind == stat.S_IFCHR:
            _clear(place.shown, name)
            return
        if kind == stat.S_IFDIR:
            if not _is_directory(place.shown, name):
                _clear(place.shown, name)
                os.mkdir(name, 0o700, dir_fd=place.shown)
            with place.at(name, is_below=is_below) as inside:
                self.directory(inside, wanted)
                set_facts(inside.shown, wanted.mode, wanted.modified, wanted.attributes)
            return
        status = status_in(place.changed, name)
        if kind == stat.S_IFSOCK:
            check_socket(wanted.inode, wanted.mode, status)
            return
        if status is not None and wanted.is_same(status) and not self._has_mapped:
            return
        if kind == stat.S_IFREG:
            content = wanted.content
            assert content is not None, "a file has content"
            with _new_file(place.shown, name) as fd:
                self._contents.write(content, fd)
                set_facts(fd, wanted.mode, wanted.modified, wanted.attributes)
        else:
            _clear(place.shown, name)
            make_special(place.shown, name, wanted.mode, wanted.target, wanted.modified)

    def _unchanged(self, place: _Place, name: bytes, *, is_changed: bool) -> None:
        """Make what the session had not changed what the project has."""
        status = os.stat(name, dir_fd=place.below, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            if not _is_directory(place.shown, name):
                _clear(place.shown, name)
                os.mkdir(name, 0o700, dir_fd=place.shown)
            elif not is_changed and not place.is_opaque:
                return
            with place.at(name, is_below=True) as inside:
                self.directory(inside, None)
                _set_same(inside.shown, inside.below, status)
        elif kind == stat.S_IFREG:
            source = os.open(name, os.O_RDONLY | OPEN_FILE, dir_fd=place.below)
            try:
                with _new_file(place.shown, name) as fd:
                    transfer(source, 0, fd, 0, status.st_size)
                    _set_same(fd, source, status)
            finally:
                os.close(source)
        else:
            target = os.readlink(name, dir_fd=place.below) if kind == stat.S_IFLNK else b""
            _clear(place.shown, name)
            make_special(place.shown, name, status.st_mode, target, status.st_mtime_ns)


def _set_same(fd: int, other: int, status: os.stat_result) -> None:
    """Give an open file or directory what another one has, but for content."""
    set_facts(fd, status.st_mode, status.st_mtime_ns, attributes_of(other))


def _names(directory: int) -> set[bytes]:
    return set() if directory < 0 else {os.fsencode(name) for name in os.listdir(directory)}


def _is_directory(directory: int, name: bytes) -> bool:
    status = status_in(directory, name)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _is_mount(directory: int, name: bytes) -> bool:
    """Tell whether another file system is mounted there."""
    status = status_in(directory, name)
    if status is None or not stat.S_ISDIR(status.st_mode):
        return False
    return status.st_dev != os.fstat(directory).st_dev


def _clear(directory: int, name: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        remove(directory, name)


@contextlib.contextmanager
def _new_file(directory: int, name: bytes) -> Generator[int, None, None]:
    """A new file in place of what has the name, whose other names keep their content."""
    _clear(directory, name)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FILE, 0o600, dir_fd=directory)
    try:
        yield fd
    finally:
        os.close(fd)


def _note(directory: int, wanted: Entry) -> None:
    """Remember what was written as what it is now, so that it is not copied again."""
    for name, entry in wanted.entries.items():
        status = status_in(directory, name)
        if status is None or stat.S_IFMT(status.st_mode) != stat.S_IFMT(entry.mode):
            continue
        if stat.S_ISDIR(entry.mode):
            with contextlib.ExitStack() as stack:
                below = _opened(stack, directory, name)
                if below >= 0:
                    _note(below, entry)
        elif not is_whiteout(status):
            entry.note(status)
