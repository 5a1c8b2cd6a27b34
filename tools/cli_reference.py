"""The page of all commands with their options, from the parsers themselves."""

from __future__ import annotations

from collections.abc import Iterator

from nsm.cli.main import GROUPS, load
from nsm.cli.options import Parser

HEAD = """\
# Options of every command

`nsm COMMAND --help` prints the same. [Exit codes](control-socket.md#exit-codes) are
the same for all.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for group, verbs in GROUPS.items():
        parts.append(f"\n## {group}\n")
        for verb in verbs:
            parts += _command(load(verb).parser(), verb, 3)
    return "".join(parts)


def _command(parser: Parser, name: str, level: int) -> Iterator[str]:
    """A heading, what the command does, its operands and options, and its actions."""
    yield f"\n{'#' * level} nsm {name}\n\n"
    actions = {word: parser.action(word) for word in parser.does}
    yield f"    {parser.synopsis()}\n\n"
    yield f"{parser.description}\n"
    told = parser.descriptions()
    options = {
        option: value
        for option, value in parser.options().items()
        if option not in ("-h", "--help") and told.get(option)
    }
    if options:
        yield "\n| option | does |\n| --- | --- |\n"
        for names, value in _joined(options, told):
            words = ", ".join(f"`{option}`" for option in names)
            yield f"| {words}{f' {value}' if value else ''} | {_cell(told[names[0]])} |\n"
    if parser.epilog:
        yield f"\n```text\n{parser.epilog.strip()}\n```\n"
    for word, action in actions.items():
        if action is not None:
            yield from _command(action, f"{name} {word}", level + 1)


def _joined(
    options: dict[str, str | None], told: dict[str, str]
) -> Iterator[tuple[list[str], str | None]]:
    """Options that are one, such as -s and --session, together."""
    names: list[str] = []
    for option, value in options.items():
        if names and (told[names[0]], options[names[0]]) != (told[option], value):
            yield names, options[names[0]]
            names = []
        names.append(option)
    if names:
        yield names, options[names[0]]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")
