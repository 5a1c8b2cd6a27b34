"""Frames about files that come out of a jail, checked as `nsmd.agent_link.frames` does it."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from nsm.wire.decode import Constraint, Converted, at_most, between
from nsm.wire.tuples import NamedTuple

MAX_WORDS = 16 * 1024
"""Largest size of a text that is no output, such as a reason or a path. Ours have a few hundred
characters.
"""
MAX_CHUNK_BYTES = 256 * 1024
"""Largest piece of a file in one frame."""
MAX_ENTRIES = 10_000
"""Largest number of directory entries in one frame."""
MAX_SKIPPED = 100
"""Largest number of names that are told of what was left out of an archive."""
MAX_NAME = 1020
"""Bytes of a file's name. Linux has at most 255, but some file systems have longer ones."""
MAX_CODE = 40


def _chunk(told: str) -> bytes:
    return base64.b64decode(told, validate=True)


def _is_error_name(code: str) -> bool:
    return len(code) <= MAX_CODE and code.isascii() and (not code or code.isalnum())


def _is_any_name(name: str) -> bool:
    """False for one that no file could have. Each lone surrogate stands for a byte."""
    try:
        size = len(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return False
    return (
        0 < size <= MAX_NAME
        and name not in (".", "..")
        and "\0" not in name
        and ("/" not in name or name == "/")
    )


def _is_any_path(path: str) -> bool:
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return len(path) <= MAX_WORDS and "\0" not in path


Chunk = Annotated[bytes, Converted(str, _chunk), at_most(MAX_CHUNK_BYTES, "bytes")]
Words = Annotated[str, at_most(MAX_WORDS, "characters")]
Count = Annotated[int, between(0, 2**53)]
AnyName = Annotated[str, Constraint(_is_any_name, "a name that a file can have")]
AnyPath = Annotated[str, Constraint(_is_any_path, "a path that a file can have")]
ChangeKind = Literal["created", "removed", "modified", "attributes", "renamed"]
DetailedKind = Literal["file", "directory", "link", "other"]
ErrorName = Annotated[str, Constraint(_is_error_name, "the name of an error number")]


class FileFrame(NamedTuple):
    """A transfer is open, or has taken a piece. `size` in bytes; for a write, what was written so
    far.

    `free_bytes` is the room where a file is written, before the write; None if unknown. With
    `descriptor` one has come, through which the file is read or written; `AgentLink` has it.
    """

    id: str
    path: AnyPath
    size: Count
    permissions: Annotated[int, between(0, 0o7777)]
    free_bytes: Annotated[int | None, between(0, 2**53)] = None
    descriptor: bool = False


class FileDataFrame(NamedTuple):
    """A piece of a file that is read; `eof` when nothing follows."""

    id: str
    data: Chunk
    eof: bool = False


class FileClosedFrame(NamedTuple):
    """A transfer has ended as asked, or something was done; `size` is what was transferred, bytes.

    Of a directory, `entries` is the number of its entries, and `left_out` how many were not copied.
    `skipped` has the first of them, each with the reason.
    """

    id: str
    path: AnyPath
    size: Count
    entries: Count = 0
    left_out: Count = 0
    skipped: Annotated[tuple[tuple[AnyPath, Words], ...], at_most(MAX_SKIPPED, "names")] = ()
    permissions: Annotated[int | None, between(0, 0o7777)] = None


class FileDirectoryFrame(NamedTuple):
    """A directory is there, and has so much room; None if that has no limit."""

    id: str
    path: AnyPath
    free_bytes: Annotated[int | None, between(0, 2**53)] = None


class FileContentFrame(NamedTuple):
    """A file, or a part of it; `eof` if the file ends with it."""

    id: str
    path: AnyPath
    size: Count
    permissions: Annotated[int, between(0, 0o7777)]
    data: Chunk
    eof: bool = False


class DetailedFile(NamedTuple):
    """An entry of a directory with what stat(2) says; the time in microseconds."""

    name: str
    kind: str
    size: int
    permissions: int
    modified_us: int


class FileEntriesFrame(NamedTuple):
    """Some entries of a directory, by name, `more` if others follow; or one file and what it is.

    `target` is where a symbolic link leads, `free_bytes` the room where the directory is.
    """

    id: str
    path: AnyPath
    entries: Annotated[
        tuple[
            Annotated[
                DetailedFile,
                Converted(
                    tuple[AnyName, DetailedKind, Count, Annotated[int, between(0, 0o7777)], Count],
                    DetailedFile._make,
                ),
            ],
            ...,
        ],
        at_most(MAX_ENTRIES, "entries"),
    ]
    more: bool = False
    target: AnyPath | None = None
    free_bytes: Annotated[int | None, between(0, 2**53)] = None


class FileWatchingFrame(NamedTuple):
    """A path is watched."""

    id: str
    path: AnyPath


class FileChange(NamedTuple):
    """A change below a path that is watched; `to` is a new name."""

    kind: str
    path: str
    to: str


class FileEventsFrame(NamedTuple):
    """Changes below a path; `overflow` if some are missing, `ended` if none follow."""

    id: str
    events: Annotated[
        tuple[
            Annotated[FileChange, Converted(tuple[ChangeKind, AnyPath, AnyPath], FileChange._make)],
            ...,
        ],
        at_most(MAX_ENTRIES, "events"),
    ] = ()
    overflow: bool = False
    ended: bool = False


class FileErrorFrame(NamedTuple):
    """A transfer has failed and ended; `code` is an error number's name, EISDIR, or ""."""

    id: str
    message: Words = "the agent could not say why"
    code: ErrorName = ""


TransferFrame = (
    FileFrame
    | FileDataFrame
    | FileClosedFrame
    | FileDirectoryFrame
    | FileContentFrame
    | FileEntriesFrame
    | FileWatchingFrame
    | FileEventsFrame
    | FileErrorFrame
)
