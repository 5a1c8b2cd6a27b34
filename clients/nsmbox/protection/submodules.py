"""Submodules that git finds by a repository's index, wherever they lie (gitformat-index(5)).

`git status` at the top asks each of them for its own status, and obeys its configuration. The index
is read here, and no git is run: it may be anybody's by now.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from nsmbox.protection import git_repository

MAX_INDEX_BYTES = 32 * 1024 * 1024
"""Some 300,000 files. Of larger ones nothing is told."""

_GITLINK = 0o160000
_MODE_AT, _STAT_BYTES = 24, 40
_EXTENDED = 0x4000
_POINTER = b"gitdir: "


def git_directories(index: str, worktree: str) -> Iterator[str]:
    """Git directories of the submodules that are there.

    Args:
        index: the file's path.
        worktree: directory that its names are relative to.
    """
    for name in gitlinks(git_repository.small_file(index, MAX_INDEX_BYTES) or b""):
        place = os.path.join(worktree, os.fsdecode(name), ".git")
        if os.path.isdir(place) and not os.path.islink(place):
            yield place
            continue
        pointer = git_repository.small_file(place) or b""
        if pointer.startswith(_POINTER):
            to = os.fsdecode(pointer.removeprefix(_POINTER).rstrip(b"\r\n"))
            yield os.path.normpath(os.path.join(os.path.dirname(place), to))


def gitlinks(data: bytes, *, hash_bytes: int = 20) -> Iterator[bytes]:
    """Names of an index's submodules; none where it is no index of this form.

    Args:
        hash_bytes: 20 for SHA-1; with SHA-256 names are not found at their places.
    """
    version = int.from_bytes(data[4:8], "big")
    if data[:4] != b"DIRC" or version not in (2, 3, 4):
        return
    at, name = 12, b""
    for _ in range(int.from_bytes(data[8:12], "big")):
        flags_at = at + _STAT_BYTES + hash_bytes
        name_at = flags_at + 2
        if int.from_bytes(data[flags_at:name_at], "big") & _EXTENDED and version > 2:
            name_at += 2
        kept = b""
        if version == 4:
            drop, name_at = _offset(data, name_at)
            kept = name[: len(name) - drop]
        end = data.find(b"\0", name_at)
        if end < 0:
            return
        name = kept + data[name_at:end]
        if int.from_bytes(data[at + _MODE_AT : at + _MODE_AT + 4], "big") == _GITLINK:
            yield name
        at = end + 1 if version == 4 else at + (end - at + 8) // 8 * 8


def _offset(data: bytes, at: int) -> tuple[int, int]:
    """A number as in packs' offset deltas (gitformat-pack(5)), and where it ends."""
    value = -1
    while at < len(data):
        byte = data[at]
        at += 1
        value = (value + 1) << 7 | byte & 0x7F
        if not byte & 0x80:
            break
    return max(0, value), at
