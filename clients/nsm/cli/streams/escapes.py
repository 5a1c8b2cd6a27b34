"""Output of jailed programs, made safe for a terminal, piece by piece. Pure.

A terminal obeys what it is sent: it can be told to set its title or the clipboard, to answer as if
somebody had typed, to move up and write over what is there (CVE-2003-0063 and its kin). What code
in a session prints may have been chosen by a model, so only what shows text in its place gets
through: characters, tabs, line ends, a carriage return (progress bars) and colours. Everything else
that a terminal would act on is made visible, directions of writing included (CVE-2021-42574).
"""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
"""ECMA-48's SGR, with the colons that ISO 8613-6 puts into true colours."""

_BEGUN_COLOUR = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")
"""The end of a piece that may become a colour with the next one."""

_NO_COLOUR = "\x1b[0m"

_CONTROLS = (
    r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 without tab, line feed and return; DEL; C1
    r"\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f"
)
"""Control characters, and those that show nothing or turn the direction. Joiners (U+200C, U+200D)
stay: scripts and emoji need them."""

_ACTED_ON = re.compile(rf"\x1b\[[0-9;:]{{0,32}}m|[{_CONTROLS}]")
"""The first of these, colours, are kept."""

_COVERING = re.compile(rf"[\r{_CONTROLS}]")


class Harmless:
    """The filter for one stream of text."""

    def __init__(self) -> None:
        self._begun = ""
        self._coloured = False

    def take(self, text: str) -> str:
        """A piece of text as it may be shown. The beginning of a colour at its end is kept back."""
        text = self._begun + text
        begun = _BEGUN_COLOUR.search(text)
        self._begun = begun.group() if begun else ""
        if begun:
            text = text[: begun.start()]
        return _ACTED_ON.sub(self._replaced, text)

    def end(self) -> str:
        """Return the text still to show at the end of the stream: colours end with it."""
        rest = "".join(map(_visible, self._begun))
        if self._coloured:
            rest += _NO_COLOUR
        self._begun, self._coloured = "", False
        return rest

    def _replaced(self, found: re.Match[str]) -> str:
        text = found.group()
        if len(text) == 1:
            return _visible(text)
        self._coloured = text not in (_NO_COLOUR, "\x1b[m")
        return text


def harmless(text: str) -> str:
    """A whole text as it may be shown."""
    stream = Harmless()
    return stream.take(text) + stream.end()


def uncovered(text: str) -> str:
    """A whole text that a person is to judge: nothing in it covers other parts of it. Colours and
    carriage returns are made visible, too, since one of the colours is to show nothing."""
    return _COVERING.sub(lambda found: _visible(found.group()), text)


def colourless(text: str) -> str:
    """A text that went through `Harmless`, without its colours."""
    return _COLOUR.sub("", text)


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
