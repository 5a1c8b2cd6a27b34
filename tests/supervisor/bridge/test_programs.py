"""Texts about the bridge's programs, word for word."""

from __future__ import annotations

from typing import Any

import pytest

from nsmd.bridge import programs
from nsmd.bridge.programs import FORBIDDEN, Program, ProgramEnd, invalid_character


def program(name: str, description: str = "Does it.", documentation: str = "") -> Program:
    return Program(
        name=name,
        description=description,
        command=f"/opt/{name}",
        documentation=documentation,
        source=f"/tools/{name}.md",
    )


@pytest.mark.parametrize(
    ("character", "word"),
    [
        (";", "semicolon (;)"),
        ("|", "pipe (|)"),
        ("&", "ampersand (&)"),
        ("$", "dollar sign ($)"),
        ("`", "backtick (`)"),
        ("(", "opening parenthesis (()"),
        (")", "closing parenthesis ())"),
        ("{", "opening brace ({)"),
        ("}", "closing brace (})"),
        ("[", "opening bracket ([)"),
        ("]", "closing bracket (])"),
        ("<", "less-than (<)"),
        (">", "greater-than (>)"),
        ("\n", "newline"),
        ("\r", "carriage return"),
        ("\0", "NUL"),
    ],
)
def test_every_forbidden_character_has_a_word(character: str, word: str) -> None:
    said = invalid_character(character)
    assert said == f"Invalid character in argument: {word} not allowed"
    assert said.isprintable()


def test_no_other_character_is_forbidden() -> None:
    assert set(FORBIDDEN) == set(";|&$`(){}[]<>\n\r\0")


@pytest.mark.parametrize(
    ("ended", "text"),
    [
        ({"exit_code": 0}, "Done (no output)."),
        ({"exit_code": 0, "stdout": "a\nb\n"}, "a\nb\n"),
        ({"exit_code": 0, "stdout": "a"}, "a"),
        ({"exit_code": 0, "stdout": "a", "stderr": "w\n"}, "a\n[stderr]\nw\n"),
        ({"exit_code": 0, "stderr": "w\n"}, "[stderr]\nw\n"),
        ({"exit_code": 1, "stderr": "no host\n"}, "Command failed (exit 1): no host"),
        (
            {"exit_code": 1, "stderr": "no host\n", "stdout": "step 1\n"},
            "Command failed (exit 1): no host\n[stdout]\nstep 1",
        ),
        ({"exit_code": 2, "stdout": "usage\n"}, "Command failed (exit 2): usage"),
        ({"exit_code": 2, "stdout": "u\n", "stderr": " \n"}, "Command failed (exit 2): u"),
        ({"exit_code": 255}, "Command failed (exit 255) (no output)"),
        (
            {"exit_code": None, "signal": 11, "stderr": "oops\n"},
            "Command failed (killed by SIGSEGV): oops",
        ),
        ({"exit_code": None, "signal": 40}, "Command failed (killed by signal 40) (no output)"),
        (
            {"exit_code": None, "signal": 15, "why_stopped": "timeout"},
            "Timed out after 300 s",
        ),
        (
            {"exit_code": None, "signal": 9, "why_stopped": "timeout", "timeout_s": 0.5},
            "Timed out after 0.5 s",
        ),
        (
            {"exit_code": 0, "why_stopped": "timeout", "stdout": "a\n", "stderr": "b\n"},
            "Timed out after 300 s\n[stdout]\na\n[stderr]\nb",
        ),
        (
            {"exit_code": None, "signal": 9, "why_stopped": "cancelled", "duration_s": 2.04},
            "Cancelled after 2 s",
        ),
        (
            {"exit_code": None, "signal": 9, "why_stopped": "shutdown", "duration_s": 0.04},
            "Stopped after 0.04 s: nsm's supervisor ends",
        ),
        (
            {"exit_code": 0, "stdout": "up\n", "left": 1},
            "up\n[1 process goes on in the background]",
        ),
        ({"exit_code": 0, "left": 2}, "Done (no output).\n[2 processes go on in the background]"),
        (
            {"exit_code": 3, "stderr": "half\n", "left": 2},
            "Command failed (exit 3): half\n[2 processes go on in the background]",
        ),
    ],
)
def test_results(ended: dict[str, Any], text: str) -> None:
    assert programs.result_text(ProgramEnd(**ended)) == text


def test_a_name_that_is_not_found() -> None:
    assert (
        programs.program_not_found("foo", ["deploy_prod", "restart_db"])
        == "Program 'foo' not found. Available: deploy_prod, restart_db"
    )
    assert programs.program_not_found("foo", []) == "Program 'foo' not found. Available: none"


def test_what_was_asked_for_does_not_flood_the_answer() -> None:
    said = programs.program_not_found("x\x1b[2J" + "y" * 100_000, [f"p{i}" for i in range(10_000)])
    assert said.startswith("Program 'x [2Jyyy")
    assert said.endswith("p49 and 9950 more")
    assert said.isprintable()
    assert len(said) < 500


def test_lists_and_help() -> None:
    deploy = program("deploy_prod", "Deploys\nthe app.", "# Deploy\n\nTakes a version.\n")
    assert (
        programs.list_text([deploy, program("b")])
        == "- deploy_prod: Deploys the app.\n- b: Does it."
    )
    assert programs.list_text([]) == "No programs are available."
    assert programs.help_text(deploy) == "# Deploy\n\nTakes a version.\n"
    assert programs.help_text(program("b", documentation="\n")) == "Does it."
    assert len(programs.list_text([program("b", "x" * 10_000)])) < 250


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(300.0, "300 s"), (0.5, "0.5 s"), (0.041, "0.041 s"), (0.0, "0 s"), (1e6, "1000000 s")],
)
def test_times(duration_s: float, text: str) -> None:
    assert programs.seconds(duration_s) == text
