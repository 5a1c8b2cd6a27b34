"""Limit of the request bodies in memory, for all clients together."""

from __future__ import annotations

SMALL_BYTES = 64 * 1024
"""Bytes of a body that are not counted, since the number of connections is limited."""


class Bodies:
    """Bound on the request bodies in memory, for all clients together.

    Args:
        most: largest number of bytes at once.

    Attributes:
        taken: present number of bytes.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def __repr__(self) -> str:
        return f"<Bodies {self.taken} of {self.most} bytes>"


class BodyShare:
    """Part of the bound that one request holds until `free`.

    Args:
        of: bound in which it counts.
    """

    def __init__(self, of: Bodies) -> None:
        self._of = of
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<BodyShare {self._bytes} bytes>"

    def grow(self, size: int) -> bool:
        """Hold so many bytes in all; False if there is no room."""
        more = max(0, size - SMALL_BYTES) - self._bytes
        if more > 0:
            if self._of.taken + more > self._of.most:
                return False
            self._of.taken += more
            self._bytes += more
        return True

    def free(self) -> None:
        """Free the share: the request was answered."""
        self._of.taken -= self._bytes
        self._bytes = 0
