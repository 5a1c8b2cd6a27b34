"""Check of a call's arguments, character by character: characters that programs and scripts could
take for more than text are refused, for every program.

Everything else is data: no shell reads it. So control characters, and characters that only look
like refused ones, pass unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

from nsm.wire.errors import BadRequestError
from nsmd.bridge.programs import MAX_ARGUMENTS, Program

FORBIDDEN: Mapping[str, str] = MappingProxyType(
    {
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
)
"""Characters that no argument may have, and their names."""

MAX_LOOKED_AT = 16 * MAX_ARGUMENTS
"""Largest number of arguments whose characters are checked; a call with more is useless anyway."""

MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""Largest size of one argument: MAX_ARG_STRLEN of Linux (execve(2)), less the NUL at its end."""

MAX_TOGETHER_BYTES = 1024 * 1024
"""Largest size of all arguments: with the environment, far from the usual limit of `execve` (2
MiB).
"""

_REFUSED_BYTES = "".join(FORBIDDEN).encode()
_REFUSED = re.compile("[" + re.escape("".join(FORBIDDEN)) + "]")


def invalid_character(character: str) -> str:
    """Return why an argument with one of `FORBIDDEN` is refused."""
    return f"Invalid character in argument: {FORBIDDEN[character]} not allowed"


def check_characters(arguments: object) -> tuple[str, ...]:
    """Check arguments as a client sent them (None for none), as far as possible before the program
    is known; they are returned unchanged. A `BadRequestError` says that they are no list of text,
    have a refused character, or are more than any program takes.
    """
    if arguments is None:
        return ()
    if not isinstance(arguments, list | tuple):
        raise BadRequestError(
            "`args` must be a list of text, one element for each argument.",
            hint='Send for example ["--env", "staging"], not one line.',
        )
    given = cast("Sequence[object]", arguments)
    checked: list[str] = []
    # The event loop waits for this, and a message has room for millions.
    for position, argument in enumerate(given[:MAX_LOOKED_AT], 1):
        if not isinstance(argument, str):
            kind = type(argument).__name__
            raise BadRequestError(
                f"Argument {position} must be text; it is of type {kind}.",
                hint="Put it in quotes.",
                data={"argument": position},
            )
        _check_text(argument, position)
        checked.append(argument)
    if len(given) > MAX_LOOKED_AT:
        raise BadRequestError(
            f"Too many arguments: {len(given)} were given, at most {MAX_ARGUMENTS} are possible."
        )
    return tuple(checked)


def _check_text(argument: str, position: int) -> None:
    """Check the characters of one argument."""
    # The event loop waits for this. Removing all refused characters and comparing the lengths takes
    # a millisecond for a megabyte; no byte of another character is one of these.
    half = ""
    try:
        data = argument.encode()
        if len(data.translate(None, _REFUSED_BYTES)) == len(data):
            return
    except UnicodeEncodeError as error:
        half = argument[error.start]
    if found := _REFUSED.search(argument):
        character = found[0]
        raise BadRequestError(
            invalid_character(character), data={"argument": position, "character": character}
        )
    raise BadRequestError(
        f"Argument {position} has half a character (U+{ord(half):04X}), which is no text.",
        hint="Send it as UTF-8.",
        data={"argument": position},
    )


def check(program: Program, arguments: object) -> tuple[str, ...]:
    """Check arguments as a client sent them (None for none) for a program; they are returned
    unchanged. A `BadRequestError` is as in `check_characters`, or says that they are too many or
    too long for it, or begin with a hyphen although the program takes no options.
    """
    checked = check_characters(arguments)
    most = MAX_ARGUMENTS if program.max_args is None else min(program.max_args, MAX_ARGUMENTS)
    if len(checked) > most:
        takes = f"at most {most}" if most else "none"
        raise BadRequestError(
            f"Too many arguments: {len(checked)} were given, {program.name} takes {takes}.",
            hint=_see(program),
        )
    together = 0
    for position, argument in enumerate(checked, 1):
        length = len(argument.encode())
        together += length
        if length > MAX_ARGUMENT_BYTES:
            raise BadRequestError(
                f"Argument {position} has {length} bytes; at most {MAX_ARGUMENT_BYTES} are "
                "possible.",
                data={"argument": position},
            )
        if argument.startswith("-") and not program.allow_options:
            raise BadRequestError(
                f"Argument {position} begins with a hyphen (-): {program.name} takes no options.",
                hint=_see(program),
                data={"argument": position},
            )
    if together > MAX_TOGETHER_BYTES:
        raise BadRequestError(
            f"The arguments have {together} bytes together; at most {MAX_TOGETHER_BYTES} are "
            "possible."
        )
    return checked


def _see(program: Program) -> str:
    """Hint: models have a tool for the documentation, people a command."""
    return f"See help('{program.name}'), or `nsm bridge help {program.name}`."
