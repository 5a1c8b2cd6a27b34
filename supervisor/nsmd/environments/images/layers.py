"""One layer of an image: its bytes, checked, as files of the tree."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import subprocess
import tarfile
import tempfile
import zlib
from contextlib import ExitStack

from nsmd.environments.images.tree import ImageError, Tree, join, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
"""Names of files that say what of the layers below is gone (OCI image specification, Layers)."""

PIECE_BYTES = 1024 * 1024

_ZEROS = bytes(PIECE_BYTES)

_STREAM_BYTES = 32 * 1024
"""Size of the reads of `tarfile`, which copies the rest of one for each header of 512 bytes."""

ZSTD = "/usr/bin/zstd"
"""Program for layers that Python cannot read before 3.14."""

_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"

MAX_PARTS = 200
"""Directories on the way to one file. The kernel's bound is 4096 bytes."""


class HashedFile(io.RawIOBase):
    """A file, with the hash and the number of the bytes that were read.

    Args:
        max_bytes: largest number of them, with those of the layers before.
        before: bytes of the layers before.
    """

    def __init__(self, file: BinaryIO, algorithm: str, max_bytes: int, before: int = 0) -> None:
        super().__init__()
        self._file = file
        self._hash = hashlib.new(algorithm)
        self._max_bytes = max_bytes
        self._before = before
        self.size = 0

    @property
    def hexdigest(self) -> str:
        """Hash of what was read."""
        return self._hash.hexdigest()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._file.read(len(buffer))
        self._hash.update(data)
        self.size += len(data)
        if self._before + self.size > self._max_bytes:
            raise ImageError(f"its layers are larger than {self._max_bytes >> 20} MiB")
        buffer[: len(data)] = data
        return len(data)

    def read_rest(self) -> None:
        """Read the rest."""
        while self.read(PIECE_BYTES):
            pass


def split_digest(digest: str) -> tuple[str, str]:
    """Split a digest into its algorithm and its hexadecimal digits.

    Raises:
        ImageError: it is not one that nsm checks.
    """
    algorithm, _, digits = digest.partition(":")
    lengths = {"sha256": 64, "sha512": 128}
    good = set(digits) <= set("0123456789abcdef")
    if lengths.get(algorithm) != len(digits) or not good:
        raise ImageError(f"{shown(digest)} is no digest")
    return algorithm, digits


class Layer:
    """One layer.

    Args:
        opened: opens its bytes, compressed or not.
        digest: hash of these bytes; empty if nothing says it.
        size: their number; -1 if nothing says it.
        diff_id: hash of the uncompressed archive.
        max_bytes: largest size of that archive and those of the layers below.

    Attributes:
        left_out: number of devices and pipes in it.
    """

    def __init__(
        self,
        opened: Callable[[], BinaryIO],
        *,
        digest: str,
        size: int,
        diff_id: str,
        max_bytes: int,
    ) -> None:
        self._opened = opened
        self._digest = digest
        self._size = size
        self.diff_id = diff_id
        self._max_bytes = max_bytes
        self._made: set[str] = set()
        self.left_out = 0

    def apply(self, tree: Tree) -> None:
        """Apply it to the layers below.

        Raises:
            ImageError: it is broken, too large, or not what its manifest says.
            OSError: there is no room.
        """
        algorithm = split_digest(self._digest or self.diff_id)[0]
        with ExitStack() as owned:
            file = owned.enter_context(self._opened())
            outer = HashedFile(file, algorithm, self._max_bytes)
            plain = HashedFile(
                _decompressed(outer, owned),
                split_digest(self.diff_id)[0],
                self._max_bytes,
                tree.archive_bytes,
            )
            try:
                # Buffered: each block of an archive would be a call otherwise.
                buffered = io.BufferedReader(plain, PIECE_BYTES)
                with tarfile.open(fileobj=buffered, mode="r|", bufsize=_STREAM_BYTES) as archive:
                    for member in archive:
                        self._add(tree, archive, member)
                        # It would keep all of them in memory.
                        archive.members = []  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
                while buffered.read(PIECE_BYTES):
                    pass
                outer.read_rest()
                tree.archive_bytes += plain.size
            except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ImageError(f"a layer is broken: {str(error)[:200]}") from error
            except MemoryError as error:
                raise ImageError(
                    "a layer takes too much memory: its names or headers are too large"
                ) from error
            except (ValueError, LookupError, OverflowError, RecursionError) as error:
                # tarfile has more errors than its own for headers that nobody would write.
                raise ImageError(f"a layer is broken ({type(error).__name__})") from error
        for what, said in ((outer, self._digest), (plain, self.diff_id)):
            if said and what.hexdigest != split_digest(said)[1]:
                raise ImageError(f"a layer is not what its manifest says ({said[:26]})")
        if self._size not in {-1, outer.size}:
            raise ImageError(f"a layer has {outer.size} bytes, and its manifest says {self._size}")

    def _add(self, tree: Tree, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        tree.count()  # also what hides files, is left out, or is there: a few bytes stand for many
        parts = parts_of(member.name)
        if not parts:
            return
        folder = tree.directory(parts[:-1], make=True)
        self._note(folder)
        name = parts[-1]
        if name == OPAQUE:
            self._clear(tree, folder)
            return
        if name.startswith(WHITEOUT):
            hidden = name[len(WHITEOUT) :]
            if hidden in {"", ".", ".."}:
                raise ImageError(f"{shown(member.name)} hides nothing: it names no file to hide")
            self._hide(tree, join(folder, hidden))
            return
        path = join(folder, name)
        if member.isdir():
            if not tree.make_room(path, directory=True):
                os.mkdir(path, 0o755, dir_fd=tree.root)
        elif member.isreg():
            tree.make_room(path)
            self._write(tree, archive, member, path)
        elif member.issym():
            tree.make_room(path)
            os.symlink(member.linkname, path, dir_fd=tree.root)
        elif member.islnk():
            self._link(tree, member, path)
        else:
            self.left_out += 1  # a device or a pipe
            return
        self._made.add(path)
        if not member.isdir() and not member.islnk():
            tree.set_time(path, member.mtime)

    def _note(self, folder: str) -> None:
        """Note that this layer has a directory, and those above it."""
        while folder and folder not in self._made:
            self._made.add(folder)
            folder = folder.rpartition("/")[0]

    def _write(
        self, tree: Tree, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str
    ) -> None:
        tree.count(member.size, files=0)
        content = archive.extractfile(member)
        assert content is not None
        written = 0
        with os.fdopen(tree.new_file(path), "wb") as file:
            while piece := content.read(PIECE_BYTES):
                if piece == _ZEROS:  # they take no room on the disk
                    file.seek(len(piece), os.SEEK_CUR)
                else:
                    file.write(piece)
                written += len(piece)
            file.truncate(written)
            # Everybody may run what its owner may, for the same reason as reading.
            os.fchmod(file.fileno(), 0o755 if member.mode & 0o111 else 0o644)
        if written != member.size:
            raise ImageError(f"a layer ends within {shown(member.name)}")

    def _link(self, tree: Tree, member: tarfile.TarInfo, path: str) -> None:
        target = parts_of(member.linkname)
        if not target:
            raise ImageError(f"{shown(member.name)} is a hard link to the root")
        there = join(tree.directory(target[:-1], make=False), target[-1])
        found = tree.status(there)
        if found is None or stat.S_ISDIR(found.st_mode):
            raise ImageError(
                f"{shown(member.name)} is a hard link to {shown(member.linkname)}, which is no file"
            )
        if there == path:
            return
        tree.make_room(path)
        flags = {"src_dir_fd": tree.root, "dst_dir_fd": tree.root}
        os.link(there, path, follow_symlinks=False, **flags)

    def _hide(self, tree: Tree, path: str) -> None:
        """Remove what layers below have at a path; this layer's own files stay."""
        if path not in self._made:
            tree.remove(path)
            return
        found = tree.status(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            self._clear(tree, path)

    def _clear(self, tree: Tree, folder: str) -> None:
        """Remove what layers below have in a directory; this layer's own files stay."""
        left = [folder]
        while left:
            folder = left.pop()
            for name, is_folder in tree.entries(folder):
                path = join(folder, name)
                if path not in self._made:
                    tree.remove(path)
                elif is_folder:
                    left.append(path)


def parts_of(name: str) -> list[str]:
    """Split a name of a layer, which is one below the image's root.

    Raises:
        ImageError: it leads out of it.
    """
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts or "\0" in name:
        raise ImageError(f"{shown(name)} leads out of the image")
    if len(parts) > MAX_PARTS:
        raise ImageError(f"{shown(name)} is more than {MAX_PARTS} directories deep")
    return parts


def _decompressed(outer: HashedFile, owned: ExitStack) -> BinaryIO:
    buffered = io.BufferedReader(outer, PIECE_BYTES)
    magic = buffered.peek(4)[:4]
    if magic.startswith(_GZIP_MAGIC):
        return gzip.GzipFile(fileobj=buffered)  # type: ignore[return-value]
    if magic == _ZSTD_MAGIC:
        return _from_zstd(buffered, owned)
    return buffered


def _from_zstd(compressed: BinaryIO, owned: ExitStack) -> BinaryIO:
    """Decompress with the host's program.

    It reads from a file, as a thread would be needed to feed it through a pipe.
    """
    if not os.path.exists(ZSTD):
        raise ImageError("a layer is compressed with zstd, and this host has no /usr/bin/zstd")
    copy = owned.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # it is
    while piece := compressed.read(PIECE_BYTES):
        copy.write(piece)
    copy.seek(0)
    command = [ZSTD, "-q", "-d", "--stdout", "--memory=512MB"]
    process = subprocess.Popen(command, stdin=copy, stdout=subprocess.PIPE, cwd="/")
    owned.callback(process.wait)
    owned.callback(process.kill)
    assert process.stdout is not None
    owned.callback(process.stdout.close)
    return process.stdout  # type: ignore[return-value]
