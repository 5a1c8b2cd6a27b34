"""Displays as text and images."""

from __future__ import annotations

from typing import Any

import pytest

import pictures
from nsm.wire.code import PLACE
from nsmd.mcp import render
from nsmd.mcp.render import show_displays

PNG, JPEG = pictures.text(pictures.png()), pictures.text(pictures.jpeg())
SVG = "<svg/>"
FIGURE = "<Figure size 4x3 with 1 Axes>"

CASES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("a figure", {"text/plain": FIGURE, "image/png": PNG}, "[image 1: image/png, 4x3]\n", [PNG]),
    ("a photograph", {"image/jpeg": JPEG}, "[image 1: image/jpeg, 4x3]\n", [JPEG]),
    (
        "an image with words of its own",
        {"text/plain": "Loss after 3 epochs: 0.2", "image/png": PNG},
        "[image 1: image/png, 4x3]\nLoss after 3 epochs: 0.2\n",
        [PNG],
    ),
    (
        "a repr and a caption",
        {"text/plain": FIGURE, "text/markdown": "**Loss**", "image/png": PNG},
        "[image 1: image/png, 4x3]\n**Loss**\n",
        [PNG],
    ),
    (
        "the richest wins",
        {
            "text/plain": FIGURE,
            "text/html": "<img>",
            "image/svg+xml": SVG,
            "image/jpeg": JPEG,
            "image/png": PNG,
            "application/json": {"a": 1},
        },
        "[image 1: image/png, 4x3]\n",
        [PNG],
    ),
    (
        "one that is broken gives way",
        {"image/png": "AAAA", "image/jpeg": JPEG},
        "[image 1: image/jpeg, 4x3]\n",
        [JPEG],
    ),
    (
        "a broken one alone",
        {"text/plain": FIGURE, "image/png": "AAAA"},
        f"{FIGURE}\n[image/png, 3 bytes, cannot be shown: it is not a PNG]\n",
        [],
    ),
    (
        "a JPEG that is none, and SVG",
        {"image/jpeg": PNG, "image/svg+xml": SVG},
        "<svg/>\n[image/jpeg, 68 bytes, cannot be shown: it is not a JPEG]\n",
        [],
    ),
    (
        "no text",
        {"image/png": ["x"]},
        "[image/png, 0 bytes, cannot be shown: it is not base64 text]\n",
        [],
    ),
    ("SVG is text", {"text/plain": "<S>", "image/svg+xml": SVG}, "<svg/>\n", []),
    ("words before SVG", {"text/plain": "a tree", "image/svg+xml": SVG}, "a tree\n", []),
    ("SVG alone", {"image/svg+xml": SVG}, "<svg/>\n", []),
    (
        "other media are named",
        {"text/plain": "x", "audio/wav": "A" * 80},
        "x\n[audio/wav, 60 bytes, is not shown]\n",
        [],
    ),
    ("other forms of a text are not", {"text/plain": "x**2", "text/latex": "x^2"}, "x**2\n", []),
    ("nothing to read", {"text/latex": "x^2"}, "[text/latex, 2 bytes, is not shown]\n", []),
    ("nothing", {}, "", []),
]


PLACED: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("a table", {"text/plain": "a table", "text/html": "<table>", PLACE: 0}, "", []),
    (
        "an image",
        {"text/plain": "Loss", "image/png": PNG, PLACE: 3},
        "[image 3: image/png, 4x3]\n",
        [PNG],
    ),
    (
        "a broken image",
        {"text/plain": FIGURE, "image/png": "AAAA", PLACE: 3},
        "[image 3: image/png, 3 bytes, cannot be shown: it is not a PNG]\n",
        [],
    ),
    (
        "an SVG",
        {"text/plain": FIGURE, "image/svg+xml": SVG, PLACE: 2},
        "[image 2: image/svg+xml]\n<svg/>\n",
        [],
    ),
    ("a place that is none", {"text/plain": "1", PLACE: "x"}, "1\n", []),
]
"""Displays whose text is in stdout are not repeated."""


@pytest.mark.parametrize(("bundle", "text", "images"), [case[1:] for case in PLACED])
def test_placed(bundle: dict[str, Any], text: str, images: list[str]) -> None:
    shown = show_displays([bundle])
    assert (shown.text, [image.base64 for image in shown.images]) == (text, images)


def test_images_without_a_place_are_counted_on() -> None:
    shown = show_displays([{"image/png": PNG, PLACE: 2}, {"image/png": PNG}])
    assert shown.text == "[image 2: image/png, 4x3]\n[image 3: image/png, 4x3]\n"


@pytest.mark.parametrize(
    ("bundle", "text", "images"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_one_display(bundle: dict[str, Any], text: str, images: list[str]) -> None:
    shown = show_displays([bundle])
    assert shown.text == text
    assert [image.base64 for image in shown.images] == images
    assert shown.omitted_images == 0


def test_images_are_numbered_where_they_stand_among_texts() -> None:
    shown = show_displays(
        [{"text/plain": "first"}, {"image/png": PNG}, {"text/plain": "42"}, {"image/jpeg": JPEG}]
    )
    assert shown.text == "first\n[image 1: image/png, 4x3]\n42\n[image 2: image/jpeg, 4x3]\n"
    assert [image.kind for image in shown.images] == ["image/png", "image/jpeg"]


def left_out(*bundles: dict[str, Any], room_chars: int = render.MAX_IMAGES_CHARS) -> str:
    """Return the note about the display that has no room."""
    shown = show_displays(bundles, room_chars=room_chars)
    assert len(shown.images) == len(bundles) - 1
    assert shown.omitted_images == 1
    return shown.text.splitlines()[-1]


def test_a_picture_of_two_types_is_one_picture() -> None:
    large = pictures.text(pictures.png(noise_bytes=3 * 5 * 1024 * 1024 // 4))
    shown = show_displays([{"image/png": large, "image/jpeg": JPEG}])
    assert (len(shown.images), shown.omitted_images) == (1, 0)
    shown = show_displays([{"image/png": PNG, "image/jpeg": JPEG}], room_chars=0)
    assert (len(shown.images), shown.omitted_images) == (0, 1)


def test_bounds() -> None:
    fits = pictures.text(pictures.png(noise_bytes=3 * 5 * 1024 * 1024 // 4 - 90))
    assert render.MAX_IMAGE_CHARS - 16 < len(fits) <= render.MAX_IMAGE_CHARS
    assert show_displays([{"image/png": fits}]).omitted_images == 0
    large = pictures.text(pictures.png(noise_bytes=3 * 5 * 1024 * 1024 // 4))
    assert left_out({"image/png": large}) == (
        "[image/png, 4x3, 3,840 KiB, is left out: "
        f"models take 5,242,880 characters of base64, it has {len(large):,}]"
    )
    assert left_out({"image/png": fits}, {"image/png": fits}, {"image/png": PNG * 2000}) == (
        "[image/png, 4x3, 135 KiB, is left out: the images before it have used up the room]"
    )
    assert left_out({"image/png": PNG}, room_chars=-5).endswith("have used up the room]")
    tall = pictures.text(pictures.png(1, 8001))
    assert left_out({"image/png": tall}) == (
        "[image/png, 1x8001, 95 bytes, is left out: a side has more than 8000 pixels]"
    )
    many = [{"image/png": PNG}] * (render.MAX_IMAGES + 1)
    assert left_out(*many).endswith("is left out: a result shows at most 20 images]")


def test_one_that_is_too_large_gives_way() -> None:
    tall = pictures.text(pictures.png(1, 8001))
    shown = show_displays([{"image/png": tall, "image/jpeg": JPEG}])
    assert [image.kind for image in shown.images] == ["image/jpeg"]
