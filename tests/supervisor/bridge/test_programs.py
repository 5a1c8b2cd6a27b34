"""Programs of the bridge: what a call may pass to one, and what a caller is told of it."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsm.wire.errors import BadRequestError
from nsmd.bridge import programs
from nsmd.bridge.programs import (
    MAX_ARGUMENT_BYTES,
    MAX_ARGUMENTS,
    MAX_TOGETHER_BYTES,
    Program,
    ProgramEnd,
    check_arguments,
)

WORDS = {
    ";": "semicolon (;)",
    "|": "pipe (|)",
    "&": "ampersand (&)",
    "$": "dollar sign ($)",
    "`": "backtick (`)",
    "(": "opening parenthesis (()",
    ")": "closing parenthesis ())",
    "{": "opening brace ({)",
    "}": "closing brace (})",
    "[": "opening bracket ([)",
    "]": "closing bracket (])",
    "<": "less-than (<)",
    ">": "greater-than (>)",
    "\n": "newline",
    "\r": "carriage return",
    "\0": "NUL",
}
"""Each character that the specification refuses, as it is told."""

DEPLOY = Program(
    name="deploy", description="d", command="/bin/true", documentation="", source="/x.md"
)
FREE = replace(DEPLOY, allow_options=True)


def refusal(arguments: object, program: Program = FREE) -> BadRequestError:
    with pytest.raises(BadRequestError) as caught:
        check_arguments(program, arguments)
    return caught.value


@pytest.mark.parametrize(("character", "word"), WORDS.items(), ids=map(ascii, WORDS))
def test_a_forbidden_character_is_refused_wherever_it_stands(character: str, word: str) -> None:
    for before, after in (("", ""), ("a", ""), ("é\U0001f600", " "), ("x" * 5000, "")):
        argument = before + character + after
        for arguments in ([argument], ["ok", argument], ["", "-", argument, ""]):
            error = refusal(arguments)
            assert str(error) == f"Invalid character in argument: {word} not allowed"
            at = arguments.index(argument) + 1
            assert error.data == {"argument": at, "character": character}


@given(st.text("".join(WORDS) + "ab -/", max_size=12))
def test_the_first_forbidden_character_is_told(argument: str) -> None:
    bad = [character for character in argument if character in WORDS]
    if bad:
        assert refusal([argument]).data["character"] == bad[0]
        # Before options, numbers and lengths.
        many = refusal(["-" + argument] * 10_000, replace(DEPLOY, max_args=0))
        assert many.data["character"] == bad[0]
    else:
        assert check_arguments(FREE, [argument]) == (argument,)


def test_characters_that_only_look_forbidden_are_data() -> None:
    """Whatever becomes a forbidden character when somebody normalises it, and more."""
    alike = [
        chr(point)
        for point in range(0x80, 0x110000)
        if not 0xD800 <= point < 0xE000
        and not WORDS.keys().isdisjoint(unicodedata.normalize("NFKC", chr(point)))
    ]
    assert {"\uff1b", "\uff5c", "\uff06", "\uff04", "\uff40", "\uff08"} <= set(alike)
    for character in (*alike, "\u037e", "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\u2215"):
        assert check_arguments(DEPLOY, [f"a{character}b"]) == (f"a{character}b",)


def test_everything_else_is_passed_on_as_it_is() -> None:
    others = [chr(c) for c in range(0x180) if chr(c) not in WORDS]
    data = ["", " ", "..", "../../etc/passwd", "~", "~root", "*", "%s", "\\", "'", '"', "!", "#x"]
    assert check_arguments(FREE, [*others, *data]) == (*others, *data)
    assert check_arguments(DEPLOY, None) == check_arguments(DEPLOY, []) == ()


@pytest.mark.parametrize(
    "arguments",
    ["ls -l", b"x", 7, {"a": "b"}, [1], [None], [b"x"], [["a"]], [True], ["a", {}], {"x"}],
    ids=repr,
)
def test_arguments_are_a_list_of_text(arguments: object) -> None:
    assert "text" in str(refusal(arguments))


def test_half_a_character_is_refused() -> None:
    for half in ("\ud800", "a\udfff", "\udc80x"):
        assert "half a character" in str(refusal([half]))
        assert refusal([half + ";"]).data["character"] == ";"


def test_options_need_to_be_allowed() -> None:
    for option in ("-", "--", "-x", "--force=yes", "-\u00a0"):
        assert "Argument 2 begins with a hyphen" in str(refusal(["staging", option], DEPLOY))
        assert check_arguments(FREE, ["staging", option]) == ("staging", option)
    for alike in ("\u2010x", "\u2212x", "\ufe63x", " -x", "x-", "a--b"):
        assert check_arguments(DEPLOY, [alike]) == (alike,)


def test_arguments_are_bounded_in_number() -> None:
    assert len(check_arguments(DEPLOY, ["x"] * MAX_ARGUMENTS)) == MAX_ARGUMENTS
    for most, given_ in ((None, 10_000), (2, 3), (0, 1)):
        error = str(refusal(["x"] * given_, replace(DEPLOY, max_args=most)))
        assert f"{given_} were given" in error
    assert check_arguments(replace(DEPLOY, max_args=2), ["x", "y"]) == ("x", "y")
    # The first of millions are looked at: all of them would take seconds of the event loop.
    late = [";" if number == 99_999 else "x" for number in range(100_000)]
    assert "1000 are possible" in str(refusal(late))


def test_arguments_are_bounded_in_bytes() -> None:
    for character in ("x", "é", "\U0001f600"):
        fits = character * (MAX_ARGUMENT_BYTES // len(character.encode()))
        assert check_arguments(DEPLOY, [fits]) == (fits,)
        assert f"at most {MAX_ARGUMENT_BYTES}" in str(refusal([fits + character], DEPLOY))
    part = "x" * (MAX_TOGETHER_BYTES // 16)
    assert len(check_arguments(DEPLOY, [part] * 16)) == 16
    assert f"at most {MAX_TOGETHER_BYTES}" in str(refusal([part] * 16 + ["x"], DEPLOY))


KILLED: dict[str, Any] = {"exit_code": None, "signal": 9}


@pytest.mark.parametrize(
    ("ended", "text"),
    [
        ({"exit_code": 0}, "Done (no output)."),
        ({"exit_code": 0, "stdout": "a", "stderr": "w\n"}, "a\n[stderr]\nw\n"),
        (
            {"exit_code": 1, "stderr": "no host\n", "stdout": "step 1\n"},
            "Command failed (exit 1): no host\n[stdout]\nstep 1",
        ),
        ({"exit_code": 2, "stdout": "u\n", "stderr": " \n"}, "Command failed (exit 2): u"),
        (KILLED | {"signal": 11, "stderr": "o\n"}, "Command failed (killed by SIGSEGV): o"),
        (KILLED | {"signal": 40}, "Command failed (killed by signal 40) (no output)"),
        (KILLED | {"why_stopped": "timeout", "timeout_s": 0.5}, "Timed out after 0.5 s"),
        (
            {"exit_code": 0, "why_stopped": "timeout", "stdout": "a\n", "stderr": "b\n"},
            "Timed out after 300 s\n[stdout]\na\n[stderr]\nb",
        ),
        (KILLED | {"why_stopped": "cancelled", "duration_s": 2.04}, "Cancelled after 2 s"),
        (
            KILLED | {"why_stopped": "shutdown", "duration_s": 0.04},
            "Stopped after 0.04 s: nsm's supervisor ends",
        ),
        (
            {"exit_code": 3, "stderr": "half\n", "left": 2},
            "Command failed (exit 3): half\n[2 processes go on in the background]",
        ),
    ],
)
def test_a_result_tells_how_the_program_ended(ended: dict[str, Any], text: str) -> None:
    assert programs.result_text(ProgramEnd(**ended)) == text


def test_a_name_that_is_not_found_does_not_flood_the_answer() -> None:
    said = programs.program_not_found("x\x1b[2J" + "y" * 100_000, [f"p{i}" for i in range(10_000)])
    assert said.startswith("Program 'x [2Jyyy")
    assert said.endswith("p49 and 9950 more")
    assert said.isprintable()
    assert len(said) < 500
    assert len(programs.list_text([replace(DEPLOY, description="x" * 10_000)])) < 250
