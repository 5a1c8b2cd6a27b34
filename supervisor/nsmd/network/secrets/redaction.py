"""Values in responses, and the stand-ins that are put in their place; pure."""

from __future__ import annotations

import base64
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from html.entities import html5

from nsm.wire.tuples import NamedTuple
from nsmd.network.secrets.stand_ins import CLASSES, shown

Shape = tuple[frozenset[int], ...]
"""The bytes that may be at each place of a text."""

_PRINTABLE_BYTES = bytes(range(0x21, 0x7F))
_PRINTABLE = frozenset(_PRINTABLE_BYTES)

_Placed = tuple[bytes, list[int]]
"""A text without escapes, and where each byte of it comes from, and its end."""

_ALPHABETS = tuple(
    encode(bytes.fromhex("00108310518720928b30d38f4114935155976196"
                         "9b71d79f8218a39259a7a29aabb2dbafc31cb3d35db7e39ebbf3dfbf"))
    for encode in (base64.b64encode, base64.urlsafe_b64encode)
)  # fmt: skip
"""The characters of base64, in order, and those of its form for URLs."""

_ROUNDS = 3
"""Escapes one in another that are undone: escapes of escapes of escapes."""

_MOST_ESCAPED = 24
"""Most bytes of one character with these: `&amp;amp;#x0000002F;` has 21, and base64 has fewer."""

_LONGEST_PART = 32
"""Bytes of an escape that is not complete."""

_MOST_WORK = 2**31
"""Bits to look at for where a value may begin, after those of the text as it is: some 60 ms."""

_WORK_OF_UNDOING = 2**13
"""Bits that are looked at in the time in which one byte of a text gets rid of its escapes."""

_NAMES = {
    name.encode(): character.encode()
    for name, character in html5.items()
    if len(character) == 1 and "!" <= character <= "~" and name.endswith(";")
}
"""Characters by their names in HTML."""


class _Escapes(NamedTuple):
    """One kind of escapes: the byte that each begins with, one whole escape, as a group, and one
    that is not complete, at the end of a text.
    """

    begin: bytes
    whole: re.Pattern[bytes]
    part: re.Pattern[bytes]


_SYNTAX = frozenset(b"\\%&#;" + (string.ascii_letters + string.digits).encode())
"""The bytes that escapes are made of."""


@lru_cache(100)
def _kinds(characters: frozenset[int]) -> tuple[_Escapes, ...]:
    """The escapes of these characters: no others are undone, which are most of them in a text."""
    codes = _one_of(characters, 16)
    decimal = _one_of(characters, 10)
    names = b"|".join(name for name, each in _NAMES.items() if each[0] in characters)
    itself = re.escape(bytes(characters & frozenset(b"/\"'\\")))
    return (
        _Escapes(  # of JSON and JavaScript
            b"\\",
            re.compile(rb"(\\(?:(?:u00|x)(?:%s)|[%s]))" % (codes, itself)),
            re.compile(rb"\\(?:u(?:0(?:0[2-7]?)?)?|x[2-7]?)?\Z"),
        ),
        _Escapes(b"%", re.compile(rb"(%%(?:%s))" % codes), re.compile(rb"%[2-7]?\Z")),
        _Escapes(
            b"&",
            re.compile(
                rb"(&(?:#[xX]0{0,7}(?:%s)(?![0-9a-fA-F]);?|#0{0,7}(?:%s)(?![0-9]);?|(?:%s)))"
                % (codes, decimal, names)
            ),
            _PART_OF_HTML,
        ),
    )


def _one_of(characters: Iterable[int], base: int) -> bytes:
    """A pattern for the numbers of printable characters."""
    lasts = dict[int, bytes]()
    for each in sorted(characters):
        if 0x20 <= each < 0x80:
            digit = b"%x" % (each % base)
            lasts[each // base] = lasts.get(each // base, b"") + digit
    return b"|".join(b"%d[%s]" % (first, last + last.upper()) for first, last in lasts.items())


_PART_OF_HTML = re.compile(
    b"&(?:#(?:[xX]?[0-9a-fA-F]{0,9})?|(?:%s)?)\\Z"
    % b"|".join(sorted({name[:size] for name in _NAMES for size in range(1, len(name))}))
)


@lru_cache(10_000)
def _escaped(escape: bytes) -> bytes:
    """The character that an escape stands for; a name that is none stays."""
    if escape[:2] == b"&#":
        number = escape[2:].rstrip(b";").lower()
        return bytes((int(number[1:], 16) if number[:1] == b"x" else int(number),))
    if escape[:1] == b"&":
        return _NAMES.get(escape[1:], escape)
    if escape[:1] == b"\\" and len(escape) == 2:
        return escape[1:]
    return bytes.fromhex(escape[-2:].decode())


class Beginnings:
    """Search for the longest beginning of any of several shapes at the end of a text.

    All shapes are one row of bits, in which a bit is 1 while the bytes up to now are those of its
    shape up to there (R. Baeza-Yates, G. Gonnet: A new approach to text searching, 1992).
    """

    def __init__(self, shapes: Collection[Shape]) -> None:
        self.longest = max(map(len, shapes), default=0)
        self._allowed = [0] * 256
        self._starts = 0
        self._rows: list[tuple[int, int]] = []
        """First bit of each shape, and the bits of its beginnings."""
        place = 0
        for shape in shapes:
            self._starts |= 1 << place
            self._rows.append((place, (1 << len(shape) - 1) - 1))
            for allowed in shape:
                for byte in allowed:
                    self._allowed[byte] |= 1 << place
                place += 1
        self._bits = place
        self._bytes = bytes(byte for byte in range(256) if self._allowed[byte])

    def end(self, text: bytes) -> bytes:
        """Return the bytes at the end of a text that may belong to a beginning."""
        last = text[-self.longest :]
        return last[len(last.rstrip(self._bytes)) :]

    def work(self, ends: Iterable[bytes]) -> int:
        """Return how many bits are looked at for these."""
        return self._bits * sum(map(len, ends))

    def length(self, end: bytes) -> int:
        """Return the length of the longest beginning there; 0 if there is none."""
        bits = 0
        for byte in end:
            bits = (bits << 1 | self._starts) & self._allowed[byte]
        return max(((bits >> first & row).bit_length() for first, row in self._rows), default=0)


class Patterns:
    """All forms of values that are looked for in what servers send.

    A value is found as it is, in UTF-16, and in base64 of any text that has one of these in it, or
    that has base64 of the value in it. Each of them is also found with escapes of JSON, JavaScript,
    URLs and HTML, which may be escaped themselves.

    What is kept back depends on the shape of a value only, which its stand-in shows anyway: code
    sees where pieces end. Were it the value itself, a host that sends back what code has written
    would tell whether that begins the value, and so all of it, character by character.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        found: dict[bytes, bytes] = {}
        shapes: set[Shape] = set()
        longest = 0
        for real, stand_in in pairs:
            longest = max(longest, len(real))
            for pattern, other, shape in _forms(real.encode(), stand_in.encode(), _shape(real)):
                found.setdefault(pattern, other)
                shapes.add(shape)
        # A value that has another one in it comes first: its ends would be left.
        self._plain = dict(sorted(found.items(), key=lambda pair: -len(pair[0])))
        characters = frozenset[int]().union(*(each for shape in shapes for each in shape))
        self._characters = bytes(sorted(characters))
        self._kinds = _kinds(characters | _SYNTAX) * _ROUNDS
        # A value may look as if it had escapes in it, which are undone with those around it.
        undone = {
            _all_undone(self._kinds, pattern): other for pattern, other in self._plain.items()
        }
        self._undone = {**undone, **self._plain}
        self._beginnings = Beginnings(shapes)
        self._window = _MOST_ESCAPED * longest
        self.same_length = all(len(real) == len(other) for real, other in self._plain.items())

    def replace(self, data: bytes) -> bytes:
        """Put stand-ins in the place of values in a text that is all there."""
        if not self._plain:
            return data
        for pattern, stand_in in self._plain.items():
            if pattern in data:
                data = data.replace(pattern, stand_in)
        text = data
        steps: list[_Escapes] = []
        without: set[bytes] = set()
        for kind in self._kinds:
            if kind.begin not in text or kind.begin in without:
                continue
            parts = kind.whole.split(text)
            without.add(kind.begin)
            if len(parts) == 1:
                continue
            text = _undo(parts)
            without.clear()
            steps.append(kind)
            # Otherwise they are escapes of escapes, and any value was there before.
            if any(_escaped(each) in self._characters for each in set(parts[1::2])):
                for pattern, stand_in in self._undone.items():
                    if pattern in text:
                        data = _replace_escaped(data, steps, pattern, stand_in)
        return data

    def begins_at(self, data: bytes) -> int:
        """Return where a value may begin that is not complete; the length if none may.

        It is too early where that takes too much work: with long values, and many escapes.
        """
        if not self._plain:
            return len(data)
        window = data[-self._window :]
        start = len(data) - len(window) + len(window.rstrip(_PRINTABLE_BYTES + b"\0"))
        texts = [(data[start:], list(range(start, len(data) + 1)))]
        known = dict[bytes, int]()
        first = self._first(texts[0], known)
        work = -self._beginnings.work(known)
        for kind in self._kinds:
            for text, places in list(texts):
                if found := kind.part.search(text, max(0, len(text) - _LONGEST_PART)):
                    # What follows may complete it, and so may stand for any character.
                    cut = found.start()
                    if (shorter := (text[:cut], places[: cut + 1])) not in texts:
                        texts.append(shorter)
                        first = min(first, places[cut], self._first(shorter, known))
            work += _WORK_OF_UNDOING * sum(len(text) for text, _ in texts if kind.begin in text)
            if work + self._beginnings.work(known) > _MOST_WORK:
                return start
            texts = [
                _undo_in_place(kind, *each) if kind.begin in each[0] else each for each in texts
            ]
            first = min(first, *(self._first(each, known) for each in texts))
        return first

    def _first(self, text: _Placed, known: dict[bytes, int]) -> int:
        """Return where the longest beginning of a value at the end of a text comes from."""
        end = self._beginnings.end(text[0])
        if end not in known:
            known[end] = self._beginnings.length(end)
        return text[1][len(text[0]) - known[end]]


class Redactor:
    """Filter that replaces values by stand-ins in one text that comes piece by piece. Bytes that
    may begin a value are kept back until it is known.

    The patterns are asked for each time: a value may change while a long response comes.
    """

    def __init__(self, patterns: Callable[[], Patterns]) -> None:
        self._patterns = patterns
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those that can be passed on."""
        patterns = self._patterns()
        data = patterns.replace(self._kept + data)
        keep = patterns.begins_at(data)
        self._kept = data[keep:]
        return data[:keep]

    def finish(self) -> bytes:
        """Return the bytes that were kept back: nothing follows."""
        kept, self._kept = self._kept, b""
        return kept


def _undo(parts: list[bytes]) -> bytes:
    """Undo escapes, of which each second part is one."""
    undone = parts[:]
    undone[1::2] = map(_escaped, parts[1::2])
    return b"".join(undone)


def _all_undone(kinds: Iterable[_Escapes], text: bytes) -> bytes:
    for kind in kinds:
        text = _undo(kind.whole.split(text))
    return text


def _undo_in_place(kind: _Escapes, text: bytes, places: list[int]) -> _Placed:
    """Undo escapes of one kind, and note where each byte comes from."""
    made, origins, end = bytearray(), list[int](), 0
    for found in kind.whole.finditer(text):
        character = _escaped(found[0])
        made += text[end : found.start()] + character
        origins += places[end : found.start() + len(character)]
        end = found.end()
    return bytes(made + text[end:]), [*origins, *places[end:]]


def _replace_escaped(
    data: bytes, steps: Iterable[_Escapes], pattern: bytes, stand_in: bytes
) -> bytes:
    """Replace a text wherever it is after some steps of undoing escapes."""
    text, places = data, list(range(len(data) + 1))
    for kind in steps:
        text, places = _undo_in_place(kind, text, places)
    made, end, place = b"", 0, text.find(pattern)
    while place >= 0:
        after = place + len(pattern)
        parts = [data[places[each] : places[each + 1]] for each in range(place, after)]
        made += data[end : places[place]] + _alike(parts, pattern, stand_in)
        end = places[after]
        place = text.find(pattern, after)
    return made + data[end:]


def _alike(parts: Sequence[bytes], real: bytes, stand_in: bytes) -> bytes:
    """Escape a stand-in as the value was, so that it takes the same room."""
    room = sum(map(len, parts))
    made = b""
    if len(stand_in) == len(parts):
        made = b"".join(map(_alike_character, parts, _bytes(real), _bytes(stand_in)))
    return made if len(made) == room else (stand_in + b"0" * room)[:room]


def _alike_character(part: bytes, real: bytes, other: bytes) -> bytes:
    """The same for one character. It takes more or less room where there is no such escape."""
    if part == real or (part[-2:] == b"\\" + real and not other.isalnum()):
        return part[:-1] + other
    if real == other:
        return part
    head, number, tail = part.lower().rpartition(real.hex().encode())
    digits = other.hex().encode()
    if part[:1] == b"%":
        digits = digits.upper()  # RFC 3986, section 2.1
    return part[: len(head)] + digits + tail if number else other


def _core(encoded: bytes, shift: int, length: int) -> bytes:
    """The characters of base64 that depend on the value alone, and not on what is around it."""
    first = -(-8 * shift // 6)
    last = 8 * (shift + length) // 6
    return encoded[first:last]


def _shape(value: str) -> Shape:
    """The bytes that may be at each place of a value, as its stand-in shows them."""
    prefix, shaped = shown(value)
    kinds = [frozenset(kind.encode()) for kind in CLASSES]
    shape: list[frozenset[int]] = []
    for place, byte in enumerate(value.encode()):
        if place < len(prefix):
            shape.append(frozenset((byte,)))
        elif shaped:
            shape.append(next((kind for kind in kinds if byte in kind), frozenset((byte,))))
        else:
            shape.append(_PRINTABLE)
    return tuple(shape)


def _core_shape(shape: Shape, shift: int) -> Shape:
    """The same for the characters of base64 that `_core` returns."""
    made: list[frozenset[int]] = []
    for place in range(-(-8 * shift // 6), 8 * (shift + len(shape)) // 6):
        byte, bit = divmod(6 * place, 8)
        second = shape[byte - shift + 1] if bit > 2 else frozenset((0,))
        made.append(_characters(shape[byte - shift], second, bit))
    return tuple(made)


@lru_cache(1000)
def _characters(first: frozenset[int], second: frozenset[int], bit: int) -> frozenset[int]:
    """The characters of base64 that begin at a bit of the first of two bytes."""
    ones = {(each << bit & 0xFF) >> 2 for each in first}
    others = {each >> (10 - bit) for each in second} if bit > 2 else {0}
    return frozenset(
        alphabet[one | other] for alphabet in _ALPHABETS for one in ones for other in others
    )


def _forms(real: bytes, stand_in: bytes, shape: Shape) -> Iterator[tuple[bytes, bytes, Shape]]:
    """All forms of a value without escapes, with those of its stand-in, and their shapes."""
    zero = frozenset((0,))
    wide = tuple(each for byte in shape for each in (byte, zero))[:-1]
    plain = (real, stand_in, shape)
    utf_16 = (b"\0".join(_bytes(real)), b"\0".join(_bytes(stand_in)), wide)
    yield plain
    yield utf_16  # but for a zero before it or behind it
    for once in _in_base64(*plain):
        yield once
        yield from _in_base64(*once)
    yield from _in_base64(*utf_16)


def _bytes(text: bytes) -> Iterator[bytes]:
    return (text[place : place + 1] for place in range(len(text)))


def _in_base64(real: bytes, stand_in: bytes, shape: Shape) -> Iterator[tuple[bytes, bytes, Shape]]:
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            made = (
                _core(encode(b"\0" * shift + each), shift, len(each)) for each in (real, stand_in)
            )
            yield next(made), next(made), _core_shape(shape, shift)
