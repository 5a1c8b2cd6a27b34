"""The file of a save: written whole or not at all, and checked while it is read.

The format is in docs/reference/formats.md. A save may come from anywhere. So nothing of it is
believed beyond sizes and hashes, and nothing of it is unpacked outside of a session.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
import zipfile
import zlib
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, TYPE_CHECKING

from nsm import below
from nsm.client.local_trees import write_whole
from nsm.saves.reports import SaveError
from nsm.wire.decode import DecodeError, decode
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from io import RawIOBase
    from typing import Self

FORMAT = 1
MANIFEST = "manifest.json"
DIRECTORIES = (("workspace.tar", "/workspace"), ("tmp.tar", "/tmp"))  # noqa: S108  # in the session
"""Parts that are directories of the session."""

PARTS = ("state.tar", "workspace.tar", "tmp.tar", "project.changes", "transcript.jsonl")
"""Parts of a save, in the order in which they are written."""

MAX_MANIFEST_BYTES = 64 * 1024
ENCRYPTED = 1
"""Flag of an entry of a ZIP file."""

BEGINNING_BYTES = 1024 * 1024
"""Beginning of a part, of which samples are compressed for a try."""

SAMPLES, SAMPLE_BYTES = 4, 16 * 1024
"""Number and size of samples. To compress the whole beginning takes as long as writing 40 MB."""

PIECE_BYTES = 512 * 1024

WORTHWHILE = 0.5
"""An entry is compressed if its samples shrink to this share of their size: compressing takes ten
times as long as writing. Numbers of a measurement or a model hardly shrink, text does."""

_LOCAL_HEADER = struct.Struct("<26x2H")
"""Lengths of the name and of what follows it, in front of an entry of a ZIP file."""


class Part(NamedTuple):
    """Size and SHA-256 of a part's content."""

    size: int
    sha256: str


class Manifest(NamedTuple):
    """Facts about a save. Only `parts` matters for what is done with it.

    Attributes:
        made_at: Unix time, seconds.
        nsm: version of nsm that made it.
        automatic: the supervisor had it made, and may remove it.
        interpreter_version: such as ``3.11.7``; empty where it is not known.
    """

    made_at: float
    nsm: str
    session: str
    env: str
    interpreter: str
    project: str | None
    parts: dict[str, Part]
    session_id: str = ""
    interpreter_version: str = ""
    automatic: bool = False
    format: int = FORMAT

    def to_json(self) -> bytes:
        """The manifest as it is in the file."""
        parts = {name: part._asdict() for name, part in self.parts.items()}
        return json.dumps({**self._asdict(), "parts": parts}, indent=1).encode("ascii")


class _MadeBy(NamedTuple):
    """The part of a manifest that every format has."""

    format: int
    nsm: str


class SaveWriter:
    """A save that is being written. It has its name when `finish` returns, and not before.

    Args:
        path: where it is to be; an older file there is replaced. No link below the working
            directory is followed on the way: code in a session may have put it there.
        max_bytes: largest size.
        max_unpacked_bytes: largest size of all parts together before compression.
    """

    def __init__(self, path: str, max_bytes: int, max_unpacked_bytes: int) -> None:
        if not path or os.path.isdir(path):
            raise SaveError(f"{path!r} is not a name for a file", hint="A save is one file.")
        self._path = path
        self._max_bytes = max_bytes
        self._max_unpacked_bytes = max_unpacked_bytes
        around, name = os.path.split(os.path.abspath(path))
        try:
            self._new = below.NewFile(_directory_of(path, around), name)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error
        self._file = open(self._new.descriptor, "wb", closefd=False)  # noqa: SIM115  # until the end
        self._zip = zipfile.ZipFile(self._file, "w", compresslevel=1)
        self._parts: dict[str, Part] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The zip file writes its index when it is closed, which may fail once more.
        with suppress(OSError, ValueError):
            self._zip.close()
        with suppress(OSError):
            self._file.close()
        self._new.close()

    @contextmanager
    def part(self, name: str) -> Generator[PartWriter]:
        """Add a part, which is written to inside."""
        part = PartWriter(self._zip, name, self._check)
        try:
            yield part
        finally:
            part.close()
        self._parts[name] = part.written()

    def _check(self, part_bytes: int = 0) -> None:
        hint = "Remove what you do not need from the session, or allow more by --max-mb."
        if self._file.tell() > self._max_bytes:
            raise SaveError(f"the save would be larger than {self._max_bytes >> 20} MiB", hint=hint)
        # A file of zeros, or with gaps, has a small save, and is as long to read as it says.
        if part_bytes + sum(part.size for part in self._parts.values()) > self._max_unpacked_bytes:
            raise SaveError(
                f"what would be saved is larger than {self._max_unpacked_bytes >> 20} MiB",
                hint=hint,
            )

    def finish(self, manifest: Manifest) -> int:
        """Give the file its name; returns its size."""
        self._zip.writestr(MANIFEST, manifest._replace(parts=self._parts).to_json())
        self._zip.close()
        self._check()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._new.keep()
        return size


class PartWriter:
    """One part on its way into a save.

    After each piece, `check` is called with the size of the part so far; what it raises ends the
    part.
    """

    def __init__(self, archive: zipfile.ZipFile, name: str, check: Callable[[int], None]) -> None:
        self._archive = archive
        self._name = name
        self._check = check
        self._beginning = bytearray()
        self._entry: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Add a piece."""
        self._digest.update(data)
        self._size += len(data)
        if self._entry is None:
            self._beginning += data
            if len(self._beginning) >= BEGINNING_BYTES:
                self._begin()
            return
        self._entry.write(data)
        self._check(self._size)

    def write_from(self, pipe: int) -> None:
        """Add all that comes through a pipe, and close that."""
        buffer = memoryview(bytearray(PIECE_BYTES))
        with open(pipe, "rb", buffering=0) as reader:
            while count := reader.readinto(buffer):
                self.write(buffer[:count])

    def _begin(self) -> IO[bytes]:
        shrinks = _shrinks(self._beginning)
        self._archive.compression = zipfile.ZIP_DEFLATED if shrinks else zipfile.ZIP_STORED
        self._entry = self._archive.open(self._name, "w", force_zip64=True)
        self._entry.write(self._beginning)
        return self._entry

    def close(self) -> None:
        """End the entry of the save."""
        (self._entry or self._begin()).close()

    def written(self) -> Part:
        """The part that was written."""
        return Part(self._size, self._digest.hexdigest())


def _shrinks(data: bytearray) -> bool:
    """Tell whether it is worthwhile to compress data, of which samples are tried."""
    step = max(SAMPLE_BYTES, len(data) // SAMPLES)
    sample = b"".join(data[at : at + SAMPLE_BYTES] for at in range(0, len(data), step))
    return len(zlib.compress(sample, 1)) < WORTHWHILE * len(sample)


def _directory_of(path: str, around: str) -> int:
    try:
        with below.opened_around(path) as (root, name):
            flags = os.O_PATH | os.O_DIRECTORY
            return below.open_below(root, os.path.dirname(name), flags, mounts=True)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SaveError(
                f"{around} lies behind a symbolic link, and nothing was written through it",
                hint="Name the directory that the link leads to.",
            ) from error
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise SaveError(
                f"there is no directory {around}", hint="Make it, or name another file."
            ) from error
        raise


def _move(descriptor: int, place: int, size: int, pipe: int) -> None:
    """Write a part of a file to a pipe; there may be less of it."""
    end = place + size
    while place < end:
        count = min(end - place, PIECE_BYTES)
        try:
            moved = os.splice(descriptor, pipe, count, offset_src=place)
        except OSError as error:
            if error.errno != errno.EINVAL:  # its file system cannot do that
                raise
            moved = os.write(pipe, os.pread(descriptor, count, place))
        if not moved:
            return
        place += moved


class SaveReader:
    """A save that is open for reading, with what it says of itself."""

    def __init__(self, archive: zipfile.ZipFile, manifest: Manifest) -> None:
        self._archive = archive
        self.manifest = manifest

    def check_size(self, max_bytes: int) -> None:
        """Check how much the save unpacks to, before anything is unpacked."""
        size = sum(part.size for part in self.manifest.parts.values())
        if size > max_bytes:
            raise SaveError(
                f"the save unpacks to {-(-size >> 20)} MiB, and at most {max_bytes >> 20} MiB "
                "are allowed",
                hint="If you know who made it, allow more by --max-mb (`max_mb` in Python).",
            )

    def send_part(self, name: str, pipe: int) -> None:
        """Write a part to a pipe, and close that. One that is not compressed is checked before.

        Raises:
            SaveError: it is not what the manifest says.
            BrokenPipeError: nobody reads.
        """
        with open(pipe, "wb", buffering=0) as sink:
            place = self._place_of(name)
            if place is None:
                self.read_part(name, partial(_copy, sink))
                return
            descriptor, start = place
            part = self.manifest.parts[name]
            if _digest(descriptor, start, part.size) != part.sha256:
                raise _changed(name)
            _move(descriptor, start, part.size, pipe)

    def _place_of(self, name: str) -> tuple[int, int] | None:
        """Descriptor and offset of a part's bytes; None if they are compressed."""
        info = self._archive.getinfo(name)
        file = self._archive.fp
        if info.compress_type != zipfile.ZIP_STORED or file is None:
            return None
        descriptor = file.fileno()
        header = os.pread(descriptor, _LOCAL_HEADER.size, info.header_offset)
        if len(header) < _LOCAL_HEADER.size:
            raise _changed(name)
        lengths: tuple[int, int] = _LOCAL_HEADER.unpack(header)
        return descriptor, info.header_offset + _LOCAL_HEADER.size + sum(lengths)

    def read_part(self, name: str, take: Callable[[Callable[[int], bytes]], object]) -> None:
        """Read a part.

        Args:
            take: is called with a function that reads a number of bytes, none at the end.

        Raises:
            SaveError: it is not what the manifest says. What was read may be anything then.
        """
        part = self.manifest.parts[name]
        digest, left = hashlib.sha256(), part.size

        def read(count: int) -> bytes:
            nonlocal left
            data = entry.read(min(count, left)) if left else b""
            left -= len(data)
            digest.update(data)
            return data

        try:
            with self._archive.open(name) as entry:
                take(read)
                while read(PIECE_BYTES):
                    pass
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
            raise _changed(name) from error
        if left or digest.hexdigest() != part.sha256:
            raise _changed(name)


def _digest(descriptor: int, place: int, size: int) -> str:
    """SHA-256 of a part of a file; there may be less of it."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(PIECE_BYTES, size)))
    while size and (count := os.preadv(descriptor, [buffer[:size]], place)):
        digest.update(buffer[:count])
        place, size = place + count, size - count
    return digest.hexdigest()


def _copy(sink: RawIOBase, read: Callable[[int], bytes]) -> None:
    while data := read(PIECE_BYTES):
        write_whole(sink, data)


def _changed(name: str) -> SaveError:
    return SaveError(
        f"{name} in the save is not what was written: bytes were changed or are missing",
        hint="Copy the file again from where it was made.",
    )


@contextmanager
def opened(path: str) -> Generator[SaveReader]:
    """Open a save.

    Raises:
        SaveError: it is none, or was cut short, or needs a newer nsm.
        OSError: it cannot be read.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise SaveError(
            f"{path} is not a saved session, or was cut short: {error}",
            hint="`nsm save ls` lists your saves.",
        ) from error
    with archive:
        yield SaveReader(archive, _manifest(archive, path))


def _manifest(archive: zipfile.ZipFile, path: str) -> Manifest:
    no_save = SaveError(f"{path} is not a saved session", hint="`nsm save ls` lists your saves.")
    try:
        if archive.getinfo(MANIFEST).file_size > MAX_MANIFEST_BYTES:
            raise no_save
        with archive.open(MANIFEST) as entry:
            found = json.loads(entry.read(MAX_MANIFEST_BYTES))
        made_by = decode(_MadeBy, found)
        if made_by.format > FORMAT:
            raise SaveError(
                f"{path} was made by nsm {made_by.nsm}, which is newer than this one",
                hint="Upgrade nsm.",
            )
        manifest = decode(Manifest, found)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, KeyError) as error:
        raise no_save from error
    except (DecodeError, RuntimeError) as error:  # too deep, encrypted, or packed in another way
        raise no_save from error
    if any(info.flag_bits & ENCRYPTED for info in archive.infolist()):
        raise no_save
    if set(manifest.parts) != set(PARTS) or {*PARTS, MANIFEST} != set(archive.namelist()):
        raise no_save
    for name, part in manifest.parts.items():
        if archive.getinfo(name).file_size != part.size:
            raise _changed(name)
    return manifest
