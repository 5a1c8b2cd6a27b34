# shellcheck shell=bash
# shellcheck disable=SC2154  # some variables are the driver's (agent/sandbox/workers/bash)
#
# Writes the state of a Bash session into files. A subshell reads this file: it has a copy of the state.
#
# Code may have functions and aliases named like commands, so builtins are called as `\builtin`.

nsm_flags=$-
nsm_options=$(\builtin set +o; \builtin shopt -p; \builtin umask -p)
nsm_traps=$(\builtin trap -p)
nsm_copy=$(\builtin declare -p BASH_ALIASES)
\builtin set +eux
\builtin unalias -a
\builtin declare -A nsm_aliases
\builtin eval "nsm_aliases=${nsm_copy#*=}"
nsm_place=/tmp/.nsm-save
nsm_not_saved=$'\n'$(<"$nsm_place/not_saved")$'\n'

\builtin printf '%s' "$PWD" >"$nsm_place/cwd" || \builtin exit 1

# Each entry is a kind and a name, and the text that makes it again.
nsm_note() {
  \builtin printf '%s\0' "$1" "$2" || \builtin exit 1
}

{
  for nsm_name in $(\builtin compgen -v); do
    case $nsm_name in
      BASH | BASH_* | BASHOPTS | BASHPID | COLUMNS | COMP_* | DIRSTACK | EPOCH* | EUID) continue ;;
      FUNCNAME | GROUPS | HISTCMD | HOSTNAME | HOSTTYPE | LINENO | LINES | MACHTYPE) continue ;;
      OLDPWD | OPTERR | OSTYPE | PIPESTATUS | PPID | PS1 | PS2 | PWD | RANDOM | SECONDS) continue ;;
      HIST* | MAILCHECK | OPTIND | SHELL) continue ;;
      IFS) [[ $IFS != $' \t\n' ]] || continue ;;
      PS4) [[ $PS4 != '+ ' ]] || continue ;;
      SHELLOPTS | SHLVL | SRANDOM | TERM | UID | _ | nsm_*) continue ;;
    esac
    [[ $nsm_not_saved != *$'\n'$nsm_name$'\n'* ]] || continue
    nsm_text=$(\builtin declare -p "$nsm_name" 2>/dev/null) || continue
    nsm_note "variable $nsm_name" "$nsm_text"
  done
  while \builtin read -r _ nsm_attributes nsm_name; do
    [[ $nsm_name != nsm_note ]] || continue
    nsm_text=$(\builtin declare -f "$nsm_name")
    [[ $nsm_attributes != *x* ]] || nsm_text+=$'\n'"builtin export -f $nsm_name"
    nsm_note "definition $nsm_name" "$nsm_text"
  done < <(\builtin declare -F)
  for nsm_name in "${!nsm_aliases[@]}"; do
    nsm_note "alias $nsm_name" "BASH_ALIASES[${nsm_name@Q}]=${nsm_aliases[$nsm_name]@Q}"
  done
  if [[ -n $nsm_traps ]]; then
    for nsm_name in $(\builtin compgen -A signal); do
      nsm_text=$(\builtin trap -p "$nsm_name")
      case $nsm_name:$nsm_text in  # the driver's own, and what it has put them around
        SIGURG:*nsm_errexit*) nsm_text= ;;
        *nsm_line*) nsm_text=${nsm_err-} ;;
        *nsm_left*) nsm_text=${nsm_exit-} ;;
        *nsm_look*) nsm_text=${nsm_debug-} ;;
      esac
      [[ -z $nsm_text ]] || nsm_note "trap $nsm_name" "$nsm_text"
    done
  fi
  # In `$(...)` set -e is off, and where it is on, the driver has set -E.
  [[ $nsm_flags != *e* ]] || nsm_options=${nsm_options/set -o errtrace/}$'\n'"set -e"
  nsm_note "options set" "$nsm_options"
} >"$nsm_place/entries" || \builtin exit 1
