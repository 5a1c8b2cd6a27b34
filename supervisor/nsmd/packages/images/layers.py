"""The layers of an image, and the directory that they are unpacked in.

Layers are hostile: every name is looked up component by component below one directory, and a
symbolic link on the way leads to where it would lead if that directory were the root. Nothing else
changes the directory meanwhile, so a name that was looked up stays what it was.
"""

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
from contextlib import ExitStack, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import BinaryIO


MAX_LINKS = 40
"""Symbolic links on the way to one file, as in the kernel (path_resolution(7))."""

MAX_SHOWN_CHARS = 200


class ImageError(Exception):
    """An image cannot be used; the message is a sentence without its final dot."""


class Tree:
    """Directory of an image.

    All files belong to whoever unpacks, who may read all of them; so may everybody else, as
    sessions may run as another user. Set-id and sticky bits are left out.

    Args:
        directory: path of an empty directory.

    Attributes:
        archive_bytes: size of the layers up to now, which may have more than files.
    """

    def __init__(self, directory: str, *, max_files: int, max_bytes: int) -> None:
        self.root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.files = self.size = self.archive_bytes = 0
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._known: dict[tuple[str, ...], str] = {}

    def close(self) -> None:
        """Close the directory."""
        os.close(self.root)

    def count(self, size: int = 0, *, files: int = 1) -> None:
        """Count what a layer names, before it is written if it is."""
        self.files += files
        self.size += size
        if self.files > self._max_files:
            raise ImageError(f"its layers name more than {self._max_files} files")
        if self.size > self._max_bytes:
            raise ImageError(f"its files are larger than {self._max_bytes >> 20} MiB")

    def status(self, path: str) -> os.stat_result | None:
        """Status of a file; None if there is none."""
        try:
            return os.stat(path, dir_fd=self.root, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def directory(self, parts: Sequence[str], *, make: bool) -> str:
        """Real path of a directory from the tree's; empty for the tree's own."""
        key = tuple(parts)
        if key not in self._known:
            self._known[key] = self._follow(parts, make=make)
        return self._known[key]

    def _follow(self, parts: Sequence[str], *, make: bool) -> str:
        real: list[str] = []
        left = list(reversed(parts))
        links = 0
        while left:
            name = left.pop()
            if name in {"", "."}:
                continue
            if name == "..":  # in the target of a link; above the root is the root
                del real[-1:]
                continue
            path = "/".join([*real, name])
            found = self.status(path)
            if found is None and make:
                self.count()
                os.mkdir(path, 0o755, dir_fd=self.root)
            elif found is None:
                raise ImageError(f"{shown('/'.join(parts))} is missing")
            elif stat.S_ISLNK(found.st_mode):
                links += 1
                if links > MAX_LINKS:
                    raise ImageError(f"{shown('/'.join(parts))} has too many symbolic links")
                target = os.readlink(path, dir_fd=self.root)
                real = [] if target.startswith("/") else real
                left += reversed(target.split("/"))
                continue
            elif not stat.S_ISDIR(found.st_mode):
                raise ImageError(f"{shown(path)} is not a directory")
            real.append(name)
        return "/".join(real)

    def find(self, path: str) -> os.stat_result | None:
        """Status of what a path of the image leads to, through links; None if there is nothing."""
        for _ in range(MAX_LINKS):
            *folders, name = path.split("/")
            try:
                folder = self._follow(folders, make=False)
                found = self.status(join(folder, name)) if name not in {"", ".", ".."} else None
                if found is None or not stat.S_ISLNK(found.st_mode):
                    return found
                target = os.readlink(join(folder, name), dir_fd=self.root)
            except (ImageError, OSError):
                return None
            path = target if target.startswith("/") else join(folder, target)
        return None

    def make_room(self, path: str, *, directory: bool = False) -> bool:
        """Remove what a new file replaces.

        Args:
            directory: the new one is a directory, which takes over one that is there.

        Returns:
            True if there is such a directory.
        """
        found = self.status(path)
        if found is None:
            return False
        if directory and stat.S_ISDIR(found.st_mode):
            return True
        self.remove(path)
        return False

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        found = self.status(path)
        if found is None:
            return
        if stat.S_ISREG(found.st_mode):
            os.unlink(path, dir_fd=self.root)
            return
        if stat.S_ISLNK(found.st_mode):
            os.unlink(path, dir_fd=self.root)
        else:
            left = [(path, False)]  # not by calls of itself: a tree may be deep
            while left:
                folder, empty = left.pop()
                if empty:
                    os.rmdir(folder, dir_fd=self.root)
                    continue
                left.append((folder, True))
                for name, is_folder in self.entries(folder):
                    if is_folder:
                        left.append((join(folder, name), False))
                    else:
                        os.unlink(join(folder, name), dir_fd=self.root)
        self._known.clear()  # names may have led through it

    def entries(self, path: str) -> list[tuple[str, bool]]:
        """Names in a directory, and whether each is a directory."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path or ".", flags, dir_fd=self.root)
        try:
            with os.scandir(fd) as found:
                return [(each.name, each.is_dir(follow_symlinks=False)) for each in found]
        finally:
            os.close(fd)

    def new_file(self, path: str) -> int:
        """Make an empty file; return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o600, dir_fd=self.root)

    def write(self, path: str, content: bytes) -> None:
        """Write a file in place of whatever was there."""
        self.remove(path)
        self.count(len(content))
        with os.fdopen(self.new_file(path), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)

    def set_time(self, path: str, seconds: float) -> None:
        """Set the time of a change. Compiled modules of Python are valid only with that of their
        source.
        """
        with suppress(OSError, OverflowError, ValueError):  # one that no file can have
            os.utime(path, (seconds, seconds), dir_fd=self.root, follow_symlinks=False)


def join(folder: str, name: str) -> str:
    """Path of a name in a directory of the tree, which may be the tree's own."""
    return f"{folder}/{name}" if folder else name


def shown(name: str) -> str:
    """Format a name that anybody may have chosen, for people."""
    return ascii(name)[:MAX_SHOWN_CHARS]


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
        before: bytes of the layers before.
        block: zeros follow up to a multiple of this; they are in neither hash nor number.
    """

    def __init__(
        self, file: BinaryIO, algorithm: str, max_bytes: int, before: int = 0, block: int = 1
    ) -> None:
        super().__init__()
        self._block = block
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
        if not data:
            zeros = bytes(-self.size % self._block)[: len(buffer)]
            self._block = 1
            buffer[: len(zeros)] = zeros
            return len(zeros)
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
    """Split a digest into its algorithm and its hexadecimal digits."""
    algorithm, _, digits = digest.partition(":")
    lengths = {"sha256": 64, "sha512": 128}
    good = set(digits) <= set("0123456789abcdef")
    if lengths.get(algorithm) != len(digits) or not good:
        raise ImageError(f"{shown(digest)} is not a digest")
    return algorithm, digits


class Layer:
    """One layer.

    Args:
        opened: opens its bytes, compressed or not.
        digest: hash of these bytes; empty if nothing says it.
        diff_id: hash of the uncompressed archive.
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
                tarfile.BLOCKSIZE,  # `umoci insert` leaves the end of the last block out
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
                f"{shown(member.name)} is a hard link to {shown(member.linkname)}, not to a file"
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
    """Split a name of a layer, which is one below the image's root."""
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
