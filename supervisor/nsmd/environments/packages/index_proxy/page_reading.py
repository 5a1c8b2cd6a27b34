"""Pages of indexes: read whole, with a bound on each and on all together."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterable, Generator
from contextlib import contextmanager
from http import HTTPStatus

from nsmd.environments.packages.index_proxy.errors import FetchError

MAX_PAGE_BYTES = 48 * 1024 * 1024
"""Largest page, unpacked. The largest ones of public indexes have some 30 MB."""

MAX_ALL_BYTES = 128 * 1024 * 1024
"""Largest size of all pages in memory at once, without the first bytes of each."""

SMALL_BYTES = 256 * 1024
"""Bytes of a page that are not counted, since the number of requests is limited."""


class PageMemory:
    """Room for the pages of all requests."""

    def __init__(self) -> None:
        self._taken = 0

    @contextmanager
    def share(self) -> Generator[PageShare]:
        """Hold room for one page."""
        share = PageShare(self)
        try:
            yield share
        finally:
            self._taken -= share.taken

    def take(self, size: int) -> None:
        """Take more room.

        Raises:
            FetchError: there is no more.
        """
        if self._taken + size > MAX_ALL_BYTES:
            raise FetchError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the pages of the indexes are too large to read so many at once",
                retry_after=b"1",
            )
        self._taken += size


class PageShare:
    """Room that one page holds."""

    def __init__(self, memory: PageMemory) -> None:
        self._memory = memory
        self.taken = 0

    def grow(self, size: int) -> None:
        """Hold so many bytes in all.

        Raises:
            FetchError: there is no room.
        """
        more = size - SMALL_BYTES - self.taken
        if more > 0:
            self._memory.take(more)
            self.taken += more


async def read_page(
    chunks: AsyncIterable[bytes], encoding: bytes, share: PageShare, name: str
) -> bytes:
    """Read a page.

    Args:
        encoding: its `Content-Encoding`.
        name: name of the index, for errors.

    Raises:
        FetchError: it is too large, or packed in an unknown or wrong way.
    """
    if encoding not in (b"", b"identity", b"gzip", b"x-gzip", b"deflate"):
        raise FetchError(HTTPStatus.BAD_GATEWAY, f"{name} packs its pages in an unknown way")
    unpacker = None if encoding in (b"", b"identity") else zlib.decompressobj(zlib.MAX_WBITS | 32)
    page = bytearray()
    async for chunk in chunks:
        if unpacker is None:
            page += chunk
        else:
            try:
                page += unpacker.decompress(chunk, MAX_PAGE_BYTES + 1 - len(page))
            except zlib.error:
                raise FetchError(
                    HTTPStatus.BAD_GATEWAY, f"{name} sends a page that cannot be unpacked"
                ) from None
        if len(page) > MAX_PAGE_BYTES:
            raise FetchError(
                HTTPStatus.BAD_GATEWAY,
                f"{name} sends a page of more than {MAX_PAGE_BYTES >> 20} MiB",
            )
        share.grow(len(page))
    if unpacker is not None and not unpacker.eof:
        raise FetchError(HTTPStatus.BAD_GATEWAY, f"{name} ended a page early")
    return bytes(page)
