"""Programs as their files describe them, calls of them, and results; and their text, for models and
people. No I/O.

A call's arguments are checked character by character: characters that programs and scripts could
take for more than text are refused, for every program. Everything else is data: no shell reads it.
So control characters, and characters that only look like refused ones, pass unchanged.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import Annotated, Literal, cast

from nsm.dataclass import dataclass
from nsm.wire.decode import Constraint, Converted, between
from nsm.wire.errors import BadRequestError
from nsm.wire.jobs import signal_name
from nsmd.model.values import StreamName

Way = Literal["mcp", "http", "control"]
"""Way of a request: over an attachment, over HTTP, or over the control protocol."""

MAX_ARGUMENTS = 1000
"""Largest number of arguments of one call for any program; `max_args` in its definition allows
fewer.
"""

MAX_DESCRIPTION_CHARACTERS = 500
"""Largest description: a line of a list; longer text is documentation."""

DEFAULT_TIMEOUT_S = 300.0

MAX_TIMEOUT_S = 86_400.0
"""A day."""

MAX_VARIABLES = 64

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"

_CONTROLS = frozenset(("Cc", "Cs", "Zl", "Zp"))


def is_control(character: str) -> bool:
    """Return whether a character must not be shown: a control character, half of one, or a
    separator that ends lines only for YAML and some terminals."""
    return not character.isprintable() and unicodedata.category(character) in _CONTROLS


def _plain(text: str) -> str:
    # YAML's escapes can write characters that the file itself may not have.
    if any(is_control(character) for character in text.strip()):
        raise ValueError("text without control characters")
    if not text.strip():
        raise ValueError("text that is not empty")
    return text.strip()


def _line(text: str) -> str:
    line = _plain(" ".join(text.split()))
    if len(line) > MAX_DESCRIPTION_CHARACTERS:
        raise ValueError(
            f"at most {MAX_DESCRIPTION_CHARACTERS} characters: the rest belongs below the front "
            "matter"
        )
    return line


def _path(text: str) -> str:
    path = _plain(text)
    if not os.path.isabs(path):
        raise ValueError("an absolute path, or `~/...`")
    if ".." in path:
        raise ValueError("a path without `..`")
    return path


def _is_name(text: str) -> bool:
    return bool(NAME.fullmatch(text))


def _is_variable(text: str) -> bool:
    return bool(re.fullmatch(_VARIABLE, text))


def _are_few(names: Sized) -> bool:
    return len(names) <= MAX_VARIABLES


def _is_limit(seconds: float) -> bool:
    return 0 < seconds <= MAX_TIMEOUT_S


_Name = Annotated[
    str,
    Converted(str, _plain),
    Constraint(
        _is_name,
        "1 to 64 lower-case letters, digits, `_` and `-`, a letter or digit first",
    ),
]
_Path = Annotated[str, Converted(str, _path)]
_Variable = Annotated[
    str,
    Constraint(
        _is_variable,
        "the name of a variable (its value is the supervisor's own)",
    ),
]
_Variables = Annotated[
    tuple[_Variable, ...],
    Constraint(
        _are_few,
        f"a list of at most {MAX_VARIABLES} names, as [LANG, DEPLOY_TOKEN]",
        early=True,
    ),
]
_Limit = Annotated[
    float,
    "timeout_seconds",
    Constraint(
        _is_limit,
        f"a number of seconds, more than 0 and at most {MAX_TIMEOUT_S:.0f}",
    ),
]

OnLine = Callable[[StreamName, str], None]
"""Receives a line of output, without its end. It must not block: it stores or drops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program as one definition file describes it: its keys, and the file with the line of its name
    there, from 1.

    The command is an absolute path, as written except for `~`; the documentation is the body of the
    file, Markdown. It works in `cwd`, or in HOME, and gets the supervisor's own variables of these
    names. Without `max_args` only the total size of arguments is limited; with `allow_options` they
    may begin with a hyphen.
    """

    name: _Name
    description: Annotated[str, Converted(str, _line)]
    command: _Path
    documentation: str
    source: str
    timeout_s: _Limit = DEFAULT_TIMEOUT_S
    cwd: _Path | None = None
    env: _Variables = ()
    max_args: Annotated[int | None, between(0, MAX_ARGUMENTS)] = None
    allow_options: bool = False
    line: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Reason why a definition file describes no program, with the line (from 1) and the name of the
    program, if known.
    """

    source: str
    reason: str
    line: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Client that asks for programs: its name, as it says itself, the scope of its sessions, for
    the audit, and its process and user id, from the kernel, if known.

    It may know and start the `granted` programs; all if that is None. Nothing in the absolute
    directories and files that it can write to is started for it.
    """

    client: str
    scope: str
    way: Way
    peer: tuple[int, int] | None = None
    granted: frozenset[str] | None = None
    writable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """Outcome of a program that was started: the exit code or the signal that it ended by, and why
    nsm stopped it, if it did not end by itself.

    Its outputs have head and tail, as text, and a line about the bytes that were omitted; `left` is
    the number of processes that it left behind and that still run.
    """

    exit_code: int | None
    signal: int | None = None
    why_stopped: Literal["timeout", "cancelled", "shutdown"] | None = None
    stdout: str = ""
    stderr: str = ""
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    duration_s: float = 0.0
    left: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def succeeded(self) -> bool:
        """True if it ended by itself with exit code 0."""
        return self.exit_code == 0 and self.why_stopped is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One call, as recorded in the ledger."""

    id: str
    caller: Caller
    program: str
    arguments: Sequence[str]


NO_OUTPUT = "Done (no output)."
STDOUT_HEADING = "[stdout]"
STDERR_HEADING = "[stderr]"

_MAX_SHOWN_CHARS = 80
"""Characters to show of a requested name; existing ones have at most 64."""

_MAX_NAMES = 50
"""Largest number of names to list when one was not found."""

_MAX_DESCRIPTION_CHARS = 200


def program_not_found(name: str, available: Iterable[str]) -> str:
    """Say that a name starts nothing, and list the programs that the client may know."""
    names = list(available)
    listed = ", ".join(names[:_MAX_NAMES]) or "none"
    if len(names) > _MAX_NAMES:
        listed += f" and {len(names) - _MAX_NAMES} more"
    return f"Program '{_one_line(name, _MAX_SHOWN_CHARS)}' not found. Available: {listed}"


def list_text(programs: Sequence[Program]) -> str:
    """List programs, one per line."""
    if not programs:
        return "No programs are available."
    return "\n".join(
        f"- {p.name}: {_one_line(p.description, _MAX_DESCRIPTION_CHARS)}" for p in programs
    )


def help_text(program: Program) -> str:
    """A program's documentation, or its description if there is none."""
    return program.documentation if program.documentation.strip() else program.description


def result_text(ended: ProgramEnd) -> str:
    """Describe the outcome of a program that was started."""
    stdout, stderr = ended.stdout, ended.stderr
    if ended.succeeded:
        blocks = [stdout, _marked(STDERR_HEADING, stderr)] if stdout or stderr else [NO_OUTPUT]
    else:
        blocks = _blocks_of_failure(ended, _headline(ended))
    if ended.left:
        blocks.append(f"[{_processes(ended.left)} in the background]")
    text = _joined(blocks)
    return text if ended.succeeded else text.rstrip("\n")


def _blocks_of_failure(ended: ProgramEnd, said: str) -> list[str]:
    stdout, stderr = ended.stdout, ended.stderr
    if ended.why_stopped is not None:
        return [said, _marked(STDOUT_HEADING, stdout), _marked(STDERR_HEADING, stderr)]
    if stderr.strip():
        return [f"{said}: {stderr}", _marked(STDOUT_HEADING, stdout)]
    return [f"{said}: {stdout}" if stdout.strip() else f"{said} (no output)"]


def _headline(ended: ProgramEnd) -> str:
    match ended.why_stopped:
        case "timeout":
            return f"Timed out after {seconds(ended.timeout_s)}"
        case "cancelled":
            return f"Cancelled after {seconds(ended.duration_s)}"
        case "shutdown":
            return f"Stopped after {seconds(ended.duration_s)}: nsm's supervisor ends"
        case None:
            return f"Command failed ({how_ended(ended)})"


def how_ended(ended: ProgramEnd) -> str:
    """Describe an end: `exit 1`, or the name of the signal."""
    if ended.signal is None:
        return f"exit {ended.exit_code}"
    return f"killed by {signal_name(ended.signal)}"


def seconds(duration_s: float) -> str:
    """Format a duration for people: `300 s`, `0.5 s`."""
    shown = f"{duration_s:.1f}".removesuffix(".0")
    return f"{duration_s:.2g} s" if 0 < duration_s < 0.1 else f"{shown} s"


def _marked(heading: str, text: str) -> str:
    return f"{heading}\n{text}" if text else ""


def _processes(count: int) -> str:
    return "1 process goes on" if count == 1 else f"{count} processes go on"


def _joined(blocks: Sequence[str]) -> str:
    """Join the blocks that are not empty, each on lines of its own; the end of the last one stays
    as it is.
    """
    text = ""
    for block in filter(None, blocks):
        text += block if not text or text.endswith("\n") else f"\n{block}"
    return text


def _one_line(text: str, limit: int) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if len(shown) <= limit else f"{shown[: limit - 1]}…"


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
        f"Argument {position} has half a character (U+{ord(half):04X}), which is not text.",
        hint="Send it as UTF-8.",
        data={"argument": position},
    )


def check_arguments(program: Program, arguments: object) -> tuple[str, ...]:
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
