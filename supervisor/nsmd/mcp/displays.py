"""Displays of code, as text for a model and images for its eyes. Pure.

One display holds one value in several representations. The first one that can be shown is used: a
PNG, a JPEG, then the texts, the plainest first. Images from a jail are checked, and bounded as
models' APIs bound them: these refuse every conversation that contains a broken or too large image.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nsm.dataclass import dataclass
from nsm.wire.images import EXTENSIONS, BadImageError, Image, decode, dimensions_of, encoded_chars
from nsm.wire.results import split_place
from nsmd.mcp.text import line_end, one_line, size

MAX_IMAGE_CHARS = 5 * 1024 * 1024
"""Largest image as base64: Anthropic's API refuses more ("image exceeds 5 MB maximum")."""

MAX_IMAGE_SIDE = 8000
"""Largest length of an image's longer side in pixels, by the same API."""

MAX_IMAGES = 20
"""Largest number of images in one result. With more than 20 in a request, that API takes only small
ones.
"""

MAX_IMAGES_CHARS = 10 * 1024 * 1024
"""Largest size of all images of a result as base64: one result is one line, which has a
limit, too.
"""

_SVG = "image/svg+xml"

_TEXT_TYPES = ("text/plain", "text/markdown", "application/json", _SVG, "text/html")
"""MIME types that a model can read, the plainest first. An SVG says more than a bare repr."""

_CAPTION_TYPES = ("text/plain", "text/markdown")
"""MIME types of texts that may say more than an image does."""

_MEDIA = ("image/", "audio/", "video/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDisplays:
    """All displays of an execution.

    Attributes:
        text: lines in the displays' order; a line has the number of an image at its place.
        images: images to show, in the same order.
        omitted_images: number of valid images that are left out for their size or number.
    """

    text: str
    images: tuple[Image, ...]
    omitted_images: int


def show(
    bundles: Sequence[Mapping[str, Any]],
    *,
    room_chars: int = MAX_IMAGES_CHARS,
    failed: bool = False,
) -> ShownDisplays:
    """Show the displays of an execution.

    Args:
        bundles: displays, each a map from MIME type to data.
        room_chars: room for all images together, as base64; at most `MAX_IMAGES_CHARS` are used.
        failed: the result is an error. Then no image is shown: Anthropic's API refuses such a
            request ("all content must be type `text` if `is_error` is true"), and every later one
            of the conversation.
    """
    album = _Album(min(room_chars, MAX_IMAGES_CHARS), failed=failed)
    lines = [line for bundle in bundles for line in _lines(bundle, album)]
    return ShownDisplays(
        text="".join(line_end(line) for line in lines),
        images=tuple(album.images),
        omitted_images=album.omitted,
    )


class _Album:
    """The images of one result, as far as there is room."""

    def __init__(self, room_chars: int, *, failed: bool) -> None:
        self.images: list[Image] = []
        self.number = 0
        self.omitted = 0
        self._failed = failed
        self._room_chars = room_chars

    def take(self, kind: str, data: Any) -> str:
        """Add an image if it is one and there is room.

        Returns:
            Why it was not added, in words; empty if it was.
        """
        chars = encoded_chars(data)
        why = self._no_room(chars)
        dimensions = None
        if not why:
            try:
                image = decode(kind, data)
            except BadImageError as error:
                return f"{kind}, {_size(data, chars)}, cannot be shown: it {error}"
            dimensions = image.dimensions
            if max(dimensions) <= MAX_IMAGE_SIDE:
                self.images.append(image)
                self._room_chars -= chars
                return ""
            why = f"a side has more than {MAX_IMAGE_SIDE} pixels"
        self.omitted += 1
        dimensions = dimensions or dimensions_of(kind, data)
        pixels = f"{dimensions}, " if dimensions else ""
        return f"{kind}, {pixels}{_size(data, chars)}, is left out: {why}"

    def _no_room(self, chars: int) -> str:
        if self._failed:
            return "a failed call shows none"
        if chars > MAX_IMAGE_CHARS:
            return f"models take {MAX_IMAGE_CHARS:,} characters of base64, it has {chars:,}"
        if len(self.images) >= MAX_IMAGES:
            return f"a result shows at most {MAX_IMAGES} images"
        if chars > self._room_chars:
            return "the images before it have used up the room"
        return ""


def _lines(bundle: Mapping[str, Any], album: _Album) -> list[str]:
    """Lines of one display; a value whose text is in stdout is not repeated."""
    bundle, place = split_place(bundle)
    name = f"image {place}: " if place else ""
    album.number = place or album.number
    refused: list[str] = []
    omitted = album.omitted
    for kind in EXTENSIONS:
        if kind in bundle:
            why = album.take(kind, bundle[kind])
            if not why:
                album.omitted = omitted  # it is shown, but in another type
                album.number = place or album.number + 1  # as in the lines of stdout
                return [_image_line(album), *(_caption(bundle) if place is None else [])]
            refused.append(f"[{name}{why}]")
    album.omitted = min(album.omitted, omitted + 1)  # one picture, in however many types
    readable = _readable(bundle)
    if readable is None:
        return refused + [_not_shown(*item) for item in bundle.items() if item[0] not in EXTENSIONS]
    media = [
        _not_shown(kind, data)
        for kind, data in bundle.items()
        if kind.startswith(_MEDIA) and kind not in (*EXTENSIONS, *_TEXT_TYPES)
    ]
    if place is not None and readable != _SVG:
        return [*refused, *media]
    text = [f"[{name}{_SVG}]"] if name else []
    return [*text, _text(bundle[readable]), *refused, *media]


def _readable(bundle: Mapping[str, Any]) -> str | None:
    """MIME type of the text to show, if there is any."""
    plain = bundle.get("text/plain")
    if _SVG in bundle and (not isinstance(plain, str) or _is_repr(plain.strip())):
        return _SVG
    return next((kind for kind in _TEXT_TYPES if kind in bundle), None)


def _image_line(album: _Album) -> str:
    """Line that stands for an image: some clients show none, and models count them."""
    image = album.images[-1]
    return f"[image {album.number}: {image.kind}, {image.dimensions}]"


def _caption(bundle: Mapping[str, Any]) -> list[str]:
    """Return the text beside an image; none if it is only a repr such as ``<Figure ...>``."""
    for kind in _CAPTION_TYPES:
        text = bundle.get(kind)
        if isinstance(text, str) and text.strip() and not _is_repr(text.strip()):
            return [text]
    return []


def _is_repr(text: str) -> bool:
    return text.startswith("<") and text.endswith(">") and "\n" not in text


def _size(data: Any, chars: int) -> str:
    padding = data[-3:].count("=") if isinstance(data, str) else 0
    return size(max(0, chars * 3 // 4 - padding))


def _not_shown(kind: str, data: Any) -> str:
    length = len(data) * 3 // 4 if isinstance(data, str) else 0  # base64
    return f"[{one_line(kind, 80)}, {size(length)}, is not shown]"


def _text(data: object) -> str:
    if isinstance(data, str):
        return data
    try:
        return json.dumps(data, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        return "(a value that cannot be shown)"
