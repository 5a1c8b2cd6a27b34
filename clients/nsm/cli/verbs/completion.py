"""`nsm completion`: scripts by which shells complete commands, and what these ask.

Each script only hands the words over to `nsm __complete [claudebox] -- WORD...` and shows what that
answers: one candidate for the last word a line, some with a tab and what it does, or `:files` or
`:directories` where a path is wanted. It starts no supervisor and says nothing about what goes
wrong: a shell that completes has no place for it.
"""

from __future__ import annotations

import os
import re
from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.cli import terminal
from nsm.cli.main import VERBS, load
from nsm.cli.options import operand, verb
from nsm.client.blocking import Client
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsm.cli.options import Parser

_BASH = """\
# nsm: completion for bash. Put into ~/.bashrc:  eval "$(nsm completion bash)"
_nsm_show() {
    local answer=$1
    COMPREPLY=()
    case $answer in
        :files) compopt -o default ;;
        :directories) compopt -o dirnames ;;
        *) mapfile -t COMPREPLY <<<"$answer"; [[ -n $answer ]] || COMPREPLY=()
           COMPREPLY=("${COMPREPLY[@]%%$'\\t'*}")
           [[ $answer != *: ]] || compopt -o nospace ;;
    esac
}
_nsm() {
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    _nsm_show "$("${COMP_WORDS[0]}" __complete -- "${words[@]}" 2>/dev/null)"
}
_claudebox() {
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    _nsm_show "$(nsm __complete claudebox -- "${words[@]}" 2>/dev/null)"
}
complete -F _nsm nsm
complete -F _claudebox claudebox
"""

_ZSH = """\
#compdef nsm claudebox
# nsm: completion for zsh. Put into ~/.zshrc, after compinit:  eval "$(nsm completion zsh)"
_nsm_show() {
    local row word
    local -a rows
    case $1 in
        '') return 1 ;;
        :files) _files ;;
        :directories) _files -/ ;;
        *:) compadd -S '' -- ${(f)1} ;;
        *) for row in ${(f)1}; do
               word=${row%%$'\\t'*}
               [[ $row == *$'\\t'* ]] && row=${row#*$'\\t'} || row=''
               rows+=("${word//:/\\\\:}:$row")
           done
           _describe nsm rows ;;
    esac
}
_nsm() {
    _nsm_show "$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"
}
_claudebox() {
    _nsm_show "$(nsm __complete claudebox -- "${(@)words[2,CURRENT]}" 2>/dev/null)"
}
compdef _nsm nsm
compdef _claudebox claudebox
"""

_FISH = """\
# nsm: completion for fish. Put into ~/.config/fish/config.fish:  nsm completion fish | source
function __nsm_show
    switch "$argv[1]"
        case :files
            __fish_complete_path (commandline -ct)
        case :directories
            __fish_complete_directories (commandline -ct)
        case '*'
            printf '%s\\n' $argv
    end
end
function __nsm_complete
    set -l words (commandline -opc) (commandline -ct)
    __nsm_show ($words[1] __complete -- $words[2..-1] 2>/dev/null)
end
function __claudebox_complete
    set -l words (commandline -opc) (commandline -ct)
    __nsm_show (nsm __complete claudebox -- $words[2..-1] 2>/dev/null)
end
complete -c nsm -f -a '(__nsm_complete)'
complete -c claudebox -f -a '(__claudebox_complete)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@verb(
    "completion",
    "Print a script that completes the words of nsm, and the options of claudebox.",
    'bash, zsh:  eval "$(nsm completion bash)"\nfish:       nsm completion fish | source',
    operand("shell", "your shell", choices=list(_SCRIPTS)),
)
def _completion(options: Namespace) -> None:
    terminal.out(_SCRIPTS[options.shell].rstrip())


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


def _words(_: Parser, words: list[str]) -> Namespace:
    return Namespace(words=words)


@verb("__complete", "Print candidates.", "", parse=_words)
def _complete(options: Namespace) -> None:
    of_claudebox = options.words[:1] == ["claudebox"]
    words = options.words[of_claudebox:]
    words = (words[1:] if words[:1] == ["--"] else words) or [""]
    found = claudebox(words) if of_claudebox else candidates(words)
    does = CLAUDEBOX if of_claudebox else descriptions(words)
    terminal.out("\n".join(f"{word}\t{does[word]}" if does.get(word) else word for word in found))


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
    sessions = [f"{word}:" for word in _sessions()] if current else []
    return _beginning(current, sessions) or [FILES]


def _values(kind: str, current: str) -> list[str]:
    match kind:
        case "FILE" | "PATH":
            return [FILES]
        case "DIR":
            return [DIRECTORIES]
        case "COMMAND":
            return _command([], current)
        case "NETWORK":
            words = ["off", "full"]
        case "SESSION" | "TRANSCRIPT":
            words = _sessions()
        case "NAME":
            words = _asked(lambda client: [row.name for row in client.sessions()])
        case "ENV":
            words = _asked(
                lambda client: [r.name for r in client.envs() if r.available and not r.only_for]
            )
        case "BUILT":
            words = _asked(lambda client: [row.name for row in client.builds.list_all()])
        case "PROGRAM":
            words = _asked(lambda client: [row.name for row in client.bridge.programs().programs])
        case _:
            words = []
    return _beginning(current, words)


def _asked(question: Callable[[Client], Iterable[str | None]]) -> list[str]:
    """Words that a supervisor knows, if one runs."""
    try:
        with Client(autostart=False) as client:
            return [word for word in question(client) if word]
    except (NsmError, OSError):
        return []


def _sessions() -> list[str]:
    return _asked(lambda client: [w for row in client.sessions() for w in (row.name, row.id)])


def _beginning(current: str, words: list[str]) -> list[str]:
    fitting = {word for word in words if word.startswith(current) and _WORD.fullmatch(word)}
    return sorted(fitting)
