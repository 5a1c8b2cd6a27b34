"""Frames of the control socket: 4 bytes of big-endian length, then one CBOR map.

Both ends distrust each other, so a frame's bytes are checked before any object is made of them:
cbor2's decoder follows built-in tags (cyclic references, regular expressions, e-mail parsers)
whatever its options say, and 16 MiB of empty arrays would become a gigabyte of lists. What passes
is what JSON could say, plus byte strings: maps with text keys, arrays, text, bytes, 64-bit
integers, finite floats, true, false, null.
"""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NoReturn, cast

import cbor2

from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Largest frame without its length; larger output travels in several frames."""

MAX_DEPTH = 64
"""Nesting of maps and arrays. Our own frames need six levels; a displayed JSON value needs more."""

MAX_ITEMS = 262_144
"""Data items in one frame: a thousand `ps` rows are 26,000. Bounds the memory of decoded values
(about 60 bytes for the cheapest item that a byte on the wire can ask for)."""

_LENGTH_BYTES = 4
_MAX_BUFFER_BYTES = 2 * (MAX_FRAME_BYTES + _LENGTH_BYTES)

_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY, _MAP, _TAG = range(7)
"""Major types, RFC 8949 section 3.1; the seventh, simple values and floats, is what is left."""

_FALSE, _TRUE, _NULL = 20, 21, 22
_EXPONENT_MASKS = {25: 0x7C00, 26: 0x7F80_0000, 27: 0x7FF0_0000_0000_0000}
"""Exponent bits of half, single and double floats; all set means infinity or NaN (IEEE 754)."""


class LocalProtocolError(NsmError):
    """This program tried to send what the protocol does not allow: a bug on this side."""

    code = "internal"


class RemoteProtocolError(NsmError):
    """The peer sent what the protocol does not allow; the connection is of no more use."""

    code = "protocol-error"


def encode_frame(value: Mapping[str, Any]) -> bytes:
    """Encode one map as a frame.

    Lone surrogates become U+FFFD: text that jailed code made up must not be able to end a
    connection. Who needs text to arrive unchanged checks it first.

    Raises:
        LocalProtocolError: the value holds something other than plain values, is nested too
            deep, or its frame would be too large.
    """
    items = _check_plain(value)
    if items > MAX_ITEMS:
        raise LocalProtocolError(
            f"a frame of {items} items is larger than the limit of {MAX_ITEMS}",
            hint="Send less at once.",
        )
    try:
        body = cbor2.dumps(value)
    except UnicodeEncodeError:
        body = cbor2.dumps(_without_surrogates(value))
    if len(body) > MAX_FRAME_BYTES:
        raise LocalProtocolError(
            f"a frame of {len(body)} bytes is larger than the limit of {MAX_FRAME_BYTES}",
            hint="Send less at once.",
        )
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def decode_body(body: bytes) -> dict[str, Any]:
    """Decode the CBOR of one frame, which must be one map and nothing else.

    Raises:
        RemoteProtocolError: anything else.
    """
    _scan(body)
    try:
        value: dict[str, Any] = cbor2.loads(
            body, max_depth=MAX_DEPTH, allow_indefinite=False, allow_duplicate_keys=False
        )
    except (cbor2.CBORDecodeError, ValueError) as error:
        _refuse(f"it does not decode: {error}", error)
    return value


class FrameReader:
    """Cuts a stream of bytes into decoded frames.

    Attributes:
        limit: largest length that is accepted, bytes. It may be changed between frames, so that
            a peer which has not introduced itself can't make us hold megabytes.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def __repr__(self) -> str:
        return f"<FrameReader limit={self.limit} buffered={len(self._buffer)}>"

    def __bool__(self) -> bool:
        """Return whether the bytes of an incomplete frame are waiting."""
        return bool(self._buffer)

    def feed(self, data: bytes | bytearray) -> None:
        """Take bytes as they came.

        Raises:
            LocalProtocolError: two whole frames are waiting; the caller reads without taking.
        """
        self._buffer += data
        if len(self._buffer) > _MAX_BUFFER_BYTES:
            raise LocalProtocolError(
                f"{len(self._buffer)} bytes are waiting to be decoded",
                hint="Take all frames before reading more.",
            )

    def next_frame(self) -> dict[str, Any] | None:
        """The next frame, or None until more bytes come.

        Raises:
            RemoteProtocolError: the bytes are no valid frame; what follows can't be trusted.
        """
        buffer = self._buffer
        if len(buffer) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(buffer[:_LENGTH_BYTES], "big")
        if length > self.limit:
            raise RemoteProtocolError(
                f"a frame of {length} bytes was announced; at most {self.limit} are taken here",
                hint="Is the peer a program that speaks nsm's control protocol?",
            )
        end = _LENGTH_BYTES + length
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            body = bytes(view[_LENGTH_BYTES:end])
        del buffer[:end]
        return decode_body(body)


def _length_behind(head: int) -> int:
    """Bytes behind the head of an item that is good whatever they are; -1 for any other."""
    major, info = head >> 5, head & 31
    if major in (_BYTES, _TEXT):
        return info if info < 24 else -1
    if major in (_UNSIGNED, _NEGATIVE):
        return 0 if info < 24 else 1 << (info - 24) if info < 28 else -1
    return 0 if head in (0xE0 | _FALSE, 0xE0 | _TRUE, 0xE0 | _NULL) else -1


_LENGTHS_BEHIND = [_length_behind(head) for head in range(256)]


def _scan(body: bytes) -> None:
    """Refuse what must not be decoded, in one pass over the heads of all items (RFC 8949, 3)."""
    end, position, items = len(body), 0, 1
    left, in_map = 1, False  # items still to come in the innermost open container
    outer: list[tuple[int, bool]] = []
    if not body or body[0] >> 5 != _MAP:
        _refuse("it is not a map")
    while True:
        while left == 0 and outer:
            left, in_map = outer.pop()
        if left == 0 or position >= end:
            break
        head = body[position]
        position += 1
        left -= 1
        if in_map and left & 1 and head >> 5 != _TEXT:
            _refuse("a key is not text")
        length_behind = _LENGTHS_BEHIND[head]
        if length_behind >= 0:  # nearly all items of our own frames
            position += length_behind
            continue
        major, info = head >> 5, head & 31
        argument = info
        if info >= 24:
            if info >= 28:
                _refuse("it has an indefinite length or a reserved head")
            width = 1 << (info - 24)
            argument = int.from_bytes(body[position : position + width], "big")
            position += width
        if major <= _NEGATIVE:
            continue
        if major <= _TEXT:
            position += argument
        elif major <= _MAP:
            left_inside = argument << (major - _ARRAY)
            items += left_inside
            if items > MAX_ITEMS:
                _refuse(f"it holds more than {MAX_ITEMS} items")
            outer.append((left, in_map))
            if len(outer) > MAX_DEPTH:
                _refuse(f"it is nested deeper than {MAX_DEPTH} levels")
            left, in_map = left_inside, major == _MAP
        elif major == _TAG:
            _refuse(f"it holds CBOR tag {argument}; only plain values are taken")
        elif (mask := _EXPONENT_MASKS.get(info)) is not None:
            if argument & mask == mask:
                _refuse("it holds a number that is not finite")
        elif info not in (_FALSE, _TRUE, _NULL):
            _refuse("it holds undefined or an unassigned simple value")
    if left or position > end:
        _refuse("it ends in the middle of its map")
    if position < end:
        _refuse(f"{end - position} bytes follow its map")


def _refuse(why: str, cause: Exception | None = None) -> NoReturn:
    message = f"a frame cannot be taken: {why}"
    raise RemoteProtocolError(message) from cause


_LEAVES = frozenset((str, bool, bytes, type(None)))
"""Types of what is plain without a look at it."""

_LARGE = 2**64


def _check_plain(value: Any, depth: int = 1) -> int:
    """Refuse what `_scan` at the other end would, and what crashes cbor2 (deep nesting does).

    Returns:
        How many items the value is.
    """
    # Types for the checkers: a cast would be a call.
    pairs: dict[object, object] = value
    several: list[Any] = value
    is_map = isinstance(value, dict)
    if not is_map and not isinstance(value, list | tuple):
        _check_leaf(value)
        return 1
    if depth > MAX_DEPTH:
        raise LocalProtocolError(f"a value is nested deeper than {MAX_DEPTH} levels")
    items = 1
    if is_map:
        for key, item in pairs.items():
            if not isinstance(key, str):
                raise LocalProtocolError(f"a key is {type(key).__name__}, not str")
            # Most items of our frames are one of these, and a call for each takes longer.
            kind = type(item)
            number: Any = item
            if (
                kind in _LEAVES
                or (kind is float and isfinite(number))
                or (kind is int and -_LARGE <= number < _LARGE)
            ):
                items += 2
            else:
                items += 1 + _check_plain(item, depth + 1)
    else:
        for item in several:
            items += 1 if type(item) in _LEAVES else _check_plain(item, depth + 1)
    return items


def _check_leaf(value: object) -> None:
    """Refuse a value without items that may not be sent."""
    if type(value) in _LEAVES or isinstance(value, str | bytes):
        return
    if isinstance(value, int):
        if not -_LARGE <= value < _LARGE:
            raise LocalProtocolError("an integer does not fit into 64 bits")
    elif isinstance(value, float):
        if not isfinite(value):
            raise LocalProtocolError(f"{value} is not a finite number")
    else:
        raise LocalProtocolError(
            f"{type(value).__name__} is not a plain value",
            hint="Send dict, list, tuple, str, bytes, int, float, bool and None only.",
        )


def without_surrogates(text: str) -> str:
    """Join split pairs of surrogates; others, which UTF-8 cannot hold, become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return {_without_surrogates(key): _without_surrogates(item) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in cast("list[object]", value)]
    return value
