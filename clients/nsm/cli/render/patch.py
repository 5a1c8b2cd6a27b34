"""Changes as a patch that `git apply` takes; pure."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsm.wire.files import ChangeRow, Contents, FileState

MAX_LINES = 20_000
"""Largest number of lines of a file to compare line by line, since the file decides how long that
takes.
"""

_MODES = {"file": 0o100000, "symlink": 0o120000, "directory": 0o040000}
_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}


def patch_of(row: ChangeRow, contents: Contents) -> bytes:
    """The patch of one path; a line of words for what no patch can say."""
    if contents.change is None:
        return b""
    row = contents.change
    words = _beside(row)
    types = {state.type for state in (row.before, row.after) if state is not None}
    if types == {"directory"}:
        return words or _line(f"# {row.kind} directory {quoted(row.path)}{_modes(row)}")
    if not types <= {"file", "symlink"}:
        return words or _line(f"# {row.kind} {quoted(row.path)}: {' becomes '.join(_types(row))}")
    return words + b"".join(_file(row, contents))


def counts_of(patch: bytes) -> tuple[int, int]:
    """Count the lines that a patch adds and removes."""
    added = removed = 0
    inside = False
    for line in patch.split(b"\n"):
        if line.startswith(b"@@ "):
            inside = True
        elif inside and line[:1] == b"+":
            added += 1
        elif inside and line[:1] == b"-":
            removed += 1
    return added, removed


def quoted(path: str, prefix: str = "") -> str:
    """A path as git writes it: in quotes where it has what ends a line or acts on a terminal."""
    given = prefix + path
    if given.isprintable() and not {'"', "\\"} & set(given) and not _has_surrogates(given):
        return given
    written = ""
    for character in given:
        if character.isprintable() and character not in '"\\' and not _has_surrogates(character):
            written += character
            continue
        for byte in os.fsencode(character):
            written += "\\" + _ESCAPES.get(byte, f"{byte:03o}")
    return f'"{written}"'


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _beside(row: ChangeRow) -> bytes:
    return b"".join(
        _line(f"# {quoted(row.path)}: {words}")
        for words in (row.problem, row.conflict, row.risk)
        if words
    )


def _types(row: ChangeRow) -> list[str]:
    return [state.type for state in (row.before, row.after) if state is not None]


def _modes(row: ChangeRow) -> str:
    if row.before is None or row.after is None or row.before.mode == row.after.mode:
        return ""
    return f", mode {row.before.mode:o} becomes {row.after.mode:o}"


def _file(row: ChangeRow, contents: Contents) -> Iterator[bytes]:
    before, after = row.before, row.after
    if before is not None and after is not None and before.type != after.type:
        # As git has it: two patches.
        gone, come = row._replace(after=None), row._replace(before=None)
        yield from _file(gone, contents._replace(after=None))
        yield from _file(come, contents._replace(before=None))
        return
    old, new = quoted(row.path, "a/"), quoted(row.path, "b/")
    if _is_binary(before, contents.before) or _is_binary(after, contents.after):
        sizes = " becomes ".join(f"{state.size} bytes" for state in (before, after) if state)
        yield _line(f"# {row.kind} binary file {quoted(row.path)}, {sizes}{_modes(row)}")
        return
    if _modes(row) and before is not None and after is not None and _mode(before) == _mode(after):
        # Which is no more to git than whether it may be executed.
        yield _line(f"# {quoted(row.path)}{_modes(row)}")
        if contents.before == contents.after:
            return
    yield _line(f"diff --git {old} {new}")
    if before is None and after is not None:
        yield _line(f"new file mode {_mode(after)}")
    elif after is None and before is not None:
        yield _line(f"deleted file mode {_mode(before)}")
    elif before is not None and after is not None and _mode(before) != _mode(after):
        yield _line(f"old mode {_mode(before)}")
        yield _line(f"new mode {_mode(after)}")
    old = "/dev/null" if before is None else old
    new = "/dev/null" if after is None else new
    hunks = b"".join(_hunks(contents.before or b"", contents.after or b""))
    if hunks:
        yield _line(f"--- {old}") + _line(f"+++ {new}") + hunks


def _mode(state: FileState) -> str:
    """Mode as git writes it; of a file's permissions, only whether it is executable."""
    mode = _MODES[state.type]
    if state.type == "file":
        mode |= 0o755 if state.mode & 0o100 else 0o644
    return f"{mode:06o}"


def _is_binary(state: FileState | None, content: bytes | None) -> bool:
    """Return whether a file is binary, or too long to be shown."""
    return state is not None and (content is None or b"\0" in content[:8000])


def _hunks(before: bytes, after: bytes) -> Iterator[bytes]:
    old, new = _lines(before), _lines(after)
    if max(len(old), len(new)) > MAX_LINES:
        yield _line(f"@@ -{_range(len(old))} +{_range(len(new))} @@")
        yield from (b"-" + line for line in old)
        yield from (b"+" + line for line in new)
        return
    # Without its first two lines, the names of the files.
    lines = difflib.unified_diff(
        [line.decode("latin-1") for line in old], [line.decode("latin-1") for line in new]
    )
    for number, line in enumerate(lines):
        if number >= 2:
            yield line.encode("latin-1")


def _range(lines: int) -> str:
    return f"{1 if lines else 0},{lines}"


def _lines(content: bytes) -> list[bytes]:
    """Split into lines with their line ends; mark a last line that has none."""
    *whole, rest = content.split(b"\n")
    lines = [line + b"\n" for line in whole]
    return [*lines, rest + b"\n\\ No newline at end of file\n"] if rest else lines


def _line(text: str) -> bytes:
    return os.fsencode(text) + b"\n"
