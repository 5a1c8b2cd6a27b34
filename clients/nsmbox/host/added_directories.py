"""Directories that a box shows beside its working directory: `--add`, and agents' own options."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Mapping, Sequence

from nsm.dataclass import dataclass
from nsmbox.model.plan import BoxError
from nsmbox.protection import secrets
from nsmbox.protection.secrets import Known, printable, within

MAX_ADDED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedDirectory:
    """A directory that a box is asked to show.

    Attributes:
        path: as it was named; relative ones begin at the working directory.
        writable: the box can change what is there.
        by: the option or the file that names it.
    """

    path: str
    writable: bool
    by: str = "--add"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedDirectory:
    """A directory that the box shows.

    Attributes:
        path: absolute, all links followed; the same in the box.
    """

    path: str
    writable: bool


def parse(text: str, by: str = "--add") -> RequestedDirectory:
    """Read `DIR`, `DIR:ro` or `DIR:rw`. A name that ends so itself needs another one after it."""
    for ending, writable in ((":ro", False), (":rw", True)):
        if text.endswith(ending):
            return RequestedDirectory(path=text.removesuffix(ending), writable=writable, by=by)
    return RequestedDirectory(path=text, writable=False, by=by)


def look(
    asked: Iterable[RequestedDirectory],
    directory: str,
    known: Known,
    home: str,
    *,
    kept: Sequence[str] = (),
) -> tuple[tuple[AddedDirectory, ...], tuple[str, ...]]:
    """Find the directories that are asked for.

    Args:
        directory: the working directory: absolute, all links followed.
        home: what `~` stands for.
        kept: paths in the box of what the agent keeps, which nothing may cover.

    Returns:
        Those that give the box something, sorted, so that outer ones come first; and sentences for
        people.

    Raises:
        BoxError: one is none, or no box may show it; 2.
    """
    found: dict[str, bool] = {}
    notes: list[str] = []
    for each in asked:
        path = _checked(each, directory, known, home, notes)
        if any(within(place, path) for place in kept):
            raise _refused(each, "holds the place of what the agent keeps")
        found[path] = found.get(path, False) or each.writable
    if len(found) > MAX_ADDED:
        raise BoxError(
            f"{len(found)} directories are to be added, and a box shows at most {MAX_ADDED}.",
            hint="Add a directory that they lie in.",
            exit_code=2,
        )
    places = {**found, directory: True}
    added = [
        AddedDirectory(path=path, writable=found[path])
        for path in sorted(found)
        if path != directory and is_writable(places, os.path.dirname(path)) != found[path]
    ]
    return tuple(added), tuple(dict.fromkeys(notes))


def is_writable(places: Mapping[str, bool], path: str) -> bool | None:
    """Return whether a box can write at a path; None if it does not show it.

    Args:
        places: real paths of the directories that it shows, with the same.
    """
    while path not in places:
        if path == "/":
            return None
        path = os.path.dirname(path)
    return places[path]


def _checked(
    asked: RequestedDirectory, directory: str, known: Known, home: str, notes: list[str]
) -> str:
    """The real path of a directory that may be added."""
    name = asked.path
    if not name or "\0" in name:
        raise _refused(asked, "names no directory")
    expanded = os.path.join(home, name[1:].lstrip("/")) if name.split("/")[0] == "~" else name
    path = os.path.join(directory, expanded)
    real = os.path.realpath(path)
    try:
        status = os.stat(path)
    except OSError as error:
        raise _refused(asked, f"cannot be shown: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise _refused(asked, "is no directory")
    if real == directory and not asked.writable:
        raise _refused(asked, "is the working directory, in which the box writes")
    if real != directory and (reason := secrets.why_refused(known, real)):
        raise _refused(asked, reason)
    if not os.access(real, os.R_OK | os.X_OK):
        raise _refused(asked, "cannot be read by you")
    if asked.writable and not os.access(real, os.W_OK):
        raise _refused(asked, "cannot be written by you; `:ro` shows it read-only")
    if os.path.normpath(path) != real:
        notes.append(f"{printable(name)} leads to {printable(real)}, and is there in the box.")
    if status.st_uid not in (os.geteuid(), 0):
        notes.append(f"{printable(name)} belongs to {_owner(status.st_uid)}, who can change it.")
    return real


def _owner(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _refused(asked: RequestedDirectory, reason: str) -> BoxError:
    return BoxError(
        f"{asked.by}: {printable(asked.path)!r} {reason}.",
        hint="Name a directory of your own, with :ro or :rw: nsm box --add ../library:ro",
        exit_code=2,
    )
