"""Images as a jail presents them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pictures
from nsm.wire.images import BadImageError, decode, dimensions_of, encoded_chars


@pytest.mark.parametrize(
    ("kind", "raw"),
    [("image/png", pictures.png(640, 480)), ("image/jpeg", pictures.jpeg(640, 480))],
)
@pytest.mark.parametrize("encode", [base64.b64encode, base64.encodebytes])
def test_whole_ones_are_taken(kind: str, raw: bytes, encode: Callable[[bytes], bytes]) -> None:
    image = decode(kind, encode(raw).decode())
    assert image.data == raw
    assert base64.b64decode(image.base64, validate=True) == raw
    assert str(image.dimensions) == "640x480"
    assert dimensions_of(kind, encode(raw).decode()) == (640, 480)
    assert encoded_chars(encode(raw).decode()) == len(image.base64)


def test_what_follows_a_jpeg_is_no_matter() -> None:
    decode("image/jpeg", pictures.text(pictures.jpeg() + b"\0\0made by a camera"))


PNG, JPEG = pictures.png(), pictures.jpeg()


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("image/png", None, "is not base64 text"),
        ("image/png", {"a": 1}, "is not base64 text"),
        ("image/png", "", "is not a PNG"),
        ("image/png", "iVBORw0KGgo", "is not valid base64"),
        ("image/png", "%%%%", "is not valid base64"),
        ("image/png", pictures.text(PNG) + "====", "is not valid base64"),
        ("image/png", "ä", "is not base64: it has characters beyond ASCII"),
        ("image/png", pictures.text(JPEG), "is not a PNG"),
        ("image/jpeg", pictures.text(PNG), "is not a JPEG"),
        ("image/png", pictures.text(PNG[:-1]), "is a damaged or incomplete PNG"),
        ("image/png", pictures.text(PNG[:8]), "is a damaged or incomplete PNG"),
        ("image/png", pictures.text(PNG[:24]), "is a damaged or incomplete PNG"),
        ("image/png", pictures.text(PNG[:40] + b"x" + PNG[41:]), "is a damaged or incomplete PNG"),
        ("image/png", pictures.text(pictures.png(0, 3)), "is a damaged or incomplete PNG"),
        ("image/png", pictures.text(PNG[:33] + PNG[-12:]), "is a damaged or incomplete PNG"),
        ("image/jpeg", pictures.text(JPEG[:-2]), "is an incomplete JPEG"),
        ("image/jpeg", pictures.text(JPEG[:20]), "is a damaged or incomplete JPEG"),
        (
            "image/jpeg",
            pictures.text(b"\xff\xd8\xff\xd9" + b"\0" * 9),
            "is a damaged or incomplete JPEG",
        ),
        ("image/jpeg", pictures.text(pictures.jpeg(0, 0)), "is a damaged or incomplete JPEG"),
    ],
)
def test_others_are_refused_with_the_reason(kind: str, data: object, why: str) -> None:
    with pytest.raises(BadImageError) as caught:
        decode(kind, data)
    assert str(caught.value) == why


@given(raw=st.binary(), kind=st.sampled_from(["image/png", "image/jpeg"]), cut=st.integers(0, 90))
def test_nothing_else_can_happen(raw: bytes, kind: str, cut: int) -> None:
    data = (PNG if kind == "image/png" else JPEG)[:cut] + raw
    with suppress(BadImageError):
        assert decode(kind, pictures.text(data)).data == data
    dimensions_of(kind, pictures.text(data))
