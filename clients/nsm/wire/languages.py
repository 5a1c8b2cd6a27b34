"""Languages of code, and the names that people, models, files and first lines have for them."""

from typing import NamedTuple


class Language(NamedTuple):
    """A language, by the name of the interpreter that runs it.

    Attributes:
        spoken: other names that people and models say.
        programs: names of interpreters, as first lines have them (``#!/usr/bin/env python3``).
        suffixes: suffixes of files.
    """

    name: str
    spoken: tuple[str, ...]
    programs: tuple[str, ...]
    suffixes: tuple[str, ...]


LANGUAGES = (
    Language("python", ("py", "python3"), ("python",), (".py",)),
    Language("bash", ("sh", "shell", "zsh"), ("bash", "sh"), (".sh", ".bash")),
    Language(
        "node",
        ("js", "javascript", "mjs", "nodejs", "ts", "typescript"),
        ("node", "nodejs"),
        (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"),
    ),
)

SPOKEN = {name: language.name for language in LANGUAGES for name in language.spoken}
"""Interpreters by other names of their languages."""


def of_program(program: str) -> str:
    """The language that an interpreter of this name runs; empty if none is known."""
    name = program.rstrip("0123456789.")
    return next((each.name for each in LANGUAGES if name in each.programs), "")


def of_suffix(suffix: str) -> str:
    """The language of files with this suffix, such as ``.py``; empty if none is known."""
    return next((each.name for each in LANGUAGES if suffix in each.suffixes), "")
