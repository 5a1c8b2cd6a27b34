"""Answers about files of sessions. `nsm ps` needs none of it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from nsm.wire.decode import Constraint, Converted, at_least, between
from nsm.wire.errors import BadRequestError
from nsm.wire.messages import read
from nsm.wire.operation import PIECE_BYTES, Data, Seconds, operation
from nsm.wire.tuples import NamedTuple


def _is_descriptor(value: int | bool) -> bool:
    return value is False or (type(value) is int and value >= 0)


def text_of_path(told: str | bytes) -> str:
    return told if isinstance(told, str) else told.decode("utf-8", "surrogateescape")


FilePath: TypeAlias = Annotated[str, Converted(str | bytes, text_of_path)]
"""Path or name of a file. Each byte of it that is not UTF-8 is a lone surrogate, as for Python's
own functions (PEP 383). On the wire such a path is bytes.
"""


def path_on_wire(path: str | bytes) -> str | bytes:
    """A path as requests have it: text, or bytes if it is not UTF-8.

    Raises:
        BadRequestError: it has a surrogate that stands for no byte, so no file can have that name.
    """
    if isinstance(path, str):
        try:
            path.encode()
        except UnicodeEncodeError:
            try:
                return path.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as error:
                raise BadRequestError(
                    f"{path!r:.200} is not a path: it has half a character (surrogate) at "
                    f"{error.start}.",
                    hint="Only U+DC80 to U+DCFF stand for bytes that are not UTF-8.",
                ) from None
        return path
    try:
        return path.decode()
    except UnicodeDecodeError:
        return path


MAX_PATH_CHARS = 4096
"""Longest path that Linux accepts (PATH_MAX)."""

MAX_PAGE = 1000
"""Largest number of entries of a directory in one answer of `file_entries`."""


def _fits(path: str) -> bool:
    return 0 < len(path) <= MAX_PATH_CHARS and "\0" not in path


AskedPath: TypeAlias = Annotated[
    str,
    Converted(str | bytes, text_of_path, path_on_wire),
    Constraint(_fits, f"1 to {MAX_PATH_CHARS} characters or bytes without NUL"),
]
"""Path in a request, in the form of `FilePath`."""

AskedPermissions: TypeAlias = Annotated[int | None, between(0, 0o777)]
Handle: TypeAlias = Annotated[int, at_least(0)]


class FileInfo(NamedTuple):
    """A file of a session.

    Attributes:
        path: absolute, in the session.
        size: bytes.
        permissions: as in `os.chmod`, e.g. ``0o644``.
    """

    path: FilePath
    size: int
    permissions: int


class OpenFile(NamedTuple):
    """A file that a connection has open; `file` is its handle in further requests.

    `descriptor` is one through which the file is read or written without the supervisor; false if
    there is none. The client puts its number there. With `streams`, an archive goes through
    `file_read` or `file_write`.
    """

    file: int
    info: Annotated[FileInfo, ""]
    descriptor: Annotated[int | bool, Constraint(_is_descriptor, "a descriptor")] = False
    streams: bool = False


class FilePiece(NamedTuple):
    """Some bytes of a file; `eof` when none follow."""

    data: bytes
    eof: bool


def closed_file(wire: Mapping[str, Any], permissions: int) -> FileInfo:
    """Check the answer to `file_close`."""
    return read(FileInfo, {**wire, "permissions": permissions})


FileKind: TypeAlias = Literal["file", "directory", "link", "other"]


class FileEntry(NamedTuple):
    """Facts about something in a session, as stat(2) has them.

    Attributes:
        name: the last part of its path.
        kind: ``file``, ``directory``, ``link``, or ``other``, such as a socket.
        size: bytes of a file.
        permissions: as in `os.chmod`, e.g. ``0o644``.
        modified_at: time of the last change, seconds since 1970.
        path: absolute, in the session; empty in a list.
        target: path to which a link leads; None for anything else, and in a list.
    """

    name: FilePath
    kind: FileKind
    size: int
    permissions: int
    modified_at: float
    path: FilePath = ""
    target: FilePath | None = None


class FileEntries(NamedTuple):
    """Some entries of a directory, sorted by name; `more` if others follow."""

    path: FilePath
    entries: tuple[FileEntry, ...]
    more: bool = False
    free_bytes: int | None = None


class Directory(NamedTuple):
    """A directory of a session.

    Attributes:
        path: absolute, in the session.
        free_bytes: room on its file system; None where that has no limit.
        entries: its entries, sorted by name.
    """

    path: FilePath
    free_bytes: int | None
    entries: tuple[FileEntry, ...] = ()


class FileContent(NamedTuple):
    """A file, or a part of it; `eof` if the file ends with it."""

    info: Annotated[FileInfo, ""]
    data: bytes
    eof: bool


LINK = "is a link"
SPECIAL = "is not a file, directory or link"  # also in the agent, word for word
"""Reasons for leaving something out of a copy that hold for all that is like it."""

_SPECIAL_IN_0_3 = "is no file, directory or link"
"""The same reason in the words of live agents that an older nsm has started."""


class Skipped(NamedTuple):
    """Something that was not copied, and why."""

    path: FilePath
    why: str

    @property
    def by_rule(self) -> bool:
        """True for a link or a special file, which are never copied: nothing has failed."""
        return self.why in (LINK, SPECIAL, _SPECIAL_IN_0_3)


class FileEvent(NamedTuple):
    """Something that happened to a file.

    Attributes:
        kind: ``created``, ``modified``, ``removed``, ``renamed``, ``attributes`` (permissions or
            times), or ``overflow``: so much happened that events are missing.
        path: relative to the path that is watched; empty for that itself.
        to: new name of what was renamed.
    """

    kind: str
    path: FilePath
    to: FilePath | None = None


class FileEvents(NamedTuple):
    """Events of a watched path; `overflow` if some are missing, `ended` if none will follow."""

    events: tuple[FileEvent, ...]
    overflow: bool = False
    ended: bool = False


class Watching(NamedTuple):
    """A path that is watched; `watch` is its handle in further requests."""

    watch: int
    path: FilePath


class TreeReport(NamedTuple):
    """Outcome of an operation on a whole directory.

    Attributes:
        path: absolute, in the session.
        size: bytes of all its files; 0 for a removal.
        entries: number of files, directories and links.
        left_out: number of those that were not copied.
        skipped: the first hundred of them.
    """

    path: FilePath
    size: int
    entries: int = 0
    left_out: int = 0
    skipped: tuple[Skipped, ...] = ()


@operation("manage", own=True, recorded=("target", "path", "mode"))
def file_open(
    target: str,
    path: AskedPath,
    mode: Literal["read", "write", "archive", "unpack"],
    *,
    permissions: AskedPermissions = None,
    overwrite: bool = True,
    size: Annotated[int, at_least(0)] = 0,
    descriptor: bool = False,
) -> OpenFile:
    """Begin a transfer: `read` or `write` a file; `archive` or `unpack` what is in a directory,
    as tar. A writer says in `size` how much it will send.
    """
    ...


@operation("manage", own=True, recorded=None)
def file_read(
    file: Handle,
    bytes: Annotated[int, between(1, PIECE_BYTES)] = PIECE_BYTES,  # noqa: A002  # on the wire
) -> FilePiece:
    """Read the next piece of a transfer."""
    ...


@operation("manage", own=True, key="size", recorded=None)
def file_write(file: Handle, data: Data) -> int:
    """Write the next piece; the answer is how much was written so far."""
    ...


@operation("manage", own=True, recorded=None)
def file_close(file: Handle, *, keep: bool = False) -> dict[str, Any]:
    """End a transfer: `{path, size}`, after an archive also `entries, left_out, skipped: [{path,
    why}]`. A written file appears only with `keep`.
    """
    ...


@operation("manage", own=True, recorded=("target", "path"))
def file_get(
    target: str,
    path: AskedPath,
    *,
    offset: Annotated[int, between(0, 2**53)] = 0,
    bytes: Annotated[int, between(0, PIECE_BYTES)] = PIECE_BYTES,  # noqa: A002  # on the wire
) -> FileContent:
    """Read a file, or a piece of it."""
    ...


@operation("manage", own=True, recorded=("target", "path", "append"))
def file_put(
    target: str,
    path: AskedPath,
    data: Data,
    *,
    permissions: AskedPermissions = None,
    overwrite: bool = True,
    append: bool = False,
    parents: bool = False,
) -> dict[str, Any]:
    """Write a file of at most 256 KiB at once, or add to one: `{path, size, permissions}`.
    `parents` makes missing directories.
    """
    ...


@operation("manage", own=True, recorded=None)
def file_stat(target: str, path: AskedPath, *, follow: bool = False) -> FileEntry:
    """Describe a file; a link itself, unless it is followed."""
    ...


@operation("manage", own=True, recorded=None)
def file_entries(
    target: str,
    path: AskedPath,
    *,
    after: Annotated[str, Converted(str | bytes, text_of_path, path_on_wire)] = "",
    count: Annotated[int, between(0, MAX_PAGE)] = MAX_PAGE,
) -> FileEntries:
    """List a directory by name, from behind the name `after`."""
    ...


@operation("manage", own=True, recorded=("target", "path", "recursive"))
def file_remove(target: str, path: AskedPath, *, recursive: bool = False) -> dict[str, Any]:
    """Remove a file, a link, an empty directory, or with `recursive` any directory but a mount
    point: `{path, size}`, with `recursive` also `entries, left_out, skipped`.
    """
    ...


@operation("manage", own=True, recorded=("target", "path", "to"))
def file_rename(
    target: str, path: AskedPath, to: AskedPath, *, overwrite: bool = True
) -> dict[str, Any]:
    """Rename a file or directory: `{path, size}`."""
    ...


@operation("manage", own=True, recorded=("target", "path"))
def file_mkdir(target: str, path: AskedPath, *, parents: bool = False) -> Directory:
    """Make a directory if it is missing, and with `parents` those around it."""
    ...


@operation("manage", own=True, recorded=None)
def file_watch(target: str, path: AskedPath, *, recursive: bool = False) -> Watching:
    """Watch a file, or what is in a directory; with `recursive` also in at most 1,000
    directories below.
    """
    ...


@operation("manage", own=True, recorded=None)
def file_events(watch: Handle, *, wait_s: Seconds = 0.0) -> FileEvents:
    """Tell what has happened since the last time, or what happens first within `wait_s` seconds,
    at most 60.
    """
    ...


@operation("manage", own=True, recorded=None)
def file_unwatch(watch: Handle) -> dict[str, Any]:
    """End the watching."""
    ...


def path_of(given: bytes) -> str:
    """A path as text, whatever it is called: names of files are bytes."""
    return given.decode("utf-8", "surrogateescape")


def bytes_of(path: str) -> bytes:
    """Convert the text of `path_of` back to the bytes of the path."""
    return path.encode("utf-8", "surrogateescape")


PathField = Annotated[str, Converted(bytes, path_of)]


class FileState(NamedTuple):
    """State of the file at a path.

    Attributes:
        type: ``file``, ``directory``, ``symlink`` or ``special``.
        mode: permissions.
        size: bytes of a file, or of a link's target.
        token: stands for all of it; another one after any change.
    """

    type: str
    mode: int
    size: int
    token: str


class ChangeRow(NamedTuple):
    """Change that a session made to one path.

    Attributes:
        path: below the project; `bytes_of` gives what it is called.
        kind: ``added``, ``changed`` or ``deleted``.
        before: on the host now; None where nothing is.
        after: in the session; None where nothing is.
        conflict: why applying it would undo what was done on the host meanwhile; or empty.
        risk: why nobody should apply it unseen; or empty.
        problem: why it cannot be applied; or empty.
    """

    path: PathField
    kind: str
    before: FileState | None
    after: FileState | None
    conflict: str
    risk: str
    problem: str


class ChangeEnd(NamedTuple):
    """End of the rows: totals, and the reason if rows are missing.

    Attributes:
        session: its id.
        project: the directory on the host.
        changes: how many rows.
        used_bytes, size_bytes: present and largest size of the overlay.
    """

    session: str
    project: str
    changes: int
    used_bytes: int
    size_bytes: int


class Contents(NamedTuple):
    """One path on both sides.

    Attributes:
        change: None if there is no difference any more.
        before, after: content of a file, target of a link; None where there is neither, and where
            it is longer than 1 MiB or changes just now.
    """

    change: ChangeRow | None
    before: bytes | None
    after: bytes | None


class Refused(NamedTuple):
    """A change that was not made, and why."""

    path: PathField
    why: str


class ChangeReport(NamedTuple):
    """Outcome of `apply` or `discard`.

    Attributes:
        done: how many changes were made, or taken back.
        refused: those that were not.
    """

    done: int
    refused: list[Refused]


MAX_PATH_BYTES = 4096


def _is_below(path: str) -> bool:
    parts = {"", ".", ".."} & set(path.split("/"))
    return not parts and "\0" not in path and len(bytes_of(path)) <= MAX_PATH_BYTES


ChangedPath: TypeAlias = Annotated[
    str,
    Converted(bytes, path_of, bytes_of),
    Constraint(
        _is_below,
        "a path below the project, in bytes, relative to it, without '.', '..' and empty parts",
    ),
]
"""Path of a change in a request."""


class AgreedRow(NamedTuple):
    """A change that somebody agreed to: its path, and the tokens of both states as they were shown.

    Attributes:
        risky: it is to be applied although it has a `risk`.
    """

    path: ChangedPath
    before: str | None = None
    after: str | None = None
    risky: bool = False


@operation("manage", recorded=None)
def changes(target: str, paths: tuple[ChangedPath, ...] = ()) -> ChangeEnd:
    """List what a session has changed in its copy of the project, in events
    `changes {changes: [ChangeRow]}`.
    """
    ...


@operation("manage", recorded=None)
def change(target: str, path: ChangedPath) -> Contents:
    """Read both sides of a change."""
    ...


@operation("manage", recorded=("target", "force", "changes"))
def apply(
    target: str, changes: tuple[AgreedRow, ...] = (), *, force: bool = False
) -> dict[str, Any]:
    """Bring changes to the project, as they were shown: `{applied, refused: [{path, why}]}`."""
    ...


@operation("manage", recorded=("target", "paths"))
def discard(target: str, paths: tuple[ChangedPath, ...] = ()) -> dict[str, Any]:
    """Take changes back: `{discarded, refused: [{path, why}]}`."""
    ...
