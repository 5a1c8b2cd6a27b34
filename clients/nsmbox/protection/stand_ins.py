"""Stand-ins for files that are not there and that no box may make, and records of running boxes.

A box cannot be kept from making a file in a directory that it may write to, unless something is
mounted in its place. So an empty directory is made there, which the box sees read-only: git does
not see it, programs that copy the project take it, and it can only be removed while it is empty. A
few programs fail at a directory in the place of their file; for these it is a socket that nobody
listens on, or an empty file, and the box sees a file of which they take nothing.

Removing a mount point on the host takes the mount away from a box that still runs. So a stand-in is
removed when no box uses it any more, which records tell: one for each box in the state directory,
which no box sees. Beside a record lies a socket that is bound as long as the box runs; both the
process that waits for the box and the box's own process 1 hold it, and a box cannot open it, as it
could a file, through /proc. Where both were killed, the next box of the user's tells what that one
has left, and removes what it used. Everything here is done under one lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, cast

from nsm import paths
from nsm.dataclass import dataclass
from nsm.paths import open_linkless, replace_file
from nsm.wire.tuples import NamedTuple
from nsmbox.model.plan import BoxError
from nsmbox.protection.leftovers import Before
from nsmbox.protection.secrets import printable, within

Kind = Literal["directory", "socket", "file"]
"""Kinds of what lies on the host."""

_MADE = "stand-ins.json"

_NEW_MODE = 0o444
"""Mode of files whose identity is not noted yet: few people's empty files cannot be written to."""

MAX_RECORD_BYTES = 64 * 1024 * 1024


class StandIn(NamedTuple):
    """A path that is to be kept from being made.

    Attributes:
        path: absolute; what lies above it exists.
        content: what the box sees, unless it is a directory.
        private: the box sees an empty directory of its own, in which it can write.
    """

    path: str
    kind: Kind = "directory"
    content: str = ""
    private: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBox:
    """Record of a box.

    Attributes:
        descriptor: the socket, for the processes that are to hold it.
    """

    id: str
    descriptor: int


def folder() -> str:
    """Directory of the records."""
    return os.path.join(paths.state_dir(), "boxes")


def made() -> frozenset[str]:
    """Paths at which there are stand-ins of boxes that run, or that were killed."""
    return frozenset(path for path, identity in _read(_MADE).items() if _is_as_made(path, identity))


def _is_as_made(path: str, identity: object) -> bool:
    try:
        found = os.lstat(path)
        if identity != _identity(found):
            return False
        return not (os.listdir(path) if stat.S_ISDIR(found.st_mode) else found.st_size)
    except OSError:
        return False


def abandoned() -> list[Before]:
    """Forget boxes that were killed with all that waited for them, and remove their stand-ins."""
    found: list[Before] = []
    if not os.path.isdir(folder()):
        return found
    with _locked() as directory:
        for name in _dead(directory):
            record = _read(f"{name}.json")
            with suppress(KeyError, TypeError, ValueError):
                found.append(Before.of_json(record["before"]))
            _forget(directory, name)
        _remove_unused(directory)
    return found


def killed() -> list[str]:
    """Working directories of boxes that were killed with all that waited for them, which the next
    box forgets.
    """
    if not os.path.isdir(folder()):
        return []
    with _locked() as directory:
        records = [_read(f"{name}.json") for name in _dead(directory)]
    found: list[str] = []
    for record in records:
        with suppress(KeyError, TypeError, ValueError):
            found.append(Before.of_json(record["before"]).directory)
    return found


def lost_with_a_killed_box(directory: str) -> str:
    """Sentence for people about such a box: its memory ended with it."""
    return (
        f"a box in {printable(directory)} was killed: what it wrote outside of the directories "
        "that it was given is gone"
    )


def begin(stand_ins: Sequence[StandIn], was: Before) -> RunningBox:
    """Record a box that is about to start, and make its stand-ins."""
    with _locked() as directory:
        name = os.urandom(8).hex()
        record = {
            "paths": [each.path for each in stand_ins],
            "host": _host(),
            "before": was._asdict(),
        }
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bound.bind(_socket_path(directory, name))
            _write(f"{name}.json", record)
            _make(stand_ins)
        except BaseException as error:
            bound.close()
            _forget(directory, name)
            _remove_unused(directory)
            if isinstance(error, OSError):
                raise _unkept(error) from error
            raise
        return RunningBox(id=name, descriptor=bound.detach())


def moved(old: str, new: str) -> None:
    """Take note that somebody has renamed a directory in which there are stand-ins."""

    def path(name: str) -> str:
        return new + name[len(old) :] if within(name, old) else name

    with _locked() as directory:
        for name in _records(directory):
            record = _read(f"{name}.json")
            paths_of_it = list(map(str, record.get("paths", ())))
            if any(within(each, old) for each in paths_of_it):
                _write(f"{name}.json", {**record, "paths": list(map(path, paths_of_it))})
        _write(_MADE, {path(each): identity for each, identity in _read(_MADE).items()})


def end(box: RunningBox) -> bool:
    """Forget a box that has ended, and remove the stand-ins that it was the last to use.

    Returns:
        False if somebody else has done so already.
    """
    with _locked() as directory:
        known = os.path.exists(os.path.join(folder(), f"{box.id}.json"))
        _forget(directory, box.id)
        _remove_unused(directory)
        return known


# ------------------------------------------------------------------------------------- stand-ins


def _make(stand_ins: Sequence[StandIn]) -> None:
    """Make those that are not there, and note each before it is made."""
    known = _read(_MADE)
    missing = [each for each in stand_ins if not os.path.lexists(each.path)]
    for each in missing:
        known[each.path] = None  # noted first, so that who is killed meanwhile leaves nothing
    if missing:
        _write(_MADE, known)
    for each in missing:
        try:
            known[each.path] = _make_one(each)
        except FileExistsError:
            del known[each.path]  # somebody was faster; whatever it is, it is not ours
        except OSError as error:
            raise BoxError(
                f"the box cannot be kept from making {printable(each.path)}: {error.strerror}.",
                hint=_hint(error, "Fix that"),
            ) from error
    if missing:
        _write(_MADE, known)
    for each in missing:
        with suppress(OSError):
            _let_owner_write(each, known.get(each.path))


def _let_owner_write(each: StandIn, identity: object) -> None:
    """Make a new empty file one that its owner may write to, as files usually are."""
    if each.kind == "directory" or identity is None:
        return
    fd = os.open(each.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if identity == _identity(os.fstat(fd)):
            os.fchmod(fd, 0o644)
    finally:
        os.close(fd)


def _make_one(each: StandIn) -> list[int]:
    above, name = os.path.split(each.path)
    fd = open_linkless(above)
    try:
        if each.kind == "directory":
            os.mkdir(name, 0o755, dir_fd=fd)
        else:
            kind = stat.S_IFSOCK if each.kind == "socket" else stat.S_IFREG
            try:
                os.mknod(name, kind | _NEW_MODE, dir_fd=fd)
            except FileExistsError:
                raise
            except OSError:
                os.mknod(name, stat.S_IFREG | _NEW_MODE, dir_fd=fd)  # a file system without sockets
        return _identity(os.stat(name, dir_fd=fd, follow_symlinks=False))
    finally:
        os.close(fd)


def _remove_unused(directory: int) -> None:
    """Remove the stand-ins that no record names; what has become somebody's own stays."""
    known = _read(_MADE)
    used: set[str] = set()
    for name in _records(directory):
        used.update(map(str, _read(f"{name}.json").get("paths", ())))
    unused = known.keys() - used
    for path in unused:
        with suppress(OSError):
            _remove(path, known[path])
    if unused:
        _write(_MADE, {path: known[path] for path in known if path not in unused})


def _remove(path: str, identity: object) -> None:
    above, name = os.path.split(path)
    fd = open_linkless(above)
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if not _is_ours(found, identity):
            return
        if stat.S_ISDIR(found.st_mode):
            os.rmdir(name, dir_fd=fd)  # fails where something is in it
        elif not found.st_size:
            os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


def _is_ours(found: os.stat_result, identity: object) -> bool:
    """Return whether nsm made what is there; where that was not noted, by what it is."""
    if identity is not None:
        return identity == _identity(found)
    mode = found.st_mode
    return stat.S_ISDIR(mode) or stat.S_ISSOCK(mode) or (stat.S_ISREG(mode) and not mode & 0o222)


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino]


# --------------------------------------------------------------------------------------- records


@contextmanager
def _locked() -> Generator[int]:
    """Hold the lock; the descriptor is of the directory of the records."""
    try:
        os.makedirs(paths.state_dir(), mode=0o700, exist_ok=True)
        paths.ensure_private_dir(folder())
        directory = os.open(folder(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, paths.PathError) as error:
        raise _unkept(error) from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield directory
    finally:
        os.close(directory)


def _unkept(error: Exception) -> BoxError:
    return BoxError(
        f"nsm cannot keep its records of boxes in {printable(folder())}: {error}",
        hint=_hint(error, "Make that directory yours and writable"),
    )


def _hint(error: Exception, otherwise: str) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free space on that disk (`df -h`, `df -i`), and start the box again."
    return f"{otherwise}, or start the box without protection (--no-protect)."


def _records(directory: int) -> list[str]:
    names = os.listdir(directory)
    return [name.removesuffix(".sock") for name in names if name.endswith(".sock")]


def _dead(directory: int) -> list[str]:
    return [name for name in _records(directory) if _is_dead(directory, name)]


def _is_dead(directory: int, name: str) -> bool:
    if _read(f"{name}.json").get("host", _host()) != _host():
        return False  # of another computer with the same home directory
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(_socket_path(directory, name))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _socket_path(directory: int, name: str) -> str:
    """Path of any length in few bytes, as addresses of sockets need it."""
    return f"/proc/self/fd/{directory}/{name}.sock"


def _host() -> str:
    return os.uname().nodename


def _forget(directory: int, name: str) -> None:
    for path in (f"{name}.json", f"{name}.json.nsm-new", f"{name}.sock"):
        with suppress(OSError):
            os.unlink(path, dir_fd=directory)


def _read(name: str) -> dict[str, Any]:
    """Content of a file of ours; empty where there is none."""
    try:
        with open(os.path.join(folder(), name), "rb") as file:
            value: object = json.loads(file.read(MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _write(name: str, value: Mapping[str, Any]) -> None:
    replace_file(os.path.join(folder(), name), json.dumps(value).encode())
