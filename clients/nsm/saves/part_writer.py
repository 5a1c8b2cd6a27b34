"""One part on its way into the file of a save, and its hash."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections import deque
from itertools import cycle
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Self

BEGINNING_BYTES = 1024 * 1024
"""Beginning of a part, of which samples are compressed for a try."""

SAMPLES, SAMPLE_BYTES = 4, 16 * 1024
"""Number and size of samples. To compress the whole beginning takes as long as writing 40 MB."""

PIECES, PIECE_BYTES = 4, 512 * 1024
"""Number and size of buffers, which are used again and again: new memory for each piece takes as
long as copying it."""

WORTHWHILE = 0.5
"""An entry is compressed if its samples shrink to this share of their size: compressing takes ten
times as long as writing. Numbers of a measurement or a model hardly shrink, text does."""


class Hashing:
    """SHA-256, computed in a thread while the caller goes on."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # lists do without

        self._hash = hashlib.sha256()
        self._pool = ThreadPoolExecutor(1, "hash")
        self._waiting: deque[Future[None]] = deque()
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread, whatever it has still to do."""
        self._is_closed = True
        self._pool.shutdown(cancel_futures=True)

    def update(self, data: bytes | memoryview) -> None:
        """Add data, of which nothing may change until `PIECES - 1` more have been added."""
        self._wait(PIECES - 2)
        self._waiting.append(self._pool.submit(self._hash.update, data))

    def read(self, descriptor: int, start: int, size: int) -> None:
        """Add a part of a file; there may be less of it."""
        self._waiting.append(self._pool.submit(self._read, descriptor, start, start + size))

    def _read(self, descriptor: int, place: int, end: int) -> None:
        buffer = memoryview(bytearray(min(PIECE_BYTES, end - place)))
        while not self._is_closed and place < end:
            count = os.preadv(descriptor, [buffer[: end - place]], place)
            if not count:
                return
            self._hash.update(buffer[:count])
            place += count

    def _wait(self, most: int) -> None:
        """Wait until only so many are left."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def hexdigest(self) -> str:
        """Digest of all that was added.

        Raises:
            OSError: the file cannot be read.
        """
        self._wait(0)
        return self._hash.hexdigest()


class PartWriter:
    """One part on its way into a save.

    Args:
        archive: the save.
        check: called after each piece, with the size of the part so far; what it raises ends the
            part.
    """

    def __init__(
        self, archive: zipfile.ZipFile, name: str, check: Callable[[int], None], hashing: Hashing
    ) -> None:
        self._archive = archive
        self._name = name
        self._check = check
        self._beginning = bytearray()
        self._entry: IO[bytes] | None = None
        self._hashing = hashing
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Add a piece."""
        self._hashing.update(data)
        self._size += len(data)
        if self._entry is None:
            self._beginning += data
            if len(self._beginning) >= BEGINNING_BYTES:
                self._begin()
            return
        self._entry.write(data)
        self._check(self._size)

    def take(self, pipe: int) -> None:
        """Add all that comes through a pipe, and close that."""
        buffers = [memoryview(bytearray(PIECE_BYTES)) for _ in range(PIECES)]
        with open(pipe, "rb", buffering=0) as reader:
            for buffer in cycle(buffers):
                if not (count := reader.readinto(buffer)):
                    return
                self.write(buffer[:count])

    def _begin(self) -> IO[bytes]:
        shrinks = _shrinks(self._beginning)
        self._archive.compression = zipfile.ZIP_DEFLATED if shrinks else zipfile.ZIP_STORED
        self._entry = self._archive.open(self._name, "w", force_zip64=True)
        self._entry.write(self._beginning)
        return self._entry

    def close(self) -> None:
        """End the entry of the save."""
        entry = self._entry or self._begin()
        entry.close()

    def result(self) -> tuple[int, str]:
        """Size and SHA-256 of what was written."""
        return self._size, self._hashing.hexdigest()


def _shrinks(data: bytearray) -> bool:
    """Return whether it is worthwhile to compress data, of which samples are tried."""
    step = max(SAMPLE_BYTES, len(data) // SAMPLES)
    sample = b"".join(data[at : at + SAMPLE_BYTES] for at in range(0, len(data), step))
    return len(zlib.compress(sample, 1)) < WORTHWHILE * len(sample)
