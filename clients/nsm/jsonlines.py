"""Lines of JSON-RPC without I/O: bytes in, lines out, and what one line holds.

Used by both ends of an MCP attachment, the shim and the supervisor.

The shim's start and memory are measured: importing `json` would cost it 7 ms and 0.4 MB, nearly all
for regular expressions that only its Python half uses. So this drives the C half directly, the same
in CPython 3.11 to 3.13; tests compare it with `json`.
"""

from __future__ import annotations

from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False  # `typing` itself takes 8 ms to import; checkers know this name
if TYPE_CHECKING:
    from typing import Any

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Longest line either end takes. Twice the largest code (`nsmd.model.values.MAX_CODE_BYTES`):
escaping can double a text, and the limit on code should be the one that is met first."""

_SPACE = " \t\r\n"
_KEPT_HEAD_BYTES = 4096
_KEPT_TAIL_BYTES = 1024
"""Kept end of a line that is too long: enough to find its request."""


class TooLong:
    """A line over the limit, of which only the ends are kept.

    Attributes:
        size: length in bytes, without the newline.
        head, tail: its first and last bytes.
    """

    __slots__ = ("head", "size", "tail")

    def __init__(self, size: int, head: bytes, tail: bytes) -> None:
        self.size = size
        self.head = head
        self.tail = tail


class LineBuffer:
    """Cuts a stream of bytes into lines; holds at most one line and one chunk."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._partial = bytearray()
        self._size = 0  # of the line under way, kept bytes or not
        self._head = b""

    def feed(self, chunk: bytes) -> list[bytes | TooLong]:
        """Take bytes; return the lines that are complete now, without their newlines."""
        lines: list[bytes | TooLong] = []
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._add(chunk[start:end])
            lines.append(self._take())
            start = end + 1
        self._add(chunk[start:])
        return lines

    def rest(self) -> bytes:
        """Return the kept bytes after the last newline."""
        return bytes(self._partial)

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        self._partial += piece
        if self._size > self._limit:
            if not self._head:
                self._head = bytes(self._partial[:_KEPT_HEAD_BYTES])
            del self._partial[:-_KEPT_TAIL_BYTES]

    def _take(self) -> bytes | TooLong:
        kept = bytes(self._partial)
        line = TooLong(self._size, self._head, kept) if self._size > self._limit else kept
        self._partial = bytearray()
        self._size = 0
        self._head = b""
        return line


def parse(line: bytes) -> object:
    """Parse a line of JSON.

    Stricter than `json` by default: NaN and Infinity are refused, as the standard has it, and
    nesting too deep for the interpreter is an ordinary error.

    Raises:
        ValueError: it is not JSON; the message says where.
    """
    try:
        text = line.decode("utf-8").strip(_SPACE)
        parsed, end = _scan(text, 0)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 (byte {error.start})") from None
    if end != len(text):
        raise ValueError(f"more than one value (character {end})")
    return parsed


def dump(message: dict[str, object]) -> bytes:
    """A message of plain values as a line of ASCII, without its newline."""
    return "".join(_encode(message, 0)).encode("ascii")


def members(parsed: object) -> list[dict[str, object]]:
    """The messages in a parsed line: one, or those of a batch (revision 2025-03-26 had them)."""
    candidates: list[object] = parsed if isinstance(parsed, list) else [parsed]  # pyright: ignore[reportUnknownVariableType]
    return [message for message in candidates if isinstance(message, dict)]  # pyright: ignore[reportUnknownVariableType]


def first_member(parsed: object) -> dict[str, object]:
    """The object that was parsed; an empty one if it was something else."""
    found = members(parsed)
    return found[0] if found else {}


def request_id(message: dict[str, object]) -> int | str | None:
    """The id of a message when it is one that MCP allows: a string or a whole number."""
    found = message.get("id")
    return found if isinstance(found, str) or type(found) is int else None


def unread_id(line: bytes) -> int | str | None:
    """The id of a request in a line that is no JSON, if it can be read all the same.

    `NaN` and `Infinity` are no JSON, yet several languages write them.
    """
    if line.lstrip()[:1] != b"{":  # a batch: whose fault it is cannot be told
        return None
    found = outline(ends_of(line))
    return request_id(found) if "method" in found else None


def ends_of(line: bytes) -> TooLong:
    """Keep the ends of a whole line, as of one that is too long."""
    return TooLong(len(line), line[:_KEPT_HEAD_BYTES], line[-_KEPT_TAIL_BYTES:])


def outline(line: TooLong) -> dict[str, object]:
    """The top-level members that can still be read at the ends of a line that was too long.

    Clients write the id first (Python's SDK) or last (TypeScript's); either way the one who waits
    for an answer can be found.
    """
    return _trailing(line.tail) | _leading(line.head)


def _leading(head: bytes) -> dict[str, object]:
    text = head.decode("utf-8", "replace")
    found: dict[str, object] = {}
    at = text.find("{") + 1
    while at:
        try:
            key, at = _scan(text, _skip_space(text, at))
            at = _skip_space(text, at)
            if text[at] != ":":
                break
            value, at = _scan(text, _skip_space(text, at + 1))
            at = _skip_space(text, at)
            if not isinstance(key, str) or text[at] != ",":
                break
        except (ValueError, IndexError):
            break
        found[key] = value
        at += 1
    return found


def _trailing(tail: bytes) -> dict[str, object]:
    # The longest rest that reads as members up to the closing brace is what the line ends with.
    # Behind a comma inside a string nothing reads so: quotes are escaped there, or the next one
    # closes it.
    at = tail.find(b",")
    while at >= 0:
        try:
            return first_member(parse(b"{" + tail[at + 1 :]))
        except ValueError:
            at = tail.find(b",", at + 1)
    return {}


def _scan(text: str, at: int) -> tuple[object, int]:
    """The value at a place, and where it ends."""
    try:
        found: tuple[object, int] = _c_scan(text, at)
    except StopIteration as stop:
        raise ValueError(f"no value at character {stop.value}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except SystemError:
        # The scanner has found a mistake, wants to raise `json.JSONDecodeError`, and takes it from
        # the loaded module, which is missing here. Now it is worth its price: with it, the
        # message says what is wrong, and where.
        __import__("json.decoder")
        found = _c_scan(text, at)
    return found


def _skip_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


class _Scanning:
    """Settings that the C scanner asks its context for; all as in `json.JSONDecoder`."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    array_hook = None  # Python 3.15
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_refuse_constant)


def _refuse_value(value: object) -> object:
    raise TypeError(f"{type(value).__name__} is not a JSON value")


_c_scan: Any = make_scanner(_Scanning)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
_encode: Any = make_encoder(
    None, _refuse_value, encode_basestring_ascii, None, ": ", ", ", False, False, False
)
