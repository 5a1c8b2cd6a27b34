"""Answers of a live session besides results: completions, whether code is complete, files.

`nsm ps` needs none of it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from nsm.wire.answers import read

PIECE_BYTES = 256 * 1024
"""The most that one `file_read` or `file_write` carries: four of them fit into what a socket
buffers, and a transfer's memory is a few of them, whatever the file's size."""

CheckStatus: TypeAlias = Literal["complete", "incomplete", "invalid", "unknown"]


class Completions(NamedTuple):
    """Completions that fit at the cursor.

    Attributes:
        start, end: the part of the code that a match replaces, in characters (code points).
        matches: at most a few hundred.
        available: False where the interpreter is busy or not up; `matches` is empty then.
    """

    start: int
    end: int
    matches: tuple[str, ...]
    available: bool


class Check(NamedTuple):
    """Answer to the question whether code is complete, which a prompt asks when Enter is pressed.

    Attributes:
        status: ``complete``: it can be run; ``incomplete``: more lines have to come; ``invalid``:
            no further line makes it right; ``unknown``: it cannot be told now.
        indent: white space that the next line may begin with.
    """

    status: CheckStatus
    indent: str


class FileInfo(NamedTuple):
    """A file of a session.

    Attributes:
        path: absolute, in the session.
        size: bytes.
        permissions: as in `os.chmod`, e.g. ``0o644``.
    """

    path: str
    size: int
    permissions: int


class OpenFile(NamedTuple):
    """A file that a connection has open; `file` is its handle in further requests."""

    file: int
    info: Annotated[FileInfo, ""]


class DirectoryEntry(NamedTuple):
    """Something in a directory of a session.

    Attributes:
        kind: ``file``, ``directory``, ``link``, ``other``, or ``unnamed`` where the name is not
            UTF-8; it stands here with escapes.
        size: bytes of a file.
    """

    name: str
    kind: str
    size: int


class Directory(NamedTuple):
    """A directory of a session.

    Attributes:
        path: absolute, in the session.
        free_bytes: room on its file system; None where that has no limit.
        entries: its entries, sorted by name.
        whole: no entry was left out for being one too many.
    """

    path: str
    free_bytes: int | None
    entries: tuple[DirectoryEntry, ...] = ()
    whole: bool = True


class FilePiece(NamedTuple):
    """Some bytes of a file; `eof` when none follow."""

    data: bytes
    eof: bool


def closed_file(wire: Mapping[str, Any], permissions: int) -> FileInfo:
    """Check the answer to `file_close`."""
    return read(FileInfo, {**wire, "permissions": permissions})
