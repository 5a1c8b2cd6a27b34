"""`nsm completion`: scripts by which shells complete commands."""

from __future__ import annotations

from nsm.cli import terminal
from nsm.cli.options import EXIT_OK, Parser

# Each script only hands the words over to `nsm __complete` and shows what it answers: one
# candidate a line, or `:files` or `:directories` where a path is wanted.

_BASH = """\
# nsm: completion for bash. Put into ~/.bashrc:  eval "$(nsm completion bash)"
_nsm() {
    local answer
    answer=$("${COMP_WORDS[0]}" __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=()
    case $answer in
        :files) compopt -o default ;;
        :directories) compopt -o dirnames ;;
        *) mapfile -t COMPREPLY <<<"$answer"; [[ -n $answer ]] || COMPREPLY=()
           [[ $answer != *: ]] || compopt -o nospace ;;
    esac
}
complete -F _nsm nsm
"""

_ZSH = """\
#compdef nsm
# nsm: completion for zsh. Put into ~/.zshrc, after compinit:  eval "$(nsm completion zsh)"
_nsm() {
    local answer
    answer=$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    case $answer in
        :files) _files ;;
        :directories) _files -/ ;;
        *:) compadd -S '' -- ${(f)answer} ;;
        *) compadd -- ${(f)answer} ;;
    esac
}
compdef _nsm nsm
"""

_FISH = """\
# nsm: completion for fish. Put into ~/.config/fish/config.fish:  nsm completion fish | source
function __nsm_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l answer ($words[1] __complete -- $words[2..-1] 2>/dev/null)
    switch "$answer[1]"
        case :files
            __fish_complete_path (commandline -ct)
        case :directories
            __fish_complete_directories (commandline -ct)
        case '*'
            printf '%s\\n' $answer
    end
end
complete -c nsm -f -a '(__nsm_complete)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "completion",
        "Print a script that completes commands, options, environments and sessions.",
        'bash, zsh:  eval "$(nsm completion bash)"\nfish:       nsm completion fish | source',
    )
    parser.add_argument("shell", choices=list(_SCRIPTS), help="your shell")
    return parser


def main(arguments: list[str]) -> int:
    """Print the script."""
    options = parser().parse_args(arguments)
    terminal.out(_SCRIPTS[options.shell].rstrip())
    return EXIT_OK
