"""Stand-ins for values, found in requests; pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from urllib.parse import unquote_to_bytes


def find_in_head(
    target: bytes, headers: Iterable[tuple[bytes, bytes]], stand_ins: Mapping[str, str]
) -> str | None:
    """Name a secret whose stand-in is in the head of a request; None if there is none.

    Args:
        headers: names in lower case, and values.
    """
    found = (find_in_header(name, value, stand_ins) for name, value in headers)
    return find(target, stand_ins) or next(filter(None, found), None)


def find_in_header(name: bytes, value: bytes, stand_ins: Mapping[str, str]) -> str | None:
    """Name a secret whose stand-in is in a header; None if there is none."""
    credentials = basic_credentials(name, value)
    return find(value if credentials is None else credentials, stand_ins)


def find(data: bytes, stand_ins: Mapping[str, str]) -> str | None:
    """Name a secret whose stand-in is in these bytes, perhaps with `%` escapes; None if none is."""
    texts = (data, unquote_to_bytes(data)) if b"%" in data else (data,)
    for name, stand_in in stand_ins.items():
        if any(stand_in.encode() in text for text in texts):
            return name
    return None


def basic_credentials(name: bytes, value: bytes) -> bytes | None:
    """Return the credentials in a header; None if there are none that can be read."""
    if name != b"authorization" or value[:6].lower() != b"basic ":
        return None
    try:
        return base64.b64decode(value[6:].strip(), validate=True)
    except binascii.Error:
        return None
