"""Small real pictures, made without any library for pictures."""

from __future__ import annotations

import base64
import random
import zlib


def png(width: int = 4, height: int = 3, *, noise_bytes: int = 0) -> bytes:
    """A grey PNG.

    Args:
        noise_bytes: size of a chunk of random bytes in it, which makes it a large file.
    """
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    pixels = zlib.compress(b"\0" * (width + 1) * height)
    noise = random.Random(1).randbytes(noise_bytes)
    chunks = [_chunk(b"IHDR", header), _chunk(b"IDAT", pixels), _chunk(b"IEND", b"")]
    if noise:
        chunks.insert(1, _chunk(b"noIs", noise))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def jpeg(width: int = 4, height: int = 3) -> bytes:
    """Make a JPEG whose segments are valid and whose pixels mean nothing."""
    thumbnail = b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x01\x00\x01\x01\x01\x11\x00\xff\xd9"
    frame = b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + b"\x01\x01\x11\x00"
    return (
        b"\xff\xd8"
        + _segment(0xE1, b"Exif\0\0" + thumbnail)
        + b"\xff"  # a fill byte
        + _segment(0xC4, b"\0" * 17)
        + _segment(0xC2, frame)
        + _segment(0xDA, b"\x01\x01\x00\x00\x3f\x00")
        + b"\x12\x34\xff\x00\x56"
        + b"\xff\xd9"
    )


def text(data: bytes) -> str:
    """Encode a picture as displays hold it."""
    return base64.b64encode(data).decode()


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + name + data + checksum


def _segment(marker: int, data: bytes) -> bytes:
    return b"\xff" + bytes([marker]) + (len(data) + 2).to_bytes(2, "big") + data
