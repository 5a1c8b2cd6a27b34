"""`nsm __complete [claudebox] -- WORD...`: candidates for the last word, for the shells' scripts.

One a line, some with a tab and what it does after that.

Starts no supervisor and says nothing about what goes wrong: a shell that completes has no place
for it.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.cli import terminal
from nsm.cli.main import VERBS, load
from nsm.cli.options import EXIT_OK
from nsm.client.blocking import Client
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from nsm.cli.options import Parser

FILES = ":files"
DIRECTORIES = ":directories"

CLAUDEBOX = {
    "--yes": "do not ask whether the directory may be changed",
    "--dry-run": "print the command, and start nothing",
    "--check": "check what the box needs on this host",
}
"""The options that are not claude's own, and what they do."""

_WORD = re.compile(r"[A-Za-z0-9_./:-]+")
"""Words that are safe in any shell. Scopes may have other characters; their sessions are completed
by id.
"""


def main(arguments: list[str]) -> int:
    """Print the candidates."""
    of_claudebox = arguments[:1] == ["claudebox"]
    words = arguments[of_claudebox:]
    words = (words[1:] if words[:1] == ["--"] else words) or [""]
    found = claudebox(words) if of_claudebox else candidates(words)
    does = CLAUDEBOX if of_claudebox else descriptions(words)
    terminal.out("\n".join(f"{word}\t{does[word]}" if does.get(word) else word for word in found))
    return EXIT_OK


def claudebox(words: list[str]) -> list[str]:
    """Completions of the last word after `claudebox`; its other options are claude's."""
    *before, current = words
    if current.startswith("-") and "--" not in before:
        return _beginning(current, [option for option in CLAUDEBOX if option not in before])
    return [FILES]


def descriptions(words: list[str]) -> dict[str, str]:
    """Descriptions of the verbs, options and actions that may stand for the last word."""
    before = words[:-1]
    if not before or before == ["help"]:
        return VERBS | {"--help": "show this help", "--version": "print the version"}
    if before[0] not in VERBS:
        return {}
    return _parser(before[0], before[1:])[0].descriptions()


def candidates(words: list[str]) -> list[str]:
    """List the candidates for the last of the words after `nsm`."""
    *before, current = words
    if not before:
        return _beginning(current, [*VERBS, "--help", "--version"])
    if before == ["help"]:
        return _beginning(current, list(VERBS))
    if before[0] not in VERBS:
        return []
    parser, given = _parser(before[0], before[1:])
    if "--" in given and "COMMAND" in parser.operands():
        return _command(given[given.index("--") + 1 :], current)
    if "ARGUMENT" in parser.operands() and any(not word.startswith("-") for word in given):
        return [FILES]  # whatever follows is the program's
    options = parser.options()
    value = options.get(given[-1]) if given else None
    if value is not None:
        return _beginning(current, parser.values(given[-1])) or _values(value, current)
    if current.startswith("-"):
        shown = parser.shown_options()
        return _beginning(current, [option for option in shown if option not in given])
    return _operand(parser, given, current)


def _parser(verb: str, given: list[str]) -> tuple[Parser, list[str]]:
    """The parser of a verb, or of the action that is given, and the words after that."""
    parser = load(verb).parser()
    if given and (action := parser.action(given[0])) is not None:
        return action, given[1:]
    return parser, given


def _operand(parser: Parser, before: list[str], current: str) -> list[str]:
    if "SOURCE" in parser.operands():
        return _places(before, current)
    place, options = 0, parser.options()
    for number, word in enumerate(before):
        value = number > 0 and options.get(before[number - 1]) is not None
        place += not value and word not in options and word != "--"
    kind, choices = parser.operand(place)
    return _beginning(current, choices) if choices else _values(kind, current)


def _command(before: list[str], current: str) -> list[str]:
    """A program on PATH, then files."""
    if before or "/" in current:
        return [FILES]
    names: set[str] = set()
    for directory in os.environ.get("PATH", "").split(":") if current else ():
        with suppress(OSError):
            names.update(os.listdir(directory or "."))
    return _beginning(current, sorted(names))


def _places(before: list[str], current: str) -> list[str]:
    """Sessions, with the colon, while one may be meant; else files here.

    A shell may take a colon for a word of its own; what follows it is a path there.
    """
    if ":" in current or before[-1:] == [":"]:
        return []
    sessions = [f"{word}:" for row in _sessions() for word in row if word] if current else []
    return _beginning(current, sessions) or [FILES]


def _values(kind: str, current: str) -> list[str]:
    match kind:
        case "PROGRAM":
            return _beginning(current, _programs())
        case "FILE" | "PATH":
            return [FILES]
        case "NETWORK":
            return _beginning(current, ["off", "full"])
        case "COMMAND":
            return _command([], current)
        case "DIR":
            return [DIRECTORIES]
        case "ENV":
            return _beginning(current, _environments())
        case "BUILT":
            return _beginning(current, _built())
        case "NAME":
            return _beginning(current, [name for name, _ in _sessions() if name])
        case "SESSION" | "TRANSCRIPT":
            return _beginning(current, [word for row in _sessions() for word in row if word])
        case _:
            return []


def _environments() -> list[str]:
    try:
        with Client(autostart=False) as client:
            return [row.name for row in client.envs() if row.available and not row.only_for]
    except (NsmError, OSError):
        return []


def _built() -> list[str]:
    try:
        with Client(autostart=False) as client:
            return [row.name for row in client.builds.list_all()]
    except (NsmError, OSError):
        return []


def _programs() -> list[str]:
    try:
        with Client(autostart=False) as client:
            return [row.name for row in client.bridge.programs().programs]
    except (NsmError, OSError):
        return []


def _sessions() -> list[tuple[str | None, str]]:
    try:
        with Client(autostart=False) as client:
            return [(row.name, row.id) for row in client.sessions()]
    except (NsmError, OSError):
        return []


def _beginning(current: str, words: list[str]) -> list[str]:
    fitting = {word for word in words if word.startswith(current) and _WORD.fullmatch(word)}
    return sorted(fitting)
