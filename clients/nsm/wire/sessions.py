"""Answers of a live session besides results: completions, whether code is complete, files.

`nsm ps` needs none of it.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from nsm.wire.fields import Fields
from nsm.wire.frames import RemoteProtocolError

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

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `complete`."""
        fields = Fields(wire, "completions")
        return cls(
            start=fields.integer("start"),
            end=fields.integer("end"),
            matches=fields.texts("matches"),
            available=fields.flag("available"),
        )


class Check(NamedTuple):
    """Answer to the question whether code is complete, which a prompt asks when Enter is pressed.

    Attributes:
        status: ``complete``: it can be run; ``incomplete``: more lines have to come; ``invalid``:
            no further line makes it right; ``unknown``: it cannot be told now.
        indent: white space that the next line may begin with.
    """

    status: CheckStatus
    indent: str

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `check`."""
        fields = Fields(wire, "the check of some code")
        return cls(status=_status(fields.text("status")), indent=fields.text("indent"))


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
    info: FileInfo

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `file_open`."""
        fields = Fields(wire, "an open file")
        info = FileInfo(
            path=fields.text("path"),
            size=fields.integer("size"),
            permissions=fields.integer("permissions"),
        )
        return cls(fields.integer("file"), info)


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
        entries: what is in it, by name.
        whole: no entry was left out for being one too many.
    """

    path: str
    free_bytes: int | None
    entries: tuple[DirectoryEntry, ...] = ()
    whole: bool = True

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `file_list` or `file_mkdir`."""
        fields = Fields(wire, "a directory")
        entries = fields.maps("entries") if "entries" in wire else ()
        return cls(
            path=fields.text("path"),
            free_bytes=None if wire.get("free_bytes") is None else fields.integer("free_bytes"),
            entries=tuple(_entry(Fields(entry, "an entry")) for entry in entries),
            whole="whole" not in wire or fields.flag("whole"),
        )


def _entry(fields: Fields) -> DirectoryEntry:
    return DirectoryEntry(fields.text("name"), fields.text("kind"), fields.integer("size"))


class FilePiece(NamedTuple):
    """Some bytes of a file; `eof` when none follow."""

    data: bytes
    eof: bool

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `file_read`."""
        data = wire.get("data")
        if not isinstance(data, bytes):
            raise RemoteProtocolError("the supervisor sent a piece of a file that is not bytes")
        return cls(data, Fields(wire, "a piece of a file").flag("eof"))


def _status(told: str) -> CheckStatus:
    match told:
        case "complete":
            return "complete"
        case "incomplete":
            return "incomplete"
        case "invalid":
            return "invalid"
        case _:
            return "unknown"  # also what a newer supervisor may say


def closed_file(wire: Mapping[str, Any], permissions: int) -> FileInfo:
    """Check the answer to `file_close`."""
    fields = Fields(wire, "a closed file")
    return FileInfo(fields.text("path"), fields.integer("size"), permissions)
