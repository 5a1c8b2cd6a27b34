"""Stand-ins for values: made, found in requests, and replaced there; pure.

Code sees stand-ins only. A stand-in has the length of its value, so that a response in which one
replaces the other has the length that the server has said.
"""

from __future__ import annotations

import base64
import binascii
import re
import string
from collections.abc import Iterable, Mapping
from urllib.parse import unquote_to_bytes

from nsm.dataclass import dataclass

_PREFIX = re.compile(r"(?:[a-z]{2,8}[0-9]{0,2}[_-]){1,3}", re.ASCII)
"""Beginnings such as `ghp_`, `sk-ant-api03-` and `glpat-`: tools look at them, and all tokens of
one kind have the same.
"""

_LEAST_WITH_PREFIX = 24
"""Shorter values may be words that a person chose, which show too much by their beginning."""

_WORDS = re.compile(r"[A-Za-z]+(?:[^A-Za-z0-9][A-Za-z]+)+")
"""Words that a person chose: their lengths tell too much of them."""

_LEAST_RANDOM = 12
"""Characters that are chosen by chance, if there is room: nobody finds a stand-in by accident."""

CLASSES = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
"""Kinds of characters that stand-ins keep."""


def make_stand_in(value: str) -> str:
    """Make a random text of the same shape: length, known prefix, and kind of each character."""
    from secrets import choice  # noqa: PLC0415  # brokers, which make none, find them with this

    prefix, shaped = shown(value)
    rest = value[len(prefix) :]
    everything = string.ascii_letters + string.digits

    def like(character: str) -> str:
        if not shaped:
            return choice(everything)
        return next((choice(kind) for kind in CLASSES if character in kind), character)

    while True:
        made = "".join(map(like, rest))
        if made != rest:
            return prefix + made


def shown(value: str) -> tuple[str, bool]:
    """Return the beginning of a value that its stand-in shows, and True if it also shows the kind
    of each other character.
    """
    prefix = ""
    if _WORDS.fullmatch(value):
        return prefix, False
    if len(value) >= _LEAST_WITH_PREFIX and (found := _PREFIX.match(value)):
        prefix = found.group()[: len(value) // 3]
        prefix = prefix[: max(prefix.rfind("_"), prefix.rfind("-")) + 1]
    rest = value[len(prefix) :]
    shaped = sum(character.isalnum() for character in rest) >= min(_LEAST_RANDOM, len(rest))
    return prefix, shaped


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A header's value for the server."""

    value: bytes
    names: tuple[str, ...]


def replace_in_header(name: bytes, value: bytes, known: Mapping[str, tuple[str, str]]) -> Replaced:
    """Put values in the place of stand-ins, also within `Basic` credentials. The header's name is
    in lower case; `known` has stand-in and value of each secret, by name.
    """
    credentials = basic_credentials(name, value)
    if credentials is None:
        return _replace(value, known)
    inner = _replace(credentials, known)
    if not inner.names:
        return Replaced(value=value, names=())
    return Replaced(value=b"Basic " + base64.b64encode(inner.value), names=inner.names)


def _replace(value: bytes, known: Mapping[str, tuple[str, str]]) -> Replaced:
    names: list[str] = []
    for name, (stand_in, real) in known.items():
        if stand_in.encode() in value:
            value = value.replace(stand_in.encode(), real.encode())
            names.append(name)
    return Replaced(value=value, names=tuple(names))


def find_in_head(
    target: bytes, headers: Iterable[tuple[bytes, bytes]], stand_ins: Mapping[str, str]
) -> str | None:
    """Name a secret whose stand-in is in the head of a request; None if there is none. Names of
    headers are in lower case.
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
