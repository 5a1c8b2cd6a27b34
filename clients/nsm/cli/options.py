"""Commands as declarations: what each takes, and the one way in which all are carried out.

    @verb("kill", "End sessions.", "", operand("[SESSION ...]", "an id or a name"), YES)
    def _kill(options): ...

An argument is spelled as help shows it: ``-t --timeout SECONDS``, ``SOURCE ...``, ``[NAME]``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NoReturn, cast

from nsm.wire.errors import NsmError, closest

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_TIMED_OUT = 124
EXIT_RUN_FAILED = 125
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""Exit codes, docs/reference/control-socket.md. 124 and 125 as timeout(1) and `docker run` use
them, 130 and 141 as a shell reports SIGINT and SIGPIPE."""


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
        """Actions, and what each does."""

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
    if action.metavar is None and action.choices is not None:
        return "{" + ",".join(_words_of(action)) + "}"
    return str(action.metavar or action.dest.upper())


def _words_of(action: argparse.Action) -> list[str]:
    return [str(word) for word in action.choices or ()]


Argument = Callable[[Any], object]
"""One argument or several: adds them to a parser, or to a group of one."""


def flag(spelling: str, does: str) -> Argument:
    """An option without a value: ``-f --follow``."""
    return lambda parser: parser.add_argument(*spelling.split(), action="store_true", help=does)


def value(
    spelling: str, does: str, kind: Callable[[str], object] | None = None, **more: Any
) -> Argument:
    """An option with a value: ``-t --timeout SECONDS``; without a word for that, ``--root``. `kind`
    reads the value, and `more` is as for `argparse.ArgumentParser.add_argument`."""
    names = spelling.split()
    metavar = None if names[-1].startswith("-") else names.pop()
    return lambda parser: parser.add_argument(*names, metavar=metavar, help=does, type=kind, **more)


def repeated(
    spelling: str, does: str, kind: Callable[[str], object] | None = None, **more: Any
) -> Argument:
    """An option that may be given several times; its values are in a list, which may be empty."""
    return value(spelling, does, kind, **{"action": "append", "default": [], **more})


def operand(
    spelling: str, does: str = "", kind: Callable[[str], object] | None = None, **more: Any
) -> Argument:
    """A value without an option: ``SESSION``, ``[NAME]``, ``SOURCE ...`` or ``[FILE ...]``.

    Args:
        kind: reads the value.
        more: as for `argparse.ArgumentParser.add_argument`; `dest` is the name in lower case if it
            is not given. In place of a name in lower case, help shows its choices.
    """
    name = spelling.strip("[].").removesuffix(" ...").rstrip()
    settings: dict[str, Any] = {"help": does or None, "type": kind}
    if spelling.endswith("...]"):
        settings |= {"nargs": "*", "default": []}  # without a default argparse calls it required
    elif spelling != name:
        settings["nargs"] = "?" if spelling.startswith("[") else "+"
    if not (name.isalpha() and name.islower()):
        settings["metavar"] = name
    dest = more.pop("dest", name.lower())
    return lambda parser: parser.add_argument(dest, **settings, **more)


def group(title: str, *arguments: Argument) -> Argument:
    """Arguments that help shows below a title."""

    def add(parser: Any) -> None:
        _add_all(parser.add_argument_group(title), arguments)

    return add


def either(*arguments: Argument) -> Argument:
    """Options of which one may be given."""

    def add(parser: Any) -> None:
        _add_all(parser.add_mutually_exclusive_group(), arguments)

    return add


def _add_all(parser: object, arguments: tuple[Argument, ...]) -> None:
    for each in arguments:
        each(parser)


def network(does: str, kind: Callable[[str], object] = str) -> Argument:
    """``--network``, and ``--net``, a spelling of it that help and completion do not show."""

    def add(parser: Any) -> None:
        for option, told in (("--network", does), ("--net", argparse.SUPPRESS)):
            value(f"{option} NETWORK", told, kind, dest="network")(parser)

    return add


def secrets(does: str) -> Argument:
    """``--secret``. Nothing given is None: the configured ones."""
    told = f"{does}; may be repeated"
    return repeated("--secret NAME", told, dest="secrets", default=None)


def labels(does: str) -> Argument:
    """``--label``, for names with values."""
    return repeated("--label NAME=VALUE", does, name_and_value)


def project(does: str) -> Argument:
    """``--project`` and ``--no-project``."""
    return either(value("--project DIR", does), flag("--no-project", "mount no project"))


def as_json(what: str) -> Argument:
    """``--json``, which prints that."""
    return flag("--json", f"print {what} as JSON")


SESSION = operand("SESSION", "an id, a name, or SCOPE/NAME")
YES = flag("-y --yes", "do not ask")
ALL_HOSTS = flag("--all-hosts", "on this machine and all [hosts] of config.toml")


class UsageError(Exception):
    """Error for arguments that do not fit together; the message says which."""


class Done(Exception):  # noqa: N818  # it is no error
    """A command has ended before its end, and has said why."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


class Verb:
    """A verb, or an action of one; `actions` are those that it has, by their words."""

    def __init__(
        self,
        name: str,
        does: str,
        epilog: str,
        arguments: tuple[Argument, ...],
        *,
        usage: str = "",
        parse: Callable[[Parser, list[str]], argparse.Namespace] | None = None,
        failure: int = 0,
    ) -> None:
        self.actions: dict[str, Verb] = {}
        self.does = does
        self._name = name
        self._epilog = epilog
        self._arguments = arguments
        self._usage = usage
        self._parse = parse or Parser.parse_args
        self._failure = failure
        self._function: Callable[[argparse.Namespace], int | None] | None = None

    def __call__(self, function: Callable[[argparse.Namespace], int | None]) -> Verb:
        """Set the function that carries it out, which returns the exit code, None for 0."""
        self._function = function
        return self

    def action(self, word: str, does: str, epilog: str, *arguments: Argument, **more: Any) -> Verb:
        """Add an action: a decorator of the function that carries it out."""
        made = Verb(f"{self._name} {word}", does, epilog, arguments, **more)
        self.actions[word] = made
        return made

    def parser(self) -> Parser:
        """Make its parser."""
        does = f"{self.does[0].upper()}{self.does[1:]}." if " " in self._name else self.does
        parser = Parser(self._name, does, self._epilog)
        parser.usage = self._usage or None
        _add_all(parser, self._arguments)
        if self.actions:
            if self._function is not None:
                parser.usage = f"{parser.prog} [OPTIONS] [ACTION ...]"
            words = parser.add_subparsers(
                dest="action",
                metavar="ACTION",
                required=self._function is None,
                parser_class=cast("type[Parser]", _given),
            )
            for word, action in self.actions.items():
                parser.does[word] = action.does
                words.add_parser(word, help=action.does, parser=action.parser())
        return parser

    def main(self, arguments: list[str]) -> int:
        """Carry it out; returns the exit code."""
        parser = self.parser()
        if self.actions and self._function is not None:
            arguments = parser.action_first(arguments)
        options = self._parse(parser, arguments)
        action = options.action if self.actions else None
        chosen = self if action is None else self.actions[action]
        return chosen.carry_out(parser, options)

    def carry_out(self, parser: Parser, options: argparse.Namespace) -> int:
        """Do it, with the verb's parser for mistakes in its use; returns the exit code."""
        assert self._function is not None
        try:
            return self._function(options) or EXIT_OK
        except UsageError as error:
            parser.error(str(error))
        except Done as done:
            return done.code
        except (NsmError, OSError) as error:
            if not self._failure or isinstance(error, BrokenPipeError):
                raise
            from nsm.cli import terminal  # noqa: PLC0415  # rarely needed

            return terminal.report(error, self._failure)


def _given(*, parser: Parser, prog: str) -> Parser:
    """Give argparse, which wants to make a parser and name its program, the one there is."""
    del prog
    return parser


DECLARED: dict[str, Verb] = {}
"""The verbs of the modules that are loaded."""


def verb(name: str, does: str, epilog: str, *arguments: Argument, **more: Any) -> Verb:
    """A verb: a decorator of the function that carries it out.

    Args:
        more: usage: in place of the usual one. parse: reads the arguments in place of
            `Parser.parse_args`. failure: exit code after an error, if it is not 1.
    """
    made = DECLARED[name] = Verb(name, does, epilog, arguments, **more)
    return made


def name_and_value(text: str) -> tuple[str, str]:
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
