"""Images as displays hold them: base64 text that a jail claims to be a picture, checked.

Whoever is handed a broken picture may do worse than not show it: a model's API refuses the whole
conversation that holds one. So not only the beginning is looked at.
"""

import binascii
from zlib import crc32

from nsm.wire.tuples import NamedTuple

EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg"}
"""MIME types that are known here, with the usual ending of such a file's name."""

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_JPEG_START, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"

_HEAD_CHARS = 256 * 1024
"""Part of a picture that is too large to be decoded that is looked at for its dimensions."""


class BadImageError(ValueError):
    """The image is not of the kind that it claims; the message is a clause that says why."""


class Dimensions(NamedTuple):
    """Pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


class Image(NamedTuple):
    """A checked picture.

    Attributes:
        kind: its MIME type.
        data: the file's bytes.
        base64: the same as text without white space.
    """

    kind: str
    data: bytes
    base64: str
    dimensions: Dimensions


def decode(kind: str, data: object) -> Image:
    """A picture of one of the types in `EXTENSIONS`.

    Args:
        data: base64 text; white space in it, which Python's `base64.encodebytes` makes, is fine.

    Raises:
        BadImageError: it is no base64, not of that type, or not whole.
    """
    text = _compact(data)
    try:
        raw = binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        raise BadImageError("is not valid base64") from None
    except ValueError:
        raise BadImageError("is not base64: it has characters beyond ASCII") from None
    return Image(kind, raw, text, _png(raw) if kind == "image/png" else _jpeg(raw))


def encoded_chars(data: object) -> int:
    """Length of base64 text without its white space; 0 for what is no text."""
    return len(_compact(data)) if isinstance(data, str) else 0


def dimensions_of(kind: str, data: str) -> Dimensions | None:
    """Read the dimensions from the beginning of base64 text; None if they are not there."""
    try:
        head = "".join(data[:_HEAD_CHARS].split())
        raw = binascii.a2b_base64(head[: len(head) // 4 * 4])
        return _png_header(raw) if kind == "image/png" else _jpeg_frame(raw)[0]
    except (BadImageError, ValueError):
        return None


def _compact(data: object) -> str:
    if not isinstance(data, str):
        raise BadImageError("is not base64 text")
    return data if not any(space in data for space in " \t\r\n") else "".join(data.split())


def _png(raw: bytes) -> Dimensions:
    """Check a PNG chunk by chunk (PNG specification, third edition, section 5)."""
    dimensions = _png_header(raw)
    at, has_pixels = len(_PNG_MAGIC), False
    while at + 12 <= len(raw):
        length, name = int.from_bytes(raw[at : at + 4], "big"), raw[at + 4 : at + 8]
        end = at + 8 + length
        with memoryview(raw) as view:
            if crc32(view[at + 4 : end]) != int.from_bytes(raw[end : end + 4], "big"):
                break
        if name == b"IEND":
            if has_pixels:
                return dimensions
            break
        has_pixels = has_pixels or name == b"IDAT"
        at = end + 4
    raise BadImageError("is a damaged or incomplete PNG")


def _png_header(raw: bytes) -> Dimensions:
    if not raw.startswith(_PNG_MAGIC):
        raise BadImageError("is not a PNG")
    width, height = (int.from_bytes(raw[at : at + 4], "big") for at in (16, 20))
    if raw[12:16] != b"IHDR" or not width or not height:
        raise BadImageError("is a damaged or incomplete PNG")
    return Dimensions(width, height)


def _jpeg(raw: bytes) -> Dimensions:
    dimensions, at = _jpeg_frame(raw)
    # Pixels are escaped so that no marker is in them; what follows the end is nobody's business.
    if raw.find(_JPEG_END, at) < 0:
        raise BadImageError("is an incomplete JPEG")
    return dimensions


def _jpeg_frame(raw: bytes) -> tuple[Dimensions, int]:
    """The size in the frame header, which follows other segments, and where that header is.

    ITU-T T.81, annex B.
    """
    if not raw.startswith(_JPEG_START):
        raise BadImageError("is not a JPEG")
    at = 2
    while raw[at : at + 1] == b"\xff" and at + 9 <= len(raw):
        marker = raw[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # SOF0 to SOF15
            height, width = (int.from_bytes(raw[n : n + 2], "big") for n in (at + 5, at + 7))
            if not width or not height:
                break
            return Dimensions(width, height), at
        elif marker in (0xD9, 0xDA):  # the end, or pixels, without a frame header
            break
        else:
            at += 2 + int.from_bytes(raw[at + 2 : at + 4], "big")
    raise BadImageError("is a damaged or incomplete JPEG")
