"""Texts for people: head and tail of one of unknown length, and durations; pure."""

from __future__ import annotations

import codecs


class HeadTail:
    """Buffer that keeps a stream whole up to a bound, and head and tail of a longer one."""

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
        if len(self._tail) > 2 * self._limit:  # not at each write, since this moves the buffer
            del self._tail[: len(self._tail) - self._half]

    def result(self, errors: str = "replace") -> tuple[str, int]:
        """Return the kept text, with a line that says how much is left out, and that number of
        bytes. `errors` says what becomes of bytes that are not UTF-8.
        """
        if self._total == len(self._head):
            return self._head.decode("utf-8", errors), 0
        tail = self._tail[len(self._tail) - min(self._half, len(self._tail)) :]
        torn = 0
        while torn < min(3, len(tail)) and 0x80 <= tail[torn] < 0xC0:
            torn += 1
        # Not final: a torn character at the end of the head is left out.
        head = codecs.getincrementaldecoder("utf-8")(errors).decode(bytes(self._head))
        omitted = self._total - len(self._head) - len(tail)
        end = tail[torn:].decode("utf-8", errors)
        return f"{head}\n[... {omitted} bytes left out ...]\n{end}", omitted


def bytes_of(text: str) -> bytes:
    """Bytes of output, as the code wrote them: those that are not UTF-8 are lone surrogates."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # surrogates that stand for no byte: not from one of our agents
        return text.encode("utf-8", "replace")


def shortened(text: str, limit_bytes: int) -> tuple[str, int]:
    """Shorten a complete text in the same way. Returns it, and the number of bytes left out."""
    if len(text) * 4 <= limit_bytes:  # the most that UTF-8 takes
        return text, 0
    kept = HeadTail(limit_bytes)
    kept.write(bytes_of(text))
    return kept.result("surrogateescape")


def duration(seconds: float) -> str:
    """Format a duration for people: ``40 s``, ``12 min``, ``3 h``, ``2 days``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86400:.0f} days"
