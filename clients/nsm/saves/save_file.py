"""The file of a save: written whole or not at all, and checked while it is read.

The format is in docs/reference/saves.md. A save may come from anywhere. So nothing of it is
believed beyond sizes and hashes, and nothing of it is unpacked outside of a session.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import struct
import zipfile
import zlib
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, NamedTuple

from nsm import below
from nsm.client.local_trees import write_whole
from nsm.saves.part_writer import PIECE_BYTES, Hashing, PartWriter
from nsm.saves.reports import SaveError
from nsm.wire.decode import DecodeError, decode

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
        session, session_id, env, project: of the session; `project` is a path, or None.
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

    Raises:
        SaveError: it becomes larger.
        OSError: it cannot be written.
    """

    def __init__(self, path: str, max_bytes: int, max_unpacked_bytes: int) -> None:
        if not path or os.path.isdir(path):
            raise SaveError(f"{path!r} is no name of a file", hint="A save is one file.")
        self._path = path
        self._max_bytes = max_bytes
        self._max_unpacked_bytes = max_unpacked_bytes
        around, self._name = os.path.split(os.path.abspath(path))
        self._temporary = f".{self._name}.{secrets.token_hex(4)}.part"
        self._directory = _directory_of(path, around)
        try:
            self._file = self._open()
        except BaseException:
            os.close(self._directory)
            raise
        self._zip = zipfile.ZipFile(self._file, "w", compresslevel=1)
        self._parts: dict[str, Part] = {}

    def _open(self) -> IO[bytes]:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            # Without a name: nothing of it is left if this process is killed.
            descriptor = os.open(".", flags | os.O_TMPFILE, 0o600, dir_fd=self._directory)
            self._named = False
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise OSError(error.errno, error.strerror, self._path) from error
            flags |= os.O_CREAT | os.O_EXCL
            descriptor = os.open(self._temporary, flags, 0o600, dir_fd=self._directory)
            self._named = True
        os.fchmod(descriptor, 0o600)
        return open(descriptor, "w+b")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The zip file writes its index when it is closed, which may fail once more.
        with suppress(OSError, ValueError):
            self._zip.close()
        with suppress(OSError):
            self._file.close()
        if self._named:
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
        os.close(self._directory)

    def add(self, name: str, produce: Callable[[Callable[[bytes], object]], object]) -> None:
        """Add a part.

        Args:
            produce: is called with a function that takes the part, piece by piece.
        """
        self._add(name, lambda part: produce(part.write))

    def add_archive(self, name: str, give: Callable[[Callable[[int], object]], object]) -> None:
        """Add a part that comes through a pipe.

        Args:
            give: is called with a function that reads a pipe to its end, and closes it.
        """
        self._add(name, lambda part: give(part.take))

    def _add(self, name: str, fill: Callable[[PartWriter], object]) -> None:
        with Hashing() as hashing:
            part = PartWriter(self._zip, name, self._check, hashing)
            try:
                fill(part)
            finally:
                part.close()
            self._parts[name] = Part(*part.result())

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
        if not self._named:
            unnamed = f"/proc/self/fd/{self._file.fileno()}"
            # With a descriptor of the directory, since only then os.link follows that link.
            os.link(unnamed, self._temporary, dst_dir_fd=self._directory)
            self._named = True
        directory = self._directory
        os.rename(self._temporary, self._name, src_dir_fd=directory, dst_dir_fd=directory)
        self._named = False
        return size


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
    """Write a part of a file to a pipe; there may be less of it.

    Raises:
        BrokenPipeError: nobody reads.
    """
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
    """A save that is open for reading.

    Attributes:
        manifest: what it says of itself.
    """

    def __init__(self, archive: zipfile.ZipFile, manifest: Manifest) -> None:
        self._archive = archive
        self._hashed = list[tuple[str, Hashing]]()
        self.manifest = manifest

    def check_size(self, max_bytes: int) -> None:
        """Check how much the save unpacks to, before anything is unpacked.

        Raises:
            SaveError: that is too much.
        """
        size = sum(part.size for part in self.manifest.parts.values())
        if size > max_bytes:
            raise SaveError(
                f"the save unpacks to {-(-size >> 20)} MiB, and at most {max_bytes >> 20} MiB "
                "are allowed",
                hint="If you know who made it, allow more by --max-mb (`max_mb` in Python).",
            )

    def send_part(self, name: str, pipe: int) -> None:
        """Write a part to a pipe, and close that. It is not checked before `check`.

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
            size = self.manifest.parts[name].size
            hashing = Hashing()
            self._hashed.append((name, hashing))
            hashing.read(descriptor, start, size)
            _move(descriptor, start, size, pipe)

    def check(self) -> None:
        """Check the parts that were sent.

        Raises:
            SaveError: one is not what the manifest says.
        """
        for name, hashing in self._hashed:
            if hashing.hexdigest() != self.manifest.parts[name].sha256:
                raise _changed(name)

    def close(self) -> None:
        """Close what was opened for it, but not the file."""
        for _, hashing in self._hashed:
            hashing.close()

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
        try:
            with Hashing() as hashing, self._archive.open(name) as entry:
                checked = _Checked(entry, part, hashing)
                take(checked.read)
                while checked.read(PIECE_BYTES):
                    pass
                is_right = checked.is_right()
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
            raise _changed(name) from error
        if not is_right:
            raise _changed(name)


class _Checked:
    """A part's content on its way, which is at most as large as it says."""

    def __init__(self, entry: IO[bytes], part: Part, hashing: Hashing) -> None:
        self._entry = entry
        self._part = part
        self._left = part.size
        self._hashing = hashing

    def read(self, count: int) -> bytes:
        data = self._entry.read(min(count, self._left)) if self._left else b""
        self._left -= len(data)
        self._hashing.update(data)
        return data

    def is_right(self) -> bool:
        return not self._left and self._hashing.hexdigest() == self._part.sha256


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
            f"{path} is no save of a session, or was cut short: {error}",
            hint="`nsm save ls` lists your saves.",
        ) from error
    with archive:
        reader = SaveReader(archive, _manifest(archive, path))
        try:
            yield reader
        finally:
            reader.close()


def _manifest(archive: zipfile.ZipFile, path: str) -> Manifest:
    no_save = SaveError(f"{path} is no save of a session", hint="`nsm save ls` lists your saves.")
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
