"""Displays for `nsm run`: text to print, pictures to write to files. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from nsm.cli.render.formats import visible
from nsm.wire.results import split_place

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEXT_TYPES = ("text/plain", "text/markdown", "application/json", "text/html")
"""MIME types that can be printed, the plainest first."""

_SVG = "image/svg+xml"


ELSEWHERE = ": --json holds it"
"""How a note ends on what a terminal cannot show; true of `nsm run`."""


class Picture(NamedTuple):
    """Picture to write to a file.

    Attributes:
        what: type and size in words.
        extension: extension of the file's name, without the dot.
    """

    what: str
    extension: str
    data: bytes


class Display(NamedTuple):
    """One displayed value.

    Attributes:
        text: for standard output, ending in a newline; may be empty.
        picture: its best picture, if it has any.
        notes: notes about values that cannot be shown.
    """

    text: str
    picture: Picture | None
    notes: list[str]


def display(bundle: Mapping[str, Any]) -> Display:
    """The parts of a display (MIME type to data) to show: those that stdout does not have."""
    bundle, place = split_place(bundle)
    text = _text(bundle) if place is None else ""
    picture, notes = _picture(bundle)
    media = [kind for kind in bundle if kind.startswith(("image/", "audio/", "video/"))]
    if picture is not None and place:
        picture = picture._replace(what=f"image {place}: {picture.what}")
    if picture is None and not notes and (media or (not text and place is None)):
        kinds = ", ".join(visible(kind) for kind in media or bundle) or "nothing"
        notes.append(f"displayed {kinds}{ELSEWHERE}")
    return Display(text if not text or text.endswith("\n") else text + "\n", picture, notes)


def _text(bundle: Mapping[str, Any]) -> str:
    for kind in _TEXT_TYPES:
        data = bundle.get(kind)
        if isinstance(data, str):
            return data
        if kind == "application/json" and data is not None:
            import json  # noqa: PLC0415  # 2 ms for a rare case

            return json.dumps(data, ensure_ascii=False)
    return ""


def _picture(bundle: Mapping[str, Any]) -> tuple[Picture | None, list[str]]:
    if not any(kind.startswith("image/") for kind in bundle):
        return None, []
    from nsm.wire.images import EXTENSIONS, BadImageError, decode  # noqa: PLC0415  # rarely needed

    notes: list[str] = []
    for kind, extension in EXTENSIONS.items():
        if kind in bundle:
            try:
                image = decode(kind, bundle[kind])
            except BadImageError as error:
                notes.append(f"displayed {kind}, which {error}")
            else:
                return Picture(f"{kind}, {image.dimensions}", extension, image.data), []
    svg = bundle.get(_SVG)
    if isinstance(svg, str):
        return Picture(_SVG, "svg", svg.encode(errors="replace")), []
    return None, notes
