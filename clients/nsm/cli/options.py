"""Parts that the parsers of all verbs share."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, NoReturn, cast

from nsm.suggestion import closest

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_TIMED_OUT = 124
EXIT_RUN_FAILED = 125
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""Exit codes, docs/reference/cli.md. 124 and 125 as timeout(1) and `docker run` use them,
130 and 141 as a shell reports SIGINT and SIGPIPE."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help of a fixed width: argparse would import `shutil`, 4 ms, to ask the terminal for its
    own, and do so whenever an option is added."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=80)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Wrap paragraphs; leave those with indented lines (examples) as they are."""
        from textwrap import fill  # noqa: PLC0415  # for help only

        del indent  # there is none
        return "\n\n".join(
            paragraph
            if "\n  " in paragraph or _fits(paragraph, width)
            else fill(paragraph, width, break_on_hyphens=False)
            for paragraph in text.rstrip().split("\n\n")
        )

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Options with the name of their value once, as in Python 3.13: `-s, --session NAME`."""
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {_value_of(action)}"


class Parser(argparse.ArgumentParser):
    """A verb's parser: one way of saying what is wrong, no guessing of abbreviated options."""

    def __init__(self, verb: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"nsm {verb}",
            description=description,
            epilog=epilog,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        self.does: dict[str, str] = {}
        """Its actions, and what each does."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and end."""
        from nsm.cli.render.formats import visible_lines  # noqa: PLC0415  # rarely needed

        # Arguments may be names of files that somebody else made up.
        self.exit(EXIT_USAGE, f"nsm: {visible_lines(message)}\nRun `{self.prog} --help`.\n")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a word that is none of those an argument takes, and say which one is close."""
        if action.choices is None or value in action.choices or value == []:  # nothing was given
            return
        words = _words_of(action)
        close = closest(str(value), words)
        guess = f"; did you mean {close!r}?" if close else ""
        raise argparse.ArgumentError(
            action,
            f"invalid choice: {value!r}{guess} (choose from {', '.join(words)})",
        )

    def add_session(self) -> None:
        """Add ``SESSION``, a session that is there."""
        self.add_argument("session", metavar="SESSION", help="an id, a name, or SCOPE/NAME")

    def add_yes(self) -> None:
        """Add ``-y``."""
        self.add_argument("-y", "--yes", action="store_true", help="do not ask")

    def add_labels(self, what: str) -> None:
        """Add ``--label``."""
        self.add_argument(
            "--label", action="append", type=label, metavar="NAME=VALUE", default=[], help=what
        )

    def add_json(self, what: str) -> None:
        """Add ``--json``."""
        self.add_argument("--json", action="store_true", help=f"print {what} as JSON")

    def add_actions(self, *, required: bool = True) -> Subparsers:
        """Words that each have options of their own; the one that is given is in ``action``."""
        if not required:
            self.usage = f"{self.prog} [OPTIONS] [ACTION ...]"
        return Subparsers(self, required=required)

    def action(self, word: str) -> Parser | None:
        """The parser of one of these words; None where it is none."""
        for action in self._actions:
            choices: object = action.choices
            if isinstance(choices, dict):
                return cast("dict[str, Parser]", choices).get(word)
        return None

    def action_first(self, arguments: list[str]) -> list[str]:
        """The arguments with options in front of an action put behind it.

        An action's parser resets its options, so those in front of the action would be lost.
        """
        for place, word in enumerate(arguments):
            if self.action(word) is not None:
                return [word, *arguments[:place], *arguments[place + 1 :]]
            if not word.startswith("-"):
                break
        return arguments

    def options(self) -> dict[str, str | None]:
        """Each option as it is typed, with the name of its value, None where it takes none."""
        return {
            option: None if action.nargs == 0 else str(action.metavar or action.dest)
            for action in self._actions
            for option in action.option_strings
        }

    def shown_options(self) -> list[str]:
        """Options that help shows: without other spellings of them."""
        return [
            option
            for action in self._actions
            if action.help != argparse.SUPPRESS
            for option in action.option_strings
        ]

    def descriptions(self) -> dict[str, str]:
        """Descriptions of its options and actions, for completion."""
        told = {
            option: (action.help or "") % {"choices": ", ".join(_words_of(action))}
            for action in self._actions
            for option in action.option_strings
            if action.help != argparse.SUPPRESS
        }
        return told | self.does

    def synopsis(self) -> str:
        """The command line in one line, with one word for the options that have no value."""
        if self.usage:
            return self.usage
        shapes = {"?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}
        words = [self.prog, *(["ACTION"] if self.does else []), "[OPTIONS]"]
        for action in self._actions:
            name = str(action.metavar or action.dest)
            if not action.option_strings and name != "ACTION":
                words.append(shapes.get(str(action.nargs), "{0}").format(name))
        return " ".join(words)

    def operands(self) -> list[str]:
        """The names of what is given without an option, in order."""
        return [
            str(action.metavar or action.dest)
            for action in self._actions
            if not action.option_strings
        ]

    def operand(self, place: int) -> tuple[str, list[str]]:
        """Describe the operand at a place: its name, empty where there is none, and its possible
        words, if they are few."""
        operands = [action for action in self._actions if not action.option_strings]
        if place >= len(operands) and operands and operands[-1].nargs in ("*", "+"):
            place = len(operands) - 1
        if place >= len(operands):
            return "", []
        return str(operands[place].metavar or operands[place].dest), _words_of(operands[place])

    def values(self, option: str) -> list[str]:
        """The words that the value of an option may be, where they are few."""
        return [
            word
            for action in self._actions
            if option in action.option_strings
            for word in _words_of(action)
        ]


def _fits(paragraph: str, width: int) -> bool:
    return all(len(line) <= width for line in paragraph.split("\n"))


def _value_of(action: argparse.Action) -> str:
    """The value of an option as help writes it."""
    if action.metavar is None and action.choices is not None:
        return "{" + ",".join(_words_of(action)) + "}"
    return str(action.metavar or action.dest.upper())


def _words_of(action: argparse.Action) -> list[str]:
    return [str(word) for word in action.choices or ()]


class Subparsers:
    """The words of a parser that each have options of their own."""

    def __init__(self, parser: Parser, *, required: bool) -> None:
        self._verb = parser.prog.removeprefix("nsm ")
        self._does = parser.does
        self._actions = parser.add_subparsers(
            dest="action",
            metavar="ACTION",
            required=required,
            parser_class=cast("type[Parser]", _given),
        )

    def add(self, word: str, does: str, epilog: str = "") -> Parser:
        """Add one; returns its parser."""
        parser = Parser(f"{self._verb} {word}", f"{does[0].upper()}{does[1:]}.", epilog)
        self._does[word] = does
        self._actions.add_parser(word, help=does, parser=parser)
        return parser


def _given(*, parser: Parser, prog: str) -> Parser:
    """Give argparse, which wants to make a parser and name its program, the one there is."""
    del prog
    return parser


def add_network(add: Callable[..., object], what: str, kind: Callable[[str], object] = str) -> None:
    """Add ``--network``, and ``--net``, a spelling of it that help and completion do not show.

    Args:
        add: adds an option to a parser or to a group of one.
        kind: reads the value.
    """
    for option, told in (("--network", what), ("--net", argparse.SUPPRESS)):
        add(option, dest="network", metavar="NETWORK", type=kind, help=told)


def add_secret(add: Callable[..., object], what: str) -> None:
    """Add ``--secret``, which may be repeated. Nothing given is None: the configured ones.

    Args:
        add: adds an option to a parser or to a group of one.
    """
    add(
        "--secret", dest="secrets", action="append", metavar="NAME", help=f"{what}; may be repeated"
    )


def add_all_hosts(parser: Parser) -> None:
    """Add ``--all-hosts``."""
    parser.add_argument(
        "--all-hosts", action="store_true", help="on this machine and all [hosts] of config.toml"
    )


def label(text: str) -> tuple[str, str]:
    """A name and a value, with ``=`` between them."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        message = f"{text!r} is not NAME=VALUE"
        raise argparse.ArgumentTypeError(message)
    return name, value


def seconds(text: str) -> float:
    """A number of seconds, 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not math.isfinite(value) or value < 0:
        message = f"{text!r} is not a number of seconds"
        raise argparse.ArgumentTypeError(message)
    return value


def whole_number(text: str) -> int:
    """A whole number, 0 or more."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        message = f"{text!r} is not a whole number"
        raise argparse.ArgumentTypeError(message)
    return int(text)
