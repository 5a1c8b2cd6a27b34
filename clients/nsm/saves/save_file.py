"""The file of a save: written whole or not at all, and checked while it is read.

The format is in docs/reference/saves.md. A save may come from anywhere. So nothing of it is
believed beyond sizes and hashes, and nothing of it is unpacked outside of a session.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import zipfile
import zlib
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, NamedTuple

from nsm.saves.reports import SaveError
from nsm.wire.decode import DecodeError, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Self

FORMAT = 1
MANIFEST = "manifest.json"
DIRECTORIES = (("workspace.tar", "/workspace"), ("tmp.tar", "/tmp"))  # noqa: S108  # in the session
"""Parts that are directories of the session."""

PARTS = ("state.tar", "workspace.tar", "tmp.tar", "project.changes", "transcript.jsonl")
"""Parts of a save, in the order in which they are written."""

MAX_MANIFEST_BYTES = 64 * 1024
SAMPLE_BYTES = 1024 * 1024
"""Beginning of a part that is compressed for a try: what does not shrink is stored as it is."""

WORTHWHILE = 0.9
"""Share of its size that a compressed sample may have at most."""


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
        path: where it is to be; an older file there is replaced.
        max_bytes: largest size.

    Raises:
        SaveError: it becomes larger.
        OSError: it cannot be written.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        if not path or os.path.isdir(path):
            raise SaveError(f"{path!r} is no name of a file", hint="A save is one file.")
        self._path = path
        self._max_bytes = max_bytes
        self._directory, self._name = os.path.split(os.path.abspath(path))
        self._temporary = f"{self._directory}/.{self._name}.{secrets.token_hex(4)}.part"
        self._file = self._open()
        self._zip = zipfile.ZipFile(self._file, "w", compresslevel=1)
        self._parts: dict[str, Part] = {}

    def _open(self) -> IO[bytes]:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            # Without a name: nothing of it is left if this process is killed.
            descriptor = os.open(self._directory, flags | os.O_TMPFILE, 0o600)
            self._named = False
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
            descriptor = os.open(self._temporary, flags | os.O_CREAT | os.O_EXCL, 0o600)
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
                os.unlink(self._temporary)

    def add(self, name: str, produce: Callable[[Callable[[bytes], object]], object]) -> None:
        """Add a part.

        Args:
            produce: is called with a function that takes the part, piece by piece.
        """
        part = _PartWriter(self._zip, name, self._check)
        try:
            produce(part.write)
        finally:
            part.close()
        self._parts[name] = part.result()

    def _check(self) -> None:
        if self._file.tell() > self._max_bytes:
            raise SaveError(
                f"the save would be larger than {self._max_bytes >> 20} MiB",
                hint="Remove what you do not need from the session, or allow more by --max-mb.",
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
            directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # With a descriptor of the directory, since only then os.link follows that link.
                os.link(unnamed, os.path.basename(self._temporary), dst_dir_fd=directory)
            finally:
                os.close(directory)
            self._named = True
        os.rename(self._temporary, self._path)
        self._named = False
        return size


class _PartWriter:
    """One part on its way into a save."""

    def __init__(self, archive: zipfile.ZipFile, name: str, check: Callable[[], None]) -> None:
        self._archive = archive
        self._name = name
        self._check = check
        self._sample = bytearray()
        self._entry: IO[bytes] | None = None
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._size += len(data)
        if self._entry is None:
            self._sample += data
            if len(self._sample) >= SAMPLE_BYTES:
                self._begin()
            return
        self._entry.write(data)
        self._check()

    def _begin(self) -> IO[bytes]:
        shrinks = len(zlib.compress(self._sample, 1)) < WORTHWHILE * len(self._sample)
        self._archive.compression = zipfile.ZIP_DEFLATED if shrinks else zipfile.ZIP_STORED
        self._entry = self._archive.open(self._name, "w", force_zip64=True)
        self._entry.write(self._sample)
        return self._entry

    def close(self) -> None:
        entry = self._entry or self._begin()
        entry.close()

    def result(self) -> Part:
        return Part(self._size, self._hash.hexdigest())


class SaveReader:
    """A save that is open for reading.

    Attributes:
        manifest: what it says of itself.
    """

    def __init__(self, archive: zipfile.ZipFile, manifest: Manifest) -> None:
        self._archive = archive
        self.manifest = manifest

    def read_part(self, name: str, take: Callable[[Callable[[int], bytes]], object]) -> None:
        """Read a part.

        Args:
            take: is called with a function that reads a number of bytes, none at the end.

        Raises:
            SaveError: it is not what the manifest says. What was read may be anything then.
        """
        part = self.manifest.parts[name]
        try:
            with self._archive.open(name) as entry:
                checked = _Checked(entry, part)
                take(checked.read)
                while checked.read(SAMPLE_BYTES):
                    pass
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
            raise _changed(name) from error
        if not checked.is_right():
            raise _changed(name)


class _Checked:
    """A part's content on its way, which is at most as large as it says."""

    def __init__(self, entry: IO[bytes], part: Part) -> None:
        self._entry = entry
        self._part = part
        self._left = part.size
        self._hash = hashlib.sha256()

    def read(self, count: int) -> bytes:
        data = self._entry.read(min(count, self._left)) if self._left else b""
        self._left -= len(data)
        self._hash.update(data)
        return data

    def is_right(self) -> bool:
        return not self._left and self._hash.hexdigest() == self._part.sha256


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
        yield SaveReader(archive, _manifest(archive, path))


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
    except (DecodeError, RecursionError, NotImplementedError) as error:
        raise no_save from error
    if set(manifest.parts) != set(PARTS) or {*PARTS, MANIFEST} != set(archive.namelist()):
        raise no_save
    return manifest
