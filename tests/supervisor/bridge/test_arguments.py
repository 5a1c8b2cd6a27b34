"""Arguments that a call may pass to a program: the part of the attack table about arguments."""

from __future__ import annotations

import itertools
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm.wire.errors import BadRequestError
from nsmd.bridge.programs import (
    FORBIDDEN,
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS,
    MAX_TOGETHER_BYTES,
    Program,
    check_arguments,
    check_characters,
)

REFUSED = ";|&$`(){}[]<>\n\r\0"
"""Characters that the specification refuses."""

DEPLOY = Program(
    name="deploy", description="d", command="/bin/true", documentation="", source="/x.md"
)
FREE = replace(DEPLOY, allow_options=True)


def refusal(arguments: object, program: Program = FREE) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        check_arguments(program, arguments)
    return caught.value


def test_the_characters_are_those_of_the_specification() -> None:
    assert set(FORBIDDEN) == set(REFUSED)
    assert str(refusal(["a;b"])) == "Invalid character in argument: semicolon (;) not allowed"


@pytest.mark.parametrize("character", REFUSED, ids=lambda c: f"U+{ord(c):04X}")
def test_each_character_is_refused_wherever_it_stands(character: str) -> None:
    alone = str(refusal([character]))
    assert alone == f"Invalid character in argument: {FORBIDDEN[character]} not allowed"
    for before, after in itertools.product(("", "a", "é\U0001f600", " ", "x" * 5000), repeat=2):
        argument = before + character + after
        for arguments in ([argument], ["ok", argument], [argument, "ok"], ["", "-", argument, ""]):
            error = refusal(arguments)
            assert str(error) == alone
            assert error.data == {
                "argument": arguments.index(argument) + 1,
                "character": character,
            }


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(REFUSED, 2)))
def test_of_two_the_first_is_told(first: str, second: str) -> None:
    assert refusal([f"a{first}{second}"]).data["character"] == first
    assert refusal([f"a{first}", second]).data["character"] == first


@given(st.text(REFUSED + "ab -/", max_size=12))
def test_combinations(argument: str) -> None:
    bad = [character for character in argument if character in REFUSED]
    if bad:
        assert refusal([argument]).data["character"] == bad[0]
    else:
        assert check_arguments(FREE, [argument]) == (argument,)


def look_alikes() -> list[str]:
    """Whatever becomes one of the refused characters when somebody normalises it, and more."""
    found = [
        chr(point)
        for point in range(0x80, 0x110000)
        if not 0xD800 <= point < 0xE000
        and set(unicodedata.normalize("NFKC", chr(point))) & set(REFUSED)
    ]
    return [*found, "\u037e", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\u2215", "\u2024\u2024"]


def test_look_alikes_are_data() -> None:
    alike = look_alikes()
    assert {"\uff1b", "\uff5c", "\uff06", "\uff04", "\uff40", "\uff08"} <= set(alike)
    for character in alike:
        assert check_arguments(DEPLOY, [f"a{character}b"]) == (f"a{character}b",)


def test_everything_else_is_passed_on_as_it_is() -> None:
    others = [chr(c) for c in range(0x180) if chr(c) not in REFUSED]
    data = ["", " ", "..", "../../etc/passwd", "~", "~root", "*", "%s", "\\", "'", '"', "!", "#x"]
    assert check_arguments(FREE, [*others, *data]) == (*others, *data)


@pytest.mark.parametrize("half", ["\ud800", "a\udfff", "\udc80x"])
def test_half_characters_are_no_arguments(half: str) -> None:
    assert "half a character" in str(refusal([half]))
    assert refusal([half + ";"]).data["character"] == ";"


@pytest.mark.parametrize(
    "arguments",
    ["ls -l", b"x", 7, {"a": "b"}, [1], [None], [b"x"], [["a"]], [True], ["a", {}], {"x"}],
    ids=repr,
)
def test_what_is_no_list_of_text(arguments: object) -> None:
    assert "text" in str(refusal(arguments))


def test_none_are_none() -> None:
    assert check_arguments(DEPLOY, None) == check_arguments(DEPLOY, []) == ()


@pytest.mark.parametrize("option", ["-", "--", "-x", "--force=yes", "-\u00a0"])
def test_options_need_to_be_allowed(option: str) -> None:
    error = refusal(["staging", option], DEPLOY)
    assert "Argument 2 begins with a hyphen (-): deploy takes no options." in str(error)
    assert check_arguments(FREE, ["staging", option]) == ("staging", option)


@pytest.mark.parametrize("alike", ["\u2010x", "\u2212x", "\ufe63x", " -x", "x-", "a--b"])
def test_what_only_looks_like_an_option_is_data(alike: str) -> None:
    assert check_arguments(DEPLOY, [alike]) == (alike,)


def test_characters_are_looked_at_first() -> None:
    """Before options, numbers and lengths: `-;` says what is wrong in any case."""
    error = refusal(["-x;"] * 10_000, replace(DEPLOY, max_args=0))
    assert str(error) == "Invalid character in argument: semicolon (;) not allowed"
    with pytest.raises(BadRequestError, match="semicolon"):
        check_characters(["-x;"])
    assert check_characters(["-x"] * 10_000) == ("-x",) * 10_000


def test_so_many_are_taken_and_no_more() -> None:
    assert len(check_arguments(DEPLOY, ["x"] * MAX_ARGUMENTS)) == MAX_ARGUMENTS
    error = refusal(["x"] * 10_000, DEPLOY)
    assert "10000 were given, deploy takes at most 1000" in str(error)
    two, none = replace(DEPLOY, max_args=2), replace(DEPLOY, max_args=0)
    assert check_arguments(two, ["x", "y"]) == ("x", "y")
    assert "3 were given, deploy takes at most 2" in str(refusal(["x"] * 3, two))
    assert "1 were given, deploy takes none" in str(refusal(["x"], none))
    assert check_arguments(none, []) == ()


def test_of_millions_the_first_are_looked_at() -> None:
    """A message has room for them; looking at all would take seconds of the event loop."""
    assert "1000 are possible" in str(
        refusal([";" if n == 99_999 else "x" for n in range(100_000)])
    )
    assert refusal([";"] * 100_000).data["character"] == ";"


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600"])
def test_long_ones_are_refused_by_their_bytes(character: str) -> None:
    size = len(character.encode())
    fits = character * (MAX_ARGUMENT_BYTES // size)
    assert check_arguments(DEPLOY, [fits]) == (fits,)
    assert f"at most {MAX_ARGUMENT_BYTES}" in str(refusal([fits + character], DEPLOY))


def test_many_long_ones_are_refused_together() -> None:
    part = "x" * (MAX_TOGETHER_BYTES // 16)
    assert len(check_arguments(DEPLOY, [part] * 16)) == 16
    assert f"at most {MAX_TOGETHER_BYTES}" in str(refusal([part] * 16 + ["x"], DEPLOY))
