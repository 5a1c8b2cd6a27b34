"""The beginning and the end of a text of unknown length; pure."""

from __future__ import annotations

import codecs


class HeadTail:
    """Keeps a stream whole up to a bound, and of a longer one head and tail.

    Args:
        limit_bytes: of what is kept.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._half = limit_bytes // 2
        self._total = 0
        self._head = bytearray()
        self._tail = bytearray()

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        whole = self._total == len(self._head)
        self._total += len(data)
        if whole:
            self._head += data
            if self._total > self._limit:
                self._tail += memoryview(self._head)[self._half :]
                del self._head[self._half :]
        else:
            self._tail += data
        if len(self._tail) > 2 * self._limit:  # not at each: what is kept is moved
            del self._tail[: len(self._tail) - self._half]

    def result(self) -> tuple[str, int]:
        """Return the kept text, with a line that says what is left out, and its number of bytes."""
        if self._total == len(self._head):
            return self._head.decode("utf-8", "replace"), 0
        tail = self._tail[len(self._tail) - min(self._half, len(self._tail)) :]
        torn = 0
        while torn < min(3, len(tail)) and 0x80 <= tail[torn] < 0xC0:
            torn += 1
        # Not final: a torn character at the end of the head is left out.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        omitted = self._total - len(self._head) - len(tail)
        end = tail[torn:].decode("utf-8", "replace")
        return f"{head}\n[... {omitted} bytes left out ...]\n{end}", omitted


def shortened(text: str, limit_bytes: int) -> tuple[str, int]:
    """A text that came whole, as if it had been kept so; and how many bytes are left out."""
    if len(text) * 4 <= limit_bytes:  # the most that UTF-8 takes
        return text, 0
    kept = HeadTail(limit_bytes)
    kept.write(text.encode("utf-8", "replace"))
    return kept.result()
