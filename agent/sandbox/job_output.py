"""Output of jobs: the last of it in memory, what came before in one file of bounded size."""

from __future__ import annotations

import contextlib
import os
import sys
from array import array

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


LOG_BLOCK_BYTES = 64 * 1024
"""Output of a job that is in memory; as much as a pipe holds."""

LOG_BLOCK_RUNS = 1023
"""Times that the stream may change in one block."""

SMALL_BYTES = 4096
"""Output of an ended job that may stay in memory, also if the file has no room for it."""

SLOT_BYTES = LOG_BLOCK_BYTES + 4 * (LOG_BLOCK_RUNS + 1)
"""Room of one block in the file."""

STORE_BYTES = 64 * 1024 * 1024
"""Most bytes of the file, for all jobs of the session together; half of its file system if that is
less."""

FEWEST_SLOTS = 4

STREAMS = ("stdout", "stderr")

_LENGTH_BITS = 24


class OutputStore:
    """One unnamed file in which the jobs of a session keep what memory has no room for. It is made
    in a directory when it is first needed.

    When it is full, the job that has most in it loses its oldest block. No code can reach the file.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._fd = -1
        self._most = 0
        self._made = 0
        self._free: list[int] = []
        self._logs: list[JobLog] = []

    def open_log(self, now: Callable[[], float]) -> JobLog:
        """Make the log of another job."""
        log = JobLog(self, now)
        self._logs.append(log)
        return log

    def forget(self, log: JobLog) -> None:
        """Drop all that a job has printed."""
        while log.blocks:
            self._free.append(log.blocks.pop(0)[2])
        self._logs.remove(log)
        if self._made and len(self._free) == self._made:
            self._free.clear()
            self._made = 0
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)

    def has_room(self) -> bool:
        """Return whether a block can be kept without losing what a reader still wants."""
        self._open()
        if self._free or self._made < self._most:
            return True
        return self._victim() is not None

    def put(self, block: bytes, *, wanted: bool) -> int | None:
        """Keep a block; returns its slot, None if it has to be lost.

        If a reader wants it, and all the rest, too, the file becomes larger: by the little that a
        job had in its pipes when it ended.
        """
        self._open()
        if self._free:
            slot = self._free.pop()
        elif self._made < self._most:
            slot = self._made
            self._made += 1
        elif (found := self._take_oldest()) is not None:
            slot = found
        elif wanted:
            slot = self._made
            self._made += 1
        else:
            return None
        if self._write(slot, block):
            return slot
        # The file system is full: a slot that has been written to has its room already.
        self._most = min(self._most, max(FEWEST_SLOTS, self._made - len(self._free) - 1))
        other = self._take_oldest()
        self._free.append(slot)
        if other is None:
            return None
        if self._write(other, block):
            return other
        self._free.append(other)
        return None

    def get(self, slot: int, size: int) -> bytes:
        """Read a block again; empty if it cannot be read."""
        with contextlib.suppress(OSError):
            return os.pread(self._fd, size, slot * SLOT_BYTES)
        return b""

    def _write(self, slot: int, block: bytes) -> bool:
        try:
            return os.pwrite(self._fd, block, slot * SLOT_BYTES) == len(block)
        except OSError:
            return False

    def _open(self) -> None:
        if self._most:
            return
        self._most = FEWEST_SLOTS
        with contextlib.suppress(OSError):
            self._fd = os.open(self._directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
            system = os.fstatvfs(self._fd)
            room = min(STORE_BYTES, system.f_blocks * system.f_frsize // 2)
            self._most = max(FEWEST_SLOTS, room // SLOT_BYTES)

    def _victim(self) -> JobLog | None:
        """The log that loses its oldest block next."""
        return max(
            (log for log in self._logs if log.may_lose_oldest()),
            key=lambda log: len(log.blocks),
            default=None,
        )

    def _take_oldest(self) -> int | None:
        victim = self._victim()
        return None if victim is None else victim.blocks.pop(0)[2]


class JobLog:
    """All that a job has printed, in the order in which the agent read it.

    An offset counts the bytes of both streams together. Old output may be lost; offsets stay.

    Attributes:
        size: offset of what comes next.
        blocks: beginning, end, slot and size in the file of each block that is there, oldest first.
    """

    def __init__(self, store: OutputStore, now: Callable[[], float]) -> None:
        self.size = 0
        self.blocks: list[tuple[int, int, int, int]] = []
        self._store = store
        self._now = now
        self._begin = 0
        self._data = bytearray()
        self._runs = array("I")
        self._held_from = 0
        self._held_until = 0.0

    def room(self, count: int) -> int:
        """Bytes, at most `count`, that can be added now without making a reader lose some."""
        if not self._is_held or self._store.has_room():
            return count
        if len(self._runs) >= LOG_BLOCK_RUNS:
            return 0
        return min(count, LOG_BLOCK_BYTES - len(self._data))

    @property
    def _block_is_full(self) -> bool:
        return len(self._data) >= LOG_BLOCK_BYTES or len(self._runs) >= LOG_BLOCK_RUNS

    @property
    def _is_held(self) -> bool:
        return self._now() < self._held_until

    def hold(self, offset: int, until: float) -> None:
        """Lose nothing from that offset on until then: somebody is reading."""
        self._held_from, self._held_until = offset, until

    @property
    def held_until(self) -> float:
        return self._held_until

    def may_lose_oldest(self) -> bool:
        if not self.blocks:
            return False
        return self.blocks[0][1] <= self._held_from or not self._is_held

    def write(self, stream: int, data: bytes) -> None:
        """Add what was read of a stream, which is an index of `STREAMS`."""
        view = memoryview(data)
        while view:
            if self._block_is_full:
                self._close_block()
            piece = view[: LOG_BLOCK_BYTES - len(self._data)]
            self._data += piece
            self.size += len(piece)
            runs = self._runs
            if runs and runs[-1] >> _LENGTH_BITS == stream:
                runs[-1] += len(piece)
            else:
                runs.append(stream << _LENGTH_BITS | len(piece))
            view = view[len(piece) :]

    def compact(self) -> None:
        """Give up memory: little more will come."""
        data, runs = self._data, self._runs
        if len(data) > SMALL_BYTES and not self._close_block():
            # The file system is full. The end of the output tells more than nothing.
            pieces: list[tuple[str, int]] = []
            self._data += _cut(runs, data, len(data) - SMALL_BYTES, SMALL_BYTES, pieces)
            self._runs.extend(
                STREAMS.index(stream) << _LENGTH_BITS | length for stream, length in pieces
            )
            self._begin = self.size - SMALL_BYTES

    def _close_block(self) -> bool:
        """Move what is in memory to the file; return whether that had room."""
        block = len(self._runs).to_bytes(4, sys.byteorder) + self._runs.tobytes() + self._data
        slot = self._store.put(block, wanted=self._is_held)
        if slot is not None:
            self.blocks.append((self._begin, self.size, slot, len(block)))
        self._begin = self.size
        self._data = bytearray()
        self._runs = array("I")
        return slot is not None

    def read(self, offset: int, count: int) -> tuple[int, list[tuple[str, int]], bytes]:
        """Read from an offset on.

        Return the offset at which the bytes begin, later than asked for where output is lost; the
        streams of the bytes, with their lengths; and the bytes.
        """
        place = begin = min(offset, self.size)
        pieces: list[tuple[str, int]] = []
        data = bytearray()
        for start, runs, block in self._blocks_from(place):
            if start > place:
                if data:
                    break  # some is lost here: the next read says so
                place = begin = start
            taken = _cut(runs, block, place - start, count - len(data), pieces)
            data += taken
            place += len(taken)
            if len(data) >= count:
                break
        return begin, pieces, bytes(data)

    def _blocks_from(
        self, offset: int
    ) -> Iterator[tuple[int, array[int], bytes | bytearray | memoryview]]:
        """Offsets, runs and bytes of the blocks that end behind an offset, and of the newest."""
        for start, end, slot, size in self.blocks:
            if end <= offset:
                continue
            block = self._store.get(slot, size)
            if len(block) != size:
                continue
            number = int.from_bytes(block[:4], sys.byteorder)
            runs = array("I")
            runs.frombytes(block[4 : 4 + 4 * number])
            yield start, runs, memoryview(block)[4 + 4 * number :]
        yield self._begin, self._runs, self._data


def _cut(
    runs: array[int],
    block: bytes | bytearray | memoryview,
    skip: int,
    count: int,
    pieces: list[tuple[str, int]],
) -> bytes:
    """Cut at most `count` bytes out of a block, after the first `skip`, and add their streams and
    lengths to `pieces`."""
    place = 0
    last = min(len(block), skip + count)
    for run in runs:
        stream, length = STREAMS[run >> _LENGTH_BITS], run & (1 << _LENGTH_BITS) - 1
        wanted = min(place + length, last) - max(place, skip)
        place += length
        if wanted > 0:
            if pieces and pieces[-1][0] == stream:
                pieces[-1] = stream, pieces[-1][1] + wanted
            else:
                pieces.append((stream, wanted))
    return bytes(block[skip:last])
