# shellcheck shell=bash
# shellcheck disable=SC1001,SC1012  # commands have a backslash before them, so that no alias is taken
# shellcheck disable=SC1091  # what is run is what the agent has written to a descriptor
# shellcheck disable=SC2015  # the second part of `A && B || C` is to run in either case
# shellcheck disable=SC2034,SC2154  # variables are for the line that is sent next
# shellcheck disable=SC2188  # redirections that fail are how the shell reports
# shellcheck disable=SC2261  # what follows `>&` is a number
# shellcheck disable=SC2317,SC2329  # nothing is called here, see below
#
# What the agent sends to a shell, and the traps that it sets in it. Each function is a text that
# `interpreters/bash.py` takes by its name: it sends the body, with what stands between two `@` put
# in. A line that is continued is one line. The shell itself has none of these functions. Commands have
# `builtin` before them where code may have made functions of their names.

# Keeps the descriptors that are between executions. While 3 to 6 are closed for a group of
# commands, bash keeps them at 10 to 13 marked close-on-exec, and duplicating a marked descriptor
# marks the copy.
#
# The shell gets the highest oom_score_adj: when memory runs out, the kernel kills it before the agent.
begin() {
  { \exec @source@<&10 @null@<&11 @out@>&12 @err@>&13; } 3<&- 4<&- 5>&- 6>&-
  \exec 3<&- 4<&- 5>&- 6>&-
  { \echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null
  \trap -- '@abort@' @signal@
}

# First in the copy of a shell: other random numbers than the original's, unless code has made
# RANDOM a variable of its own, which stays the same.
begin_fork() {
  { [[ $RANDOM$RANDOM == $RANDOM$RANDOM ]] || RANDOM=@number@; } 2>/dev/null
}

# Trap of the signal that follows SIGINT, to have the shell give up the code.
#
# On SIGINT alone bash goes on with the next command if the one that it waits for handles the signal
# and exits, as test runners and `ping` do. A trap runs between the two. It leaves code alone that
# has a trap for SIGINT of its own, and does nothing while no code is sourced. Nor does it where
# `set -e` stops the code because the signal has ended a command: this may be within the trap of
# ERR, and bash would believe for ever that it runs that trap.
abort() {
  { [[ ${nsm_errexit-0} == 1 \
    || $- == *e* && ( $? == 130 || -n ${nsm_last-} ) && $(\builtin \trap -p ERR) == *nsm_line* \
    || -z ${BASH_SOURCE-} || -n $(\builtin \trap -p INT) ]] || \builtin \kill -INT "${BASHPID:-$$}"; } \
    </dev/null >/dev/null 2>&1
}

# Trap of SIGINT in a shell that has become a script, to have it end at once with its EXIT trap.
#
# On SIGINT alone bash goes on if the command that it waits for handles the signal, see `abort`. What
# the EXIT trap does is not to be interrupted a second time.
end_script() {
  { \builtin \trap '' INT; \builtin \exit 130; } 2>/dev/null
}

# Notes which command failed. First in each trap of ERR.
note() {
  nsm_last=$? nsm_line=$LINENO
}

# Returns from the code where `set -e` is about to end the shell. Last in each trap of ERR.
#
# It does so from each function in turn. Last fails the `.` of the driver, and `set -e` must be off
# then. A subshell ends as usual. If code goes on, the trap is over (`abort` asks for that).
leave() {
  case $BASH_SUBSHELL:${#BASH_SOURCE[@]}:$- in \
    0:0:*e*) nsm_errexit=1; \builtin \set +e;; \
    0:1:*e*) nsm_stop=${nsm_stop-$((nsm_line * 256 + nsm_last))}; \return 0;; \
    0:*e*) nsm_stop=${nsm_stop-$((BASH_LINENO[-2] * 256 + nsm_last))}; \return 1;; \
    0:*) nsm_last=;; \
  esac
}

# Trap of ERR if code has none of its own.
on_err() {
  { @note@; @leave@; } 2>/dev/null
}

# Trap of ERR around the text of one that the code has set.
#
# The text runs where bash would run it, once, without `set -e` so that a command of its own that
# fails does not end the shell. The loop is there for its `$?`, and because no trace shows it.
around_err() {
  until { @note@; case ${nsm_stop-}:$-:$BASH_SUBSHELL:${#BASH_SOURCE[@]}:${FUNCNAME-} in \
    :*e*:@levels@) nsm_errexit=1; \builtin \set +e; (\exit "$nsm_last");; \
    :*:@levels@) (\exit "$nsm_last");; \
  esac; } 2>/dev/null; do @text@
    { \break; } 2>/dev/null
  done; { (( ${nsm_errexit-0} == 0 )) || { nsm_errexit=0; \builtin \set -e; }; @leave@; } 2>/dev/null
}

# Trap of EXIT if code has none of its own.
#
# Under `set -e` a failed expansion ends the shell at once, with the command that failed still there.
# Only an interrupt leaves that. Without the `||` bash would not look for the interrupt again before
# it ends. If the command is the `.` of the driver, the shell has given up the code and ends anyway.
on_exit() {
  { @stay@; } 2>/dev/null
}

stay() {
  nsm_left=$?; \
    [[ $BASH_COMMAND == *'. /dev/fd/@source@ '* ]] || { nsm_stop=$nsm_left; \builtin \kill -INT "${BASHPID:-$$}" || :; }
}

# Trap of EXIT around the text of one that the code has set.
around_exit() {
  if { @stay@; (\exit "$nsm_left"); } 2>/dev/null; then
    @text@
  else
    @text@
  fi
}

# Sets the traps of ERR and EXIT where code has none.
set_traps() {
  nsm_now=$(\builtin \trap -p ERR EXIT); [[ $nsm_now == *\'\ ERR* ]] || \builtin \trap -- @on_err@ ERR; \
    [[ $nsm_now == *\'\ EXIT ]] || \builtin \trap -- @on_exit@ EXIT
}

# Sets them around those that code has, or in their place.
wrap_traps() {
  nsm_now=$(\builtin \trap -p ERR); case $nsm_now in \
    *nsm_line*) ;; \
    *\'?*\'*) nsm_err=$nsm_now; \builtin \eval "nsm_text=${nsm_now:8:-4}"; \
      \builtin \trap -- @around_err@ ERR;; \
    *) nsm_err=$nsm_now; \builtin \trap -- @on_err@ ERR;; \
  esac; \
  nsm_now=$(\builtin \trap -p EXIT); case $nsm_now in \
    *nsm_left*) ;; \
    *\'?*\'*) nsm_exit=$nsm_now; \builtin \eval "nsm_text=${nsm_now:8:-5}"; \
      \builtin \trap -- @around_exit@ EXIT;; \
    *) nsm_exit=$nsm_now; \builtin \trap -- @on_exit@ EXIT;; \
  esac
}

# Trap of DEBUG in code that may set such traps itself: notes each `trap` command, and before the next
# command has it looked at. It is run for each command, so it is short.
watch() {
  { case ${nsm_seen-}:$BASH_SUBSHELL:$BASH_COMMAND in \
    1:0:*) \builtin \eval "$nsm_look";; \
    :*:*trap\ *) nsm_seen=1;; \
  esac; } 2>/dev/null
}

# Looks at what a `trap` command has set. After as many as the code has, there is no more to watch.
look() {
  nsm_seen=; [[ $BASH_COMMAND != *trap\ * ]] || nsm_seen=1; @traps@; \
    (( --nsm_traps > 0 )) || { \builtin \trap - DEBUG; @untrace@; }
}

# Tells the status of the last command and the numbers by way of a failing redirection.
#
# No function, alias or disabled builtin can stand in the way of that, no trace shows it since
# nothing is run, and for `set -e` and an ERR trap it is not a command that failed. A DEBUG trap may
# forbid simple commands, and redirections are one; of compound commands it sees nothing before they
# are redirected. (They come second since bash, after an `exec` of redirections in the code, frees
# memory twice if those of a compound command fail.)
report() {
  2>&0 3</dev/null/"@status@ $- $BASHPID @ @number@ @confirmation@ " && (( 1 )) \
    2>&0 3</dev/null/"@status@ $- $BASHPID @ @number@ @confirmation@ " || 2>&0
}

# Tells the same if the line with the report was given up, and sets the parser right.
#
# After an unclosed `$(` the parser of bash 5.2 counts -1 open quotes, and notes the next one in
# front of its list, where the allocator has the size of the block: the shell dies some time later.
# So nothing may be quoted until a syntax error has reset the count, and the report proper must have
# been read before the code ran. Unquoted text is split at `IFS`, which makes another error of it.
# (The syntax error is in a file since one of the driver's own would end the shell under `set -e`.)
report_again() {
  2>&0 3</dev/null/@status@\ $-\ $BASHPID\ @\ @number@\ @confirmation@\  || 2>&0
  \. /dev/fd/0 <<<\) || 2>&0
}

# Runs the code; a report follows in the same line. Its standard input is a path, or a descriptor
# with `&` before it. The shell has its own arguments again after code that was given some.
run() {
  \. /dev/fd/@source@ @words@ <@stdin@ >&@out@ 2>&@err@;
}

# Parses the code; a report follows in the same line.
parse() {
  \. /dev/fd/@source@ <&@null@ >&@null@ 2>&@null@;
}

# Puts back what the driver needs if code has disabled it (`enable -n`), and removes functions named
# `.` and `builtin`, by which it runs all else. Code may have done the same to each command here, too.
repair() {
  { \command \unset -f . builtin; \unset -f . builtin; \builtin \unset -f .; \
    \enable . builtin eval trap unset set exec kill exit return break; \
    \builtin \enable . builtin eval trap unset set exec kill exit return break; \
    \command \enable . builtin eval trap unset set exec kill exit return break; } 2>/dev/null || 2>&0
}

# Before code that may end the shell.
guard() {
  \builtin \unset nsm_stop nsm_errexit; @traps@; \builtin \set -E
}

# Before code that may set traps itself. A trap of DEBUG from before is not for the code that is
# sourced, unless `set -T` is on.
guard_traps() {
  nsm_traps=@number@ nsm_look=@look@ nsm_debug=$(\builtin \trap -p DEBUG); \
    [[ $- == *T* && $nsm_debug == *\'* ]] || { \builtin \trap -- @watch@ DEBUG; \builtin \set -T; }
}

# After such code: its status, for the report that follows in the same line.
settle() {
  nsm_stop=@status@; (( ${nsm_errexit-0} == 0 )) || \builtin \set -e;
}

# After the report: what the code has left of these traps becomes its own again.
unguard() {
  @untrace@; nsm_now=$(\builtin \trap -p ERR EXIT); \
    [[ $nsm_now != *nsm_line* ]] || { \builtin \trap - ERR; \builtin \eval "${nsm_err:+\\builtin $nsm_err}"; }; \
    [[ $nsm_now != *nsm_left* ]] || { \builtin \trap - EXIT; \builtin \eval "${nsm_exit:+\\builtin $nsm_exit}"; }; \
    (( ${nsm_errexit-0} == 0 )) || \builtin \set -e; \
    \builtin \unset nsm_stop nsm_errexit nsm_last nsm_line nsm_left nsm_now nsm_text nsm_err nsm_exit
}

# The same after code that may have set traps, before that.
unguard_traps() {
  @untrace@; [[ $(\builtin \trap -p DEBUG) != *nsm_look* ]] || \builtin \trap - DEBUG; \
    [[ $nsm_debug != *\'* || $(\builtin \trap -p DEBUG) == *\'* ]] || \builtin \eval "\\builtin $nsm_debug"; \
    \builtin \unset nsm_debug nsm_look nsm_traps nsm_seen
}

# First command of a script, which bash reads from BASH_ENV. `:` is a function that is gone when it
# has run: messages about a syntax error show the whole line.
prepare_script() {
  \unset BASH_ENV; \exec 8<&-; \trap -- @end@ INT; \
    :() { \unset -f :; \exec 9<&-; \cd -- @workspace@; \unset OLDPWD; }
}

# The same for a script that is run by its own path.
prepare_file() {
  \unset BASH_ENV; \exec 8<&- 9<&-; \trap -- @end@ INT
}

# Before it becomes a script: where the link is.
enter() {
  \cd -- @folder@;
}

# Becomes a shell that runs the file as a script; a report follows in the same line.
#
# Bash's messages name a script by the path that bash was given. So that is `bash`, a link in a
# directory of its own, and the script's first command goes back from there.
become_script() {
  BASH_ENV=/dev/fd/8 \exec -a bash @program@ @path@ @words@ 8<<<@first@ 9</dev/fd/@source@ \
    <@stdin@ >&@out@ 2>&@err@;
}
