"""Beginnings of texts of known shapes, looked for at the ends of others; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

Shape = tuple[frozenset[int], ...]
"""The bytes that may be at each place of a text."""


class Beginnings:
    """Search for the longest beginning of any of several shapes at the end of a text.

    All shapes are one row of bits, in which a bit is 1 while the bytes up to now are those of its
    shape up to there (R. Baeza-Yates, G. Gonnet: A new approach to text searching, 1992).

    Attributes:
        longest: length of the longest shape.
    """

    def __init__(self, shapes: Collection[Shape]) -> None:
        self.longest = max(map(len, shapes), default=0)
        self._allowed = [0] * 256
        self._starts = 0
        self._rows: list[tuple[int, int]] = []
        """First bit of each shape, and the bits of its beginnings."""
        place = 0
        for shape in shapes:
            self._starts |= 1 << place
            self._rows.append((place, (1 << len(shape) - 1) - 1))
            for allowed in shape:
                for byte in allowed:
                    self._allowed[byte] |= 1 << place
                place += 1
        self._bits = place
        self._bytes = bytes(byte for byte in range(256) if self._allowed[byte])

    def end(self, text: bytes) -> bytes:
        """Return the bytes at the end of a text that may belong to a beginning."""
        last = text[-self.longest :]
        return last[len(last.rstrip(self._bytes)) :]

    def work(self, ends: Iterable[bytes]) -> int:
        """Return how many bits are looked at for these."""
        return self._bits * sum(map(len, ends))

    def length(self, end: bytes) -> int:
        """Return the length of the longest beginning there; 0 if there is none."""
        bits = 0
        for byte in end:
            bits = (bits << 1 | self._starts) & self._allowed[byte]
        return max(((bits >> first & row).bit_length() for first, row in self._rows), default=0)
