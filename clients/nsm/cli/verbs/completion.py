"""`nsm completion`: scripts by which shells complete commands."""

from __future__ import annotations

from nsm.cli import terminal
from nsm.cli.options import EXIT_OK, Parser

# Each script only hands the words over to `nsm __complete` and shows what it answers: one
# candidate a line, with a tab and what it does, or `:files` or `:directories` where a path is
# wanted.

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


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "completion",
        "Print a script that completes the words of nsm, and the options of claudebox.",
        'bash, zsh:  eval "$(nsm completion bash)"\nfish:       nsm completion fish | source',
    )
    parser.add_argument("shell", choices=list(_SCRIPTS), help="your shell")
    return parser


def main(arguments: list[str]) -> int:
    """Print the script."""
    options = parser().parse_args(arguments)
    terminal.out(_SCRIPTS[options.shell].rstrip())
    return EXIT_OK
