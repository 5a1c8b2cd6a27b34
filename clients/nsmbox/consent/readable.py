"""Names that somebody else may have chosen, and values of variables, as people see them. Pure.

A name of a directory can hold anything but NUL: escape sequences that a terminal obeys, line breaks
that begin a line of their own, characters that turn the direction of what stands beside them
(CVE-2021-42574), spaces that look like the end of a column, characters that show nothing or pile up
over other lines. Only what shows itself, in its place, is shown; the rest is spelled out. Screens
are shared and logs kept, so that a value that gives access to something is not shown there, by its
name or by what it looks like.
"""

from __future__ import annotations

import re

from nsm.cli.render.formats import columns

MASKED = "********"
"""Replacement for a secret value, of the same length for all."""

_SECRET_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH(?!OR)|COOKIE|"
    r"(?:^|_)(?:PASS|PAT|PWD)$",
    re.IGNORECASE,
)
"""`PWD` as a whole word says where one is; `DB_PWD` is a password."""

_USER_IN_URL = re.compile(r"(?<=://)[^/?#\s]*@")
"""RFC 3986's userinfo. To the last `@`: people forget to encode the one in their password."""


def names_secret(name: str) -> bool:
    """Return whether the value of a variable of this name must not be shown."""
    return name != "PWD" and _SECRET_NAME.search(name) is not None


def masked(name: str, value: str, *, secret: bool = False) -> str:
    """A value as it may be shown.

    Args:
        secret: it is one, whatever its name.
    """
    if value and (secret or names_secret(name)):
        return MASKED
    return _USER_IN_URL.sub(f"{MASKED}@", value)


_PLAIN = re.compile(r"[A-Za-z0-9_./~:@%+=-]+")
"""Needs neither quotes nor escapes."""

_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and symbols that look like nothing."""

_MAX_MARKS = 2
"""Combining characters over one letter; Vietnamese needs two."""

_CUT = "..."


def legible(text: str) -> str:
    """One name or value: what is not plain is in single quotes, and escaped within.

    Letters of scripts that are written from right to left are spelled out, too: they would turn
    round the digits and signs that stand next to them, those of the next name included.
    """
    return text if _PLAIN.fullmatch(text) else f"'{_spelled(text)}'"


def path(text: str, home: str = "") -> str:
    """A path, with `~` for what is below `home`."""
    if home not in ("", "/"):
        if text == home:
            return "~"
        if text.startswith(f"{home}/"):
            return legible("~" + text[len(home) :])
    return legible(text)


def shortened(text: str, width: int) -> str:
    """The text in at most so many columns: its beginning and, longer, its end. For text that is
    legible already."""
    if columns(text) <= width:
        return text
    room = max(0, width - len(_CUT))
    head = _fitting(text, room // 3)
    tail = _fitting(text[::-1], room - columns(head))[::-1]
    return f"{head}{_CUT}{tail}"[: max(width, len(_CUT))]


def _fitting(text: str, width: int) -> str:
    taken = 0
    for index, character in enumerate(text):
        taken += columns(character)
        if taken > width:
            return text[:index]
    return text


def _spelled(text: str) -> str:
    shown: list[str] = []
    marks = _MAX_MARKS  # none over the quote
    for index, character in enumerate(text):
        if _is_mark(character) and marks < _MAX_MARKS:
            shown.append(character)
            marks += 1
            continue
        marks = 0
        if character in "\\'":
            shown.append(f"\\{character}")
        elif character == " ":
            alone = text[index - 1 : index] not in ("", " ") and text[index + 1 : index + 2] != ""
            shown.append(" " if alone else "\\x20")
        elif _shows_itself(character):
            shown.append(character)
        else:
            shown.append(_escaped(character))
    return "".join(shown)


def _is_mark(character: str) -> bool:
    if character.isascii():
        return False
    from unicodedata import category  # noqa: PLC0415  # rarely needed

    selects_variant = "\ufe00" <= character <= "\ufe0f"  # shows nothing
    return category(character)[0] == "M" and not selects_variant


def _shows_itself(character: str) -> bool:
    if character.isascii():
        return character.isprintable()
    from unicodedata import bidirectional, category  # noqa: PLC0415  # rarely needed

    kind = category(character)
    return (
        (kind[0] in "LN" or kind == "So")
        and character not in _BLANK
        and bidirectional(character) not in ("R", "AL", "AN")
    )


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8, as os.fsdecode has it
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
