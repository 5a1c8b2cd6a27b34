"""A call's arguments, character by character: what programs and scripts could take for more than
text is refused, whatever the program.

Everything else is data: no shell reads it, so control characters and characters that only look like
those that are refused are let through as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from nsm.wire.errors import BadRequestError
from nsmd.bridge.values import Program
from nsmd.bridge.wording import FORBIDDEN, invalid_character

MAX_ARGUMENTS = 1000
"""Of one call, whatever the program; `max_args` in its definition allows fewer."""

MAX_LOOKED_AT = 16 * MAX_ARGUMENTS
"""Of one call, whose characters are; where there are more, none of them is any use."""

MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""Of one: MAX_ARG_STRLEN of Linux (execve(2)), less the NUL at its end."""

MAX_TOGETHER_BYTES = 1024 * 1024
"""Of all: with the environment, far from what `execve` takes with the usual limits (2 MiB)."""

_REFUSED_BYTES = "".join(FORBIDDEN).encode()
_REFUSED = re.compile("[" + re.escape("".join(FORBIDDEN)) + "]")


def check_characters(arguments: object) -> tuple[str, ...]:
    """Check the arguments as far as is possible before the program is known.

    Args:
        arguments: as a client sent them; None for none.

    Returns:
        The arguments, unchanged.

    Raises:
        BadRequestError: they are no list of text, have a character that is refused, or are more
            than any program takes.
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
    """
    Raises:
        BadRequestError: it has a character that is refused, or half of one.
    """
    # The event loop waits for this. Without what is refused, all are as long as before, which is
    # found out for a megabyte in a millisecond; no byte of another character is one of these.
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
    """Refuse what a program is not started with.

    Args:
        program: that is to have them.
        arguments: as a client sent them; None for none.

    Returns:
        The arguments, unchanged.

    Raises:
        BadRequestError: they are no list of text, have a character that is refused, are too many
            or too long, or begin with a hyphen where the program takes no options.
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
    """Models have a tool for it, people a command."""
    return f"See help('{program.name}'), or `nsm bridge help {program.name}`."
