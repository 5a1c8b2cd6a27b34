"""Limits of a message's structure, checked before it is parsed. Light: imports nothing heavy.

16 MB of `{},` are five million objects, and seconds in which nobody else is served. The cost of
JSON depends not on its bytes but on its values, and the standard has no limit for these. A string
is one value, and code is full of commas, brackets and quotes. So strings are removed before
counting, unless a count of the whole message shows already that it cannot be too much. That takes a
microsecond for a small message, and for the largest one no longer than parsing it.

In invalid JSON, the part before the first mistake is counted correctly, and no parser gets further.
"""

from __future__ import annotations

MAX_VALUES = 32_768
"""Largest number of arrays and objects with all their members, counted by commas and brackets. A
call has ten, and one for each argument of a program; `nsmd.bridge` checks half as many arguments.
This number takes 10 ms.
"""

MAX_DEPTH = 64
"""Deepest nesting of a message. Ours need 6; later code recurses, this check does not."""

MAX_BARE_BYTES = 1024 * 1024
"""Bytes outside of strings: room for spaces and numbers. Whole numbers of 4,300 digits, the most
that Python reads, take 0.1 ms each.
"""

FEW_VALUES = 256
"""Largest number of values for which all of them may be such numbers."""

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_BRACKETS = b"[]{}"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))


def problem(message: bytes) -> str:
    """Describe how a message exceeds a limit, as a sentence without its subject; empty if it does
    not.

    Args:
        message: a supposed JSON text in UTF-8.
    """
    if b"\0" in message[:2] or message[:2] in _UTF_16:
        return "is not UTF-8"  # there is JSON in which other bytes are quotes
    opened = _opened(message)
    most = MAX_VALUES if len(message) <= MAX_BARE_BYTES else FEW_VALUES
    if opened <= MAX_DEPTH and opened + message.count(b",") <= most:
        return ""
    bare = _bare(message)
    if bare is None or _opened(bare) + bare.count(b",") > MAX_VALUES:
        return f"holds more than {MAX_VALUES:,} values"
    if len(bare) > MAX_BARE_BYTES:
        return f"has more than {MAX_BARE_BYTES:,} bytes outside of strings"
    if _opened(bare) > MAX_DEPTH and _depth(bare) > MAX_DEPTH:
        return f"is nested more than {MAX_DEPTH} deep"
    return ""


def _bare(message: bytes) -> bytes | None:
    """Return the text outside of strings; None if there are more strings than values."""
    if b"\\" in message:
        # From the left, so that the last backslash of a row is left if it escapes the next
        # character.
        message = message.replace(b"\\\\", b"").replace(b'\\"', b"")
    most = 4 * MAX_VALUES + 1  # a member has four quotes
    pieces = message.split(b'"', most)
    return None if len(pieces) > most else b"".join(pieces[::2])


def _opened(bare: bytes) -> int:
    return bare.count(b"[") + bare.count(b"{")


def _depth(bare: bytes) -> int:
    deepest = depth = 0
    for bracket in bare.translate(None, _NO_BRACKETS):
        if bracket in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest
