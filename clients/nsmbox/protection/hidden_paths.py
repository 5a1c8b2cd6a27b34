"""Files and directories of the project that a person wants hidden from a box: `--hide`.

A path hides what lies there. A name or a pattern without a slash hides everything of that name, in
all directories that the box shows, as in a `.gitignore`. Hidden are the files that are there when
the box starts: what comes later is seen, and so is another hard link to the same file.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from nsm.dataclass import dataclass
from nsmbox.model.plan import BoxError, Mount
from nsmbox.protection.secrets import printable, within

MAX_HIDDEN = 1000
"""Each costs a mount, and bwrap takes 9000 words in all."""

MAX_ENTRIES = 500_000
"""Largest number of names that are compared; takes about two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenPaths:
    """Paths to hide.

    Attributes:
        files, directories: real paths; what lies in one of the directories is left out.
        held: directories on the way to them, which the box cannot rename: the next box would not
            find them by the same path.
    """

    files: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def look(
    asked: Sequence[str],
    directory: str,
    *,
    shown: Sequence[str],
    writable: Sequence[str],
    home: str,
) -> HiddenPaths:
    """Find what is to be hidden.

    Args:
        shown: directories that the box shows, the working directory with them: absolute, all links
            followed.
        writable: those of them in which the box can write.
    """
    if not asked:
        return HiddenPaths()
    found: dict[str, bool] = {}
    notes: list[str] = []
    anywhere = [text for text in asked if "/" not in text.rstrip("/")]
    for text in asked:
        if "\0" in text or text.rstrip("/") in ("", ".", "..", "~"):
            raise _mistake(text, "is not the name of what could be hidden")
        if text not in anywhere:
            paths = list(_at(text, directory, shown, home))
            _add(found, paths, shown, text)
            if not paths:
                notes.append(f"Nothing is hidden by {printable(text)}: there is no such file.")
    names = {text: re.compile(fnmatch.translate(text.rstrip("/"))) for text in anywhere}
    if names:
        for text, paths in _everywhere(names, shown).items():
            _add(found, paths, shown, text)
            if not paths:
                notes.append(f"Nothing is hidden by {printable(text)}: there is no such file.")
    kept = [path for path in found if not any(found.get(above) for above in _above(path))]
    if len(kept) > MAX_HIDDEN:
        raise _too_many(f"{len(kept)} files and directories are to be hidden")
    held = {
        above
        for path in kept
        for above in _above(path)
        if any(within(above, root) and above != root for root in writable)
    }
    return HiddenPaths(
        files=tuple(sorted(path for path in kept if not found[path])),
        directories=tuple(sorted(path for path in kept if found[path])),
        held=tuple(sorted(held)),
        notes=tuple(notes),
    )


def mounts(hidden: HiddenPaths) -> tuple[Mount, ...]:
    """List the mounts that hide them; to come after all that shows them."""
    return tuple(
        Mount(kind="mask", target=path, masks_file=path in hidden.files, why="hidden on request")
        for path in sorted((*hidden.files, *hidden.directories))
    )


def _add(found: dict[str, bool], paths: Sequence[str], shown: Sequence[str], text: str) -> None:
    for path in paths:
        real = os.path.realpath(path)
        if any(within(root, real) for root in shown):
            raise _mistake(text, "is a directory that the box is to show")
        if not any(within(real, root) for root in shown):
            continue  # by a link; the box does not show it anyway
        with suppress(OSError):
            found[real] = stat.S_ISDIR(os.lstat(real).st_mode)


def _above(path: str) -> Iterator[str]:
    above = os.path.dirname(path)
    while above != "/":
        yield above
        above = os.path.dirname(above)


def _at(text: str, directory: str, shown: Sequence[str], home: str) -> Iterator[str]:
    """Yield what a path or a pattern with slashes stands for."""
    named = os.path.join(home, text[2:]) if text.startswith("~/") else text
    whole = os.path.normpath(os.path.join(directory, named))
    parts = whole.split("/")[1:]
    plain = next((n for n, part in enumerate(parts) if _is_pattern(part)), len(parts))
    base = "/" + "/".join(parts[:plain])
    real = os.path.realpath(base)
    if not any(within(real, root) or within(root, real) for root in shown):
        raise _mistake(text, "lies in none of the directories that the box is given")
    if plain == len(parts):
        if os.path.lexists(whole) and (not text.endswith("/") or os.path.isdir(whole)):
            yield whole
        return
    count = _Counter()
    yield from _matches(base, parts[plain:], count, text.endswith("/"))


def _matches(
    folder: str, parts: Sequence[str], count: _Counter, only_directories: bool
) -> Iterator[str]:
    """Yield what is below a directory by a pattern: `**` is any number of directories."""
    first, rest = parts[0], parts[1:]
    if first == "**" and rest:
        yield from _matches(folder, rest, count, only_directories)
    is_name = re.compile(fnmatch.translate("*" if first == "**" else first)).match
    for entry in count.entries(folder):
        is_directory = entry.is_dir(follow_symlinks=False)
        if first == "**" and rest:
            if is_directory:
                yield from _matches(entry.path, parts, count, only_directories)
        elif is_name(entry.name):
            if not rest and (is_directory or not only_directories):
                yield entry.path
            elif rest and is_directory:
                yield from _matches(entry.path, rest, count, only_directories)


def _everywhere(names: dict[str, re.Pattern[str]], shown: Sequence[str]) -> dict[str, list[str]]:
    """Find everything of these names below directories."""
    found: dict[str, list[str]] = {text: [] for text in names}
    count = _Counter()
    waiting = [root for root in shown if not any(root != o and within(root, o) for o in shown)]
    hidden = 0
    while waiting:
        for entry in count.entries(waiting.pop()):
            is_directory = entry.is_dir(follow_symlinks=False)
            matching = [
                text
                for text, name in names.items()
                if name.match(entry.name) and (is_directory or not text.endswith("/"))
            ]
            for text in matching:
                found[text].append(entry.path)
            hidden += bool(matching)
            if hidden > MAX_HIDDEN:
                raise _too_many(f"{' '.join(map(printable, names))} hides more than {MAX_HIDDEN}")
            if is_directory and not matching:
                waiting.append(entry.path)
    return found


class _Counter:
    """Reads directories, and gives up after too many entries: to hide only a part would be no
    hiding."""

    def __init__(self) -> None:
        self._left = MAX_ENTRIES

    def entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            # The box is the same user, and could change the mode of what is theirs.
            if error.errno != errno.EACCES or os.lstat(folder).st_uid != os.geteuid():
                return []
            raise BoxError(
                f"{printable(folder)} cannot be read by you, so --hide cannot look into it.",
                hint=f"Hide it as a whole, or allow it: chmod u+rx {printable(folder)}",
            ) from error
        self._left -= len(found)
        if self._left < 0:
            raise _too_many(f"there are more than {MAX_ENTRIES} files to compare with --hide")
        return found


def _is_pattern(part: str) -> bool:
    return any(sign in part for sign in "*?[")


def _mistake(text: str, what: str) -> BoxError:
    return BoxError(
        f"--hide: {printable(text)!r} {what}.",
        hint="Name a file or directory of the project, or a pattern: .env, 'secrets/*.pem'.",
        exit_code=2,
    )


def _too_many(what: str) -> BoxError:
    return BoxError(
        f"{what}, and a box hides no more than {MAX_HIDDEN} files and directories.",
        hint="Hide the directory that they lie in, or start the box in a smaller directory.",
        exit_code=2,
    )
