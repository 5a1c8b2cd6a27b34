"""Changes of a session in its overlay of the project, as a part of a save.

The part is a sequence of records: a line of JSON, then the content if it is a file. So whoever
restores it can leave out changes, and unpacks nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
import time
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Any

from nsm import below
from nsm.changes import Changes, in_order
from nsm.client import file_steps
from nsm.saves.reports import NotSaved, RestoredRow, SaveError
from nsm.wire.decode import DecodeError, decode
from nsm.wire.errors import FileError
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsm.client.blocking import Client
    from nsm.client.session_files import SessionFiles
    from nsm.wire.files import ChangeRow
    from nsm.wire.inspection import Inspection

    Read = Callable[[int], bytes]

MAX_TIME_US = 1 << 53
"""Latest time of a change, in the year 2255."""

MAX_LINE_BYTES = 64 * 1024
PIECE_BYTES = 1024 * 1024
IN_MEMORY_BYTES = 8 * 1024 * 1024
"""Largest content of a file that is kept in memory on its way, not on the disk."""


class FileFacts(NamedTuple):
    """Facts about a file of the project, which tell whether it has changed.

    Attributes:
        type: ``file``, ``directory``, ``symlink`` or ``special``.
        content: SHA-256 of a file, target of a link.
    """

    type: str
    content: str


class ChangeRecord(NamedTuple):
    """One change. `size` bytes of content follow it.

    Attributes:
        path: below the project.
        type: as in `FileFacts`, or ``deleted``.
        target: of a link.
        before: the host's file when the session was saved; None if there was none.
        modified_us: time of the last change, microseconds since 1970; 0 if it is not known.
    """

    path: str
    type: str
    mode: int
    size: int
    target: str
    before: FileFacts | None
    modified_us: int = 0


def overlay_of(seen: Inspection) -> str | None:
    """Path in the session of its overlay of the project; None if it has none."""
    mounts: list[dict[str, Any]] = (seen.policy or {}).get("mounts", [])
    for mount in mounts:
        if mount.get("source") == seen.session.project and mount.get("mode") == "cow":
            return str(mount["path"])
    return None


def save(
    client: Client, target: str, overlay: str, write: Callable[[bytes], object]
) -> tuple[int, list[NotSaved]]:
    """Write all changes of a session, which has the project at the path of the overlay. Returns how
    many there are, and what was left out.
    """
    files, failed, count = client.files(target), list[NotSaved](), 0
    rows, end = Changes(client).rows(target)
    for row in in_order(rows):
        inside = f"{overlay}/{row.path}"
        try:
            with SpooledTemporaryFile(IN_MEMORY_BYTES) as content:
                record = _record(files, row, inside, end.project, content)
                write(json.dumps(record._asdict() | _before(record)).encode("ascii") + b"\n")
                content.seek(0)
                while piece := content.read(PIECE_BYTES):
                    write(piece)
        except (FileError, _NotSavedError) as error:
            failed.append(NotSaved(inside, str(error)))
        else:
            count += 1
    return count, failed


class _NotSavedError(Exception):
    """A change is of a kind that is not saved."""


def _before(record: ChangeRecord) -> dict[str, Any]:
    return {"before": None if record.before is None else record.before._asdict()}


def _record(
    files: SessionFiles,
    row: ChangeRow,
    inside: str,
    project: str,
    content: SpooledTemporaryFile[bytes],
) -> ChangeRecord:
    before = None if row.before is None else facts(project, row.path)
    if row.after is None:
        return ChangeRecord(row.path, "deleted", 0, 0, "", before)
    kind, target = row.after.type, ""
    entry = files.stat(inside, follow=False)
    if kind == "file":
        files.read_to(inside, content.write)
    elif kind == "symlink":
        target = entry.target or ""
    elif kind != "directory":
        raise _NotSavedError("neither a file, a directory nor a link")
    modified_us = min(round(max(0.0, entry.modified_at) * 1_000_000), MAX_TIME_US)
    return ChangeRecord(row.path, kind, row.after.mode, content.tell(), target, before, modified_us)


def facts(project: str, path: str) -> FileFacts | None:
    """Look at a file of the project on the host; None if there is none, or a link is on the way."""
    try:
        root = os.open(project, below.DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        status = below.look(root, path)
        if status is None:
            return None
        if stat.S_ISLNK(status.st_mode):
            return FileFacts("symlink", below.read_link(root, path))
        if stat.S_ISDIR(status.st_mode):
            return FileFacts("directory", "")
        if not stat.S_ISREG(status.st_mode):
            return FileFacts("special", "")
        with open(below.open_file(root, path), "rb") as file:
            return FileFacts("file", hashlib.file_digest(file, "sha256").hexdigest())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return FileFacts("special", error.strerror or "")
    finally:
        os.close(root)


def restore(
    client: Client, target: str, overlay: str, project: str, read: Read
) -> list[RestoredRow]:
    """Make the changes of a save in a new session, but for conflicts with the host's project.

    Args:
        overlay: path of the project in the session; `project`: on the host.
        read: reads the part, from anywhere.

    Raises:
        SaveError: it is no such part.
    """
    files, rows = client.files(target), list[RestoredRow]()

    def give(pipe: int) -> None:
        part = io.BufferedReader(_Source(read), PIECE_BYTES)
        with (
            open(pipe, "wb") as sink,
            tarfile.open(
                fileobj=sink, mode="w|", bufsize=PIECE_BYTES, format=tarfile.PAX_FORMAT
            ) as archive,
        ):
            for record in _records(part):
                why = _make_room(files, overlay, project, record)
                rows.append(RestoredRow(record.path, "change", why))
                content = _Content(part, record.size)
                if not why and record.type != "deleted":
                    archive.addfile(_member(record), content)
                while content.read(PIECE_BYTES):
                    pass

    report = client.carry_out(file_steps.unpack_from_pipe(target, overlay, give))
    whys = {each.path: each.why for each in report.skipped}
    return [row._replace(why=whys.get(row.name, row.why)) for row in rows]


def _make_room(files: SessionFiles, overlay: str, project: str, record: ChangeRecord) -> str:
    """Remove in the session what a change replaces; returns why it cannot be made."""
    if facts(project, record.path) != record.before:
        return "the project's file is not what it was when the session was saved"
    if record.before is not None and record.before.type != record.type:
        try:
            files.remove(f"{overlay}/{record.path}", recursive=True)
        except FileError as error:
            if error.data.get("errno") != "ENOENT":  # an attempt before has removed it
                return str(error)
    return ""


_TYPES = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}


def _member(record: ChangeRecord) -> tarfile.TarInfo:
    member = tarfile.TarInfo(record.path)
    member.type, member.mode, member.size = _TYPES[record.type], record.mode & 0o777, record.size
    member.linkname = record.target
    member.mtime = record.modified_us / 1_000_000 or time.time()
    return member


def _records(part: IO[bytes]) -> Iterator[ChangeRecord]:
    """The records of the part; whoever takes one reads its content before the next."""
    while line := part.readline(MAX_LINE_BYTES):
        try:
            record = decode(ChangeRecord, json.loads(line))
        except (ValueError, RecursionError, DecodeError) as error:
            raise _no_part() from error
        if (
            not line.endswith(b"\n")
            or not _is_below(record.path)
            or record.size < 0
            or not 0 <= record.modified_us <= MAX_TIME_US
            or record.type not in ("deleted", *_TYPES)
            or (record.size and record.type != "file")
        ):
            raise _no_part()
        yield record


class _Content(io.RawIOBase):
    """The content of one record, in the part."""

    def __init__(self, part: IO[bytes], size: int) -> None:
        self._part = part
        self._left = size

    def read(self, count: int = -1) -> bytes:
        """Read some of what is left, of which nothing may be missing."""
        wanted = self._left if count < 0 else min(count, self._left)
        data = self._part.read(wanted)
        if len(data) < wanted:
            raise _no_part()
        self._left -= len(data)
        return data


class _Source(io.RawIOBase):
    """The part, as it comes."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes."""
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _is_below(path: str) -> bool:
    names = path.split("/")
    return not {"", ".", ".."} & set(names) and "\0" not in path


def _no_part() -> SaveError:
    return SaveError("the save's list of changes to the project is not one that nsm can read")
