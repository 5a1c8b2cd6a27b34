"""Stand-ins for values: made, found in requests, and put in the place of values in responses; pure.

Code sees stand-ins only. A stand-in has the length of its value, so that a response in which one
replaces the other has the length that the server has said.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import string
from collections.abc import Callable, Iterable, Mapping, Sequence

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

_CLASSES = (string.ascii_lowercase, string.ascii_uppercase, string.digits)
_PRINTABLE_BYTES = bytes(range(0x21, 0x7F))
_PRINTABLE = frozenset(_PRINTABLE_BYTES)

_Shape = tuple[frozenset[int], ...]
"""The bytes that may be at each place of a text."""

_ALL_SEXTETS = bytes.fromhex(
    "00108310518720928b30d38f41149351559761969b71d79f8218a39259a7a29aabb2dbafc31cb3d35db7e39ebbf3dfbf"
)
"""Bytes of which base64 makes its whole alphabet, in order."""

_ESCAPE = re.compile(rb'\\u00([0-9a-fA-F]{2})|%([0-9a-fA-F]{2})|\\([/"\\])')
_ESCAPE_BEGINS = re.compile(rb"\\(?:u(?:0(?:0[0-9a-fA-F]?)?)?)?|%[0-9a-fA-F]?")


def make_stand_in(value: str) -> str:
    """Make a random text of the same shape: length, known prefix, and kind of each character."""
    prefix, shaped = _shown(value)
    rest = value[len(prefix) :]
    while True:
        made = "".join(map(_like if shaped else _any, rest))
        if made != rest:
            return prefix + made


def _shown(value: str) -> tuple[str, bool]:
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


def _like(character: str) -> str:
    for kind in _CLASSES:
        if character in kind:
            return secrets.choice(kind)
    return character


def _any(_: str) -> str:
    return secrets.choice(string.ascii_letters + string.digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A header's value for the server.

    Attributes:
        names: the secrets whose stand-ins were replaced.
    """

    value: bytes
    names: tuple[str, ...]


def replace_in_header(name: bytes, value: bytes, known: Mapping[str, tuple[str, str]]) -> Replaced:
    """Put values in the place of stand-ins, also within `Basic` credentials.

    Args:
        name: the header's, in lower case.
        known: stand-in and value of each secret, by name.
    """
    credentials = _basic(name, value)
    if credentials is None:
        return _replace(value, known)
    inner = _replace(credentials, known)
    if not inner.names:
        return Replaced(value=value, names=())
    return Replaced(value=b"Basic " + base64.b64encode(inner.value), names=inner.names)


def find_in_header(name: bytes, value: bytes, stand_ins: Mapping[str, str]) -> str | None:
    """Name a secret whose stand-in is in a header; None if there is none."""
    credentials = _basic(name, value)
    return find(value if credentials is None else credentials, stand_ins)


def find(data: bytes, stand_ins: Mapping[str, str]) -> str | None:
    """Name a secret whose stand-in is in these bytes, perhaps with `%` escapes; None if none is."""
    from urllib.parse import unquote_to_bytes  # noqa: PLC0415 - 4 ms, for requests only

    texts = (data, unquote_to_bytes(data)) if b"%" in data else (data,)
    for name, stand_in in stand_ins.items():
        if any(stand_in.encode() in text for text in texts):
            return name
    return None


def _replace(value: bytes, known: Mapping[str, tuple[str, str]]) -> Replaced:
    names: list[str] = []
    for name, (stand_in, real) in known.items():
        if stand_in.encode() in value:
            value = value.replace(stand_in.encode(), real.encode())
            names.append(name)
    return Replaced(value=value, names=tuple(names))


def _basic(name: bytes, value: bytes) -> bytes | None:
    if name != b"authorization" or value[:6].lower() != b"basic ":
        return None
    try:
        return base64.b64decode(value[6:].strip(), validate=True)
    except binascii.Error:
        return None


class Patterns:
    """All forms of values that are looked for in what servers send.

    A value is found as it is, with JSON's and URLs' escapes (`\\u0041`, `\\/`, `%41`), and in
    base64 of any text that has it in it.

    What is kept back depends on the shape of a value only, which its stand-in shows anyway: code
    sees where pieces end. Were it the value itself, a host that sends back what code has written
    would tell whether that begins the value, and so all of it, character by character.

    Args:
        pairs: value and stand-in of each secret.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._plain: dict[bytes, bytes] = {}
        self._escaped: list[_EscapedValue] = []
        self._shapes: set[_Shape] = set()
        for real, stand_in in pairs:
            shape = _shape(real)
            self._plain[real.encode()] = stand_in.encode()
            self._escaped.append(_EscapedValue(real, stand_in, shape))
            self._shapes.add(shape)
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                for shift in range(3):
                    core = _core(encode(b"\0" * shift + real.encode()), shift, len(real))
                    other = _core(encode(b"\0" * shift + stand_in.encode()), shift, len(stand_in))
                    self._plain.setdefault(core, other)
                    self._shapes.add(_core_shape(shape, shift, encode(_ALL_SEXTETS)))
        # A value that has another one in it comes first: its ends would be left.
        self._plain = dict(sorted(self._plain.items(), key=lambda pair: -len(pair[0])))
        self._firsts = frozenset(b"\\%").union(*(shape[0] for shape in self._shapes if shape))
        self._window = max((each.longest for each in self._escaped), default=1) - 1
        self.same_length = all(len(real) == len(other) for real, other in self._plain.items())

    def replace(self, data: bytes) -> bytes:
        """Put stand-ins in the place of values in a text that is all there."""
        for pattern, stand_in in self._plain.items():
            if pattern in data:
                data = data.replace(pattern, stand_in)
        if b"\\" in data or b"%" in data:
            for each in self._escaped:
                data = each.replace(data)
        return data

    def begins_at(self, data: bytes) -> int:
        """Return where a value may begin that is not complete; the length if none may."""
        escape = max(data.rfind(b"\\"), data.rfind(b"%"))
        start = max(len(data.rstrip(_PRINTABLE_BYTES)), len(data) - self._window)
        for place in range(start, len(data)):
            if data[place] not in self._firsts:
                continue
            rest = data[place:]
            if any(_may_begin(shape, rest) for shape in self._shapes):
                return place
            if place <= escape and any(each.may_begin(rest) for each in self._escaped):
                return place
        return len(data)


class Redactor:
    """Puts stand-ins in the place of values in one text that comes piece by piece.

    Bytes that may begin a value are kept back until it is known.

    Args:
        patterns: returns the present ones: a value may change while a long response comes.
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


class _EscapedValue:
    """A value any characters of which may be escaped."""

    def __init__(self, real: str, stand_in: str, shape: _Shape) -> None:
        self._shape = shape
        self._stand_in = stand_in
        self._pattern = re.compile(b"".join(map(_either, real)))
        self._character = re.compile(rb"\\u00[0-9a-fA-F]{2}|%[0-9a-fA-F]{2}|\\.|.", re.DOTALL)
        self.longest = 6 * len(real)

    def replace(self, data: bytes) -> bytes:
        return self._pattern.sub(lambda found: self._like(found.group()), data)

    def may_begin(self, data: bytes) -> bool:
        """Return whether these bytes, which are the last, may begin a value of this shape."""
        places = {0}
        for allowed in self._shape:
            following: set[int] = set()
            for place in places:
                if _ESCAPE_BEGINS.fullmatch(data, place):
                    return True
                if data[place] in allowed:
                    following.add(place + 1)
                escape = _ESCAPE.match(data, place)
                if (
                    escape
                    and (escape[3] or bytes((int(escape[1] or escape[2], 16),)))[0] in allowed
                ):
                    following.add(escape.end())
            if len(data) in following:
                return True
            if not following:
                return False
            places = following
        return False

    def _like(self, found: bytes) -> bytes:
        """Escape the stand-in as the value was."""
        parts = self._character.findall(found)
        if len(parts) != len(self._stand_in):
            return self._stand_in.encode()
        made = b""
        for part, character in zip(parts, self._stand_in, strict=True):
            if part[:2] == b"\\u":
                made += b"\\u%04x" % ord(character)
            elif part[:1] == b"%" and len(part) == 3:
                made += b"%%%02X" % ord(character)
            elif len(part) == 2 and not character.isalnum():
                made += b"\\" + character.encode()
            else:
                made += character.encode()
        return made


def _forms(character: int) -> Sequence[bytes]:
    forms = [bytes((character,)), b"\\u%04x" % character, b"%%%02x" % character]
    if character in b'/"\\':
        forms.append(b"\\" + bytes((character,)))
    return sorted(forms, key=len, reverse=True)


def _either(character: str) -> bytes:
    forms = _forms(ord(character))
    # Digits of hexadecimal numbers in either case, and nothing else.
    either = [re.escape(form) if len(form) < 3 else b"(?i:%s)" % re.escape(form) for form in forms]
    return b"(?:" + b"|".join(either) + b")"


def _core(encoded: bytes, shift: int, length: int) -> bytes:
    """The characters of base64 that depend on the value alone, and not on what is around it."""
    first = -(-8 * shift // 6)
    last = 8 * (shift + length) // 6
    return encoded[first:last]


def _shape(value: str) -> _Shape:
    """The bytes that may be at each place of a value, as its stand-in shows them."""
    prefix, shaped = _shown(value)
    kinds = [frozenset(kind.encode()) for kind in _CLASSES]
    shape: list[frozenset[int]] = []
    for place, byte in enumerate(value.encode()):
        if place < len(prefix):
            shape.append(frozenset((byte,)))
        elif shaped:
            shape.append(next((kind for kind in kinds if byte in kind), frozenset((byte,))))
        else:
            shape.append(_PRINTABLE)
    return tuple(shape)


def _core_shape(shape: _Shape, shift: int, alphabet: bytes) -> _Shape:
    """The same for the characters of base64 that `_core` returns.

    Args:
        alphabet: the 64 characters.
    """
    made: list[frozenset[int]] = []
    for place in range(-(-8 * shift // 6), 8 * (shift + len(shape)) // 6):
        byte, bit = divmod(6 * place, 8)
        first = {(each << bit & 0xFF) >> 2 for each in shape[byte - shift]}
        second = {0}
        if bit > 2:
            second = {each >> (10 - bit) for each in shape[byte - shift + 1]}
        made.append(frozenset(alphabet[one | other] for one in first for other in second))
    return tuple(made)


def _may_begin(shape: _Shape, data: bytes) -> bool:
    """Return whether these bytes may begin a longer text of this shape."""
    return len(data) < len(shape) and all(
        byte in allowed for allowed, byte in zip(shape, data, strict=False)
    )
