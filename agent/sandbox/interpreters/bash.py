"""Bash: one long-lived shell, driven by lines on its control socket."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time

from sandbox.framing import READ_BYTES
from sandbox.interpreters.base import Interpreter
from sandbox.linux import identity_of, restore_signals
from sandbox.processes import caught_signals, read_children, read_process, send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from sandbox.agent import Agent
    from sandbox.processes import Process


HOLD_S = 0.0005

HOLD_LIMIT_S = 1.0
"""How long a shell may take to stop, and its forks to begin, before they are signalled, at most:
microseconds, or on a machine with more to do than processors until it is their turn."""


class BashInterpreter(Interpreter):
    """One long-lived shell.

    It is an interactive one, reading commands from its control socket: an interrupt or a failed
    expansion then aborts the code and not the shell. User code is never among those commands: it
    is sourced from a memory file that the agent rewrites, so an unclosed quote ends with the
    file. Descriptors 0 to 2 are the code's for the duration of that `source` only; what bash
    prints about the driver's own lines (`set -x`, DEBUG traps, prompts) goes to /dev/null.

    The descriptors that it needs between executions are close-on-exec, and those that bash saves
    while code runs lie above them, so that scripts have 3 to 199 for themselves.

    A one-shot needs no state afterwards. The shell replaces itself by `bash FILE`, so that all is
    as in a script: what stops it, the numbers of lines in messages, an EXIT trap. Only a shell
    that a set-up has given functions and variables runs a one-shot as it runs any code.

    In an interactive shell a failed expansion ends one command and `set -e` ends the shell. Code
    that may meet one of these, by its text or the options that are on, is guarded, so that it stops
    as a script does and the shell lives on. A failed expansion gives up the whole command that it
    is in, so the code is made one command, in braces, if it can be parsed as such. For `set -e`
    there are two traps, if code has none of its own: `ON_ERR` and `ON_EXIT`.
    """

    name = "bash"
    may_miss_interrupt = True
    exit_note = " (`exit`, `exec`, or a command that failed under `set -e`)"
    OPTIONS = (
        *("--norc", "--noprofile", "--noediting", "+o", "history", "+o", "histexpand"),
        *("-O", "execfail", "-i"),  # a failed `exec` ends no shell at a terminal either
    )
    FIRST_FD = 230
    ABORT_SIGNAL = signal.SIGURG
    """Follows SIGINT to have the shell give up the code. Ignored if code took the trap away.

    On SIGINT alone bash goes on with the next command if the one that it waits for handles the
    signal and exits, as test runners and `ping` do. A trap runs between the two. It leaves code
    alone that has a trap for SIGINT of its own, and does nothing while no code is sourced.
    """
    ABORT = (
        r"{ [[ -z ${BASH_SOURCE-} || -n $(\builtin \trap -p INT) ]] || \builtin \kill -INT "
        r'"$$"; } </dev/null >/dev/null 2>&1'
    )
    SETS_ERREXIT = re.compile(r"\bset\s(?:[^\n;&|]*\s)?-\w*e|\berrexit\b")
    SETS_NOUNSET = re.compile(r"\bset\s(?:[^\n;&|]*\s)?-\w*u|\bnounset\b")
    ASSERTS = re.compile(r"\$\{!?\w+(?:\[[^]]*\])?:?\?")
    SETS_ERRTRACE = re.compile(r"\bset\s(?:[^\n;&|]*\s)?[-+]\w*E|\berrtrace\b")
    ON_ERR = (
        "case $BASH_SUBSHELL:${#BASH_SOURCE[@]}:$- in "
        r"0:0:*e*) nsm_errexit=1; \set +e;; "
        r"0:1:*e*) nsm_stop=${nsm_stop-$((LINENO * 256 + $?))}; \return 0;; "
        r"0:*e*) nsm_stop=${nsm_stop-$((BASH_LINENO[-2] * 256 + $?))}; \return 1;; esac"
    )
    """Runs where `set -e` is about to end the shell, and returns from the code instead.

    It does so from each function in turn. Last fails the `.` of the driver, and `set -e` must be
    off then. A subshell ends as usual.
    """
    ON_EXIT = r'nsm_stop=$?; { \kill -INT "$$" || :; } 2>/dev/null'
    """Under `set -e` a failed expansion ends the shell at once. Only an interrupt leaves that.

    It does nothing to a shell that ends otherwise, since that has given up its code before.
    Without the `||` bash would not look for the interrupt again before it ends.
    """
    CONFIRMATIONS = 3
    """Reports after signals: SIGINT may discard one, `ABORT` another, before all is settled."""
    SCRIPT_ABORT = (
        r"{ [[ -n $(\builtin \trap -p INT) ]]; } </dev/null >/dev/null 2>&1"
        r' || \builtin \kill -INT "$$"'  # an EXIT trap that it sets off may print
    )

    def __init__(self, agent: Agent, program: str) -> None:
        super().__init__(agent, program)
        self._code_fd = -1
        self._line = b""
        self._fds: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._confirmations = 0
        self._has_handlers = False
        self._one_shot = False
        self._number = 0
        self._options = b""
        self._added_option = b""
        self._unparsed: str | None = None
        self._held = ""
        # Made with a name that nobody can foresee, and not used if it is there already.
        self._link_folder = f"/tmp/.nsm-{os.getpid()}-{os.urandom(4).hex()}"  # noqa: S108
        self.ends_with_code = False

    @property
    def takes_signals(self) -> bool:
        return self._has_handlers

    def kept_fds(self) -> tuple[int, ...]:
        return (self._code_fd,)

    def start(self) -> None:
        first = min(self.FIRST_FD, self.agent.limits.resources.get("descriptors", 1024) - 24)
        self._fds = (first, first + 1, first + 2, first + 3)
        if self._code_fd >= 0:
            os.close(self._code_fd)
        self._code_fd = os.memfd_create("code", os.MFD_CLOEXEC)
        super().start()

    def become_program(self, control_fd: int) -> NoReturn:
        restore_signals()
        for target, source in enumerate((self._code_fd, 0, 1, 2), start=20):
            os.dup2(source, target, inheritable=False)
        for target in (3, 4, 5, 6):
            os.dup2(target + 17, target)
        os.dup2(control_fd, 0)
        os.dup2(4, 1)
        os.dup2(4, 2)
        os.execv(self.program, ["bash", *self.OPTIONS])

    def begin(self) -> None:
        self._line = b""
        self._has_handlers = False
        self._options = b""
        self._held = ""
        self.ends_with_code = False
        code, null, out, err = self._fds
        # While 3 to 6 are closed for a group of commands, bash keeps them at 10 to 13 marked
        # close-on-exec, and duplicating a marked descriptor marks the copy.
        self._command(
            f"{{ \\exec {code}<&10 {null}<&11 {out}>&12 {err}>&13; }} 3<&- 4<&- 5>&- 6>&-\n"
            "\\exec 3<&- 4<&- 5>&- 6>&-\n"
            f"\\trap -- '{self.ABORT}' {self.ABORT_SIGNAL.name}\n" + self._report(0, 0)
        )

    @staticmethod
    def _report(number: int, confirmation: int, status: str = "$?") -> str:
        """Tells the status of the last command and the numbers by way of a failing redirection.

        No function, alias or disabled builtin can stand in the way of that, no trace shows it
        since nothing is run, and for `set -e` and an ERR trap it is not a command that failed.
        A DEBUG trap may forbid simple commands, and redirections are one; of compound commands it
        sees nothing before they are redirected. (They come second since bash, after an `exec` of
        redirections in the code, frees memory twice if those of a compound command fail.)
        """
        report = f'2>&0 3</dev/null/"{status} $- $BASHPID @ {number} {confirmation} "'
        return f"{report} && (( 1 )) {report} || 2>&0\n"

    @staticmethod
    def _last_report(number: int, confirmation: int, status: str = "$?") -> str:
        r"""Tells the same if the line with the report was given up, and sets the parser right.

        After an unclosed `$(` the parser of bash 5.2 counts -1 open quotes, and notes the next one
        in front of its list, where the allocator has the size of the block: the shell dies some
        time later. So nothing may be quoted until a syntax error has reset the count, and the
        report proper must have been read before the code ran. Unquoted text is split at `IFS`,
        which makes another error of it. (The syntax error is in a file since one of the driver's
        own would end the shell under `set -e`.)
        """
        report = rf"2>&0 3</dev/null/{status}\ $-\ $BASHPID\ @\ {number}\ {confirmation}\ "
        return f"{report} || 2>&0\n\\. /dev/fd/0 <<<\\) || 2>&0\n"

    def _command(self, lines: str) -> None:
        if self.link is not None:
            self.link.send(lines.encode())

    def send_code(self, number: int, code: str, *, one_shot: bool = False) -> None:
        self._number = number
        self._one_shot = one_shot
        self.ends_with_code = one_shot and not self.setup
        self._confirmations = 0
        self._unparsed = None
        self._added_option = b""
        source, null, out, err = self._fds
        streams = f"<&{null} >&{out} 2>&{err}"
        if self.ends_with_code:
            self._write_code(":;" + code)
            lines = (
                f"{self._become_script()} {streams}; "
                + self._report(number, 0)
                + self._last_report(number, 0)
            )
            if self._has_handlers:
                self._command(lines)
            else:
                # It closes the control socket, and with lines unread in there its first report
                # is lost.
                self._held = lines
        elif b"u" in self._options or self.SETS_NOUNSET.search(code) or self.ASSERTS.search(code):
            self._unparsed = code
            self._write_code(f"((1))||{{ {code}\n}}")
            self._command(
                f"\\. /dev/fd/{source} <&{null} >&{null} 2>&{null}; "
                + self._report(number, 0)
                + self._last_report(number, 0)
            )
        elif b"e" in self._options or self.SETS_ERREXIT.search(code):
            self._send_guarded(number, code)
        else:
            self._write_code(code)
            self._command(
                f"\\. /dev/fd/{source} {streams}; "
                + self._report(number, 0)
                + self._last_report(number, 0)
            )

    def _send_guarded(self, number: int, code: str) -> None:
        """Has the shell run code so that what would end a script ends no more than the code."""
        self._write_code(code)
        source, null, out, err = self._fds
        status = "${nsm_stop-$?}"
        stays = b"E" in self._options or self.SETS_ERRTRACE.search(code)
        self._added_option = b"" if stays else b"E"
        untrace = "" if stays else r"\set +E; "
        self._command(
            r"\unset nsm_stop nsm_errexit; "
            rf"[[ $(\trap -p ERR) == *\'* ]] || \trap -- {_quoted(self.ON_ERR)} ERR; "
            rf"[[ $(\trap -p EXIT) == *\'* ]] || \trap -- {_quoted(self.ON_EXIT)} EXIT; \set -E"
            "\n"
            rf"\. /dev/fd/{source} <&{null} >&{out} 2>&{err}; "
            rf"nsm_stop={status}; (( ${{nsm_errexit-0}} == 0 )) || \set -e; "
            + self._report(number, self._confirmations, status)
            + self._last_report(number, self._confirmations, status)
            + r"[[ $(\trap -p ERR) != *nsm_stop* ]] || \trap - ERR; "
            r"[[ $(\trap -p EXIT) != *nsm_stop* ]] || \trap - EXIT; "
            rf"{untrace}\unset nsm_stop nsm_errexit"
            "\n"
        )

    def _write_code(self, code: str) -> None:
        os.ftruncate(self._code_fd, 0)
        view = memoryview(code.encode("utf-8", "replace"))
        offset = 0
        while offset < len(view):
            offset += os.pwrite(self._code_fd, view[offset:], offset)

    def _become_script(self) -> str:
        """Gives the command by which the shell becomes one that runs the file as a script.

        Bash's messages name a script by the path that bash was given. So that is `bash`, a link in
        a directory of its own, and the script's first command goes back from there. It is `:`, a
        function that is gone when it has run: messages about a syntax error show the whole line.
        """
        source = self._fds[0]
        first = (
            r"\unset BASH_ENV; \exec 8<&-; "
            rf"\trap -- {_quoted(self.SCRIPT_ABORT)} {self.ABORT_SIGNAL.name}; "
            rf":() {{ \unset -f :; \exec 9<&-; \cd -- {_quoted(self.agent.workspace)}; "
            r"\unset OLDPWD; }"
        )
        path, change = "/dev/fd/9", ""
        with contextlib.suppress(OSError):
            os.mkdir(self._link_folder, 0o700)
            os.symlink(path, f"{self._link_folder}/bash")
            path, change = "bash", rf"\cd -- {_quoted(self._link_folder)}; "
        return (
            rf"{change}BASH_ENV=/dev/fd/8 \exec -a bash {_quoted(self.program)} {path} "
            f"8<<<{_quoted(first)} 9</dev/fd/{source}"
        )

    def on_exit(self) -> None:
        if self.ends_with_code:
            self._note_background()
            with contextlib.suppress(OSError):
                os.unlink(f"{self._link_folder}/bash")
                os.rmdir(self._link_folder)

    def _note_background(self) -> None:
        """Says what ends with a one-shot though its code had put it into the background."""
        if self._one_shot and (count := self.agent.trees.count_background()):
            ended = (
                "1 background process was" if count == 1 else f"{count} background processes were"
            )
            self.add_note(
                f"{ended} still running when the code ended, and ended with it; "
                "`wait` for them, or run the code in a session"
            )

    def variables_code(self, variables: Mapping[str, str]) -> str:
        return "".join(f"export {name}={_quoted(value)}\n" for name, value in variables.items())

    def hold(self) -> None:
        """Stops the shell, so that what it is starting is there to be seen, and set up."""
        if self.takes_signals:
            send_signal(self.pid, signal.SIGSTOP)
            self._await(lambda row: row.state == b"T" and not self._has_new_forks())

    def await_forks(self) -> None:
        self._await(lambda _: not self._has_new_forks())

    def _await(self, condition: Callable[[Process], bool]) -> None:
        """Waits until that is true of the shell, or it has ended, for a bounded time."""
        limit = time.monotonic() + HOLD_LIMIT_S
        while True:
            row = read_process(self.pid)
            if row is None or not row.alive or condition(row) or time.monotonic() > limit:
                return
            time.sleep(HOLD_S)

    def _has_new_forks(self) -> bool:
        """Whether a child may still have the shell's handlers, all or those not yet reset.

        That takes a fork microseconds, but from when it is its turn to run. Interrupted before, it
        may take itself for the shell and read the lines that are meant for that.

        Forks reset them in the order of their numbers, but those that end a shell before, so that
        for SIGINT is gone when the one for `ABORT_SIGNAL` is. What has that of its own, after an
        exec, has others as well that no shell has.
        """
        mask = caught_signals(self.pid)
        last = 1 << self.ABORT_SIGNAL - 1
        for pid in read_children(self.pid):
            theirs = caught_signals(pid)
            if theirs == mask or (theirs & last and not theirs & ~mask):
                return True
        return False

    def release(self, number: int) -> None:
        # A report of before would say nothing about signals that the shell has yet to handle,
        # and that would hit the next execution.
        self._confirmations += 1
        if self.takes_signals:
            send_signal(self.pid, self.ABORT_SIGNAL)
        self._command(self._report(number, self._confirmations) * self.CONFIRMATIONS)

    def on_data(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-READ_BYTES:]
        for line in lines:
            words = line.partition(b": /dev/null/")[2].split(b" ", 6)
            if words[0].startswith(
                b"$"
            ):  # could not be expanded: the code was aborted, by a SIGINT
                words = [b"130", b"", b"", *(each.rstrip(b"\\") for each in words[3:])]
            if len(words) == 7 and words[3] == b"@" and words[2] in {b"", b"%d" % self.pid}:
                numbers = (words[0], words[4], words[5])
                if all(each.isdigit() and len(each) < 20 for each in numbers):
                    if b"r" in words[1]:
                        self.agent.executions.end_interpreter(
                            self, "became a restricted shell by `set -r`", int(words[0])
                        )
                    else:
                        if words[1]:
                            self._options = words[1].replace(self._added_option, b"")
                        self._on_report(*map(int, numbers))

    def _on_report(self, status: int, number: int, confirmation: int) -> None:
        if number == 0:
            self._on_begun(status)
        elif self.runs and number == self._number and confirmation == self._confirmations:
            code, self._unparsed = self._unparsed, None
            if code is not None and confirmation == 0:
                self._confirmations = 1
                self._send_guarded(number, f"{{ {code}\n}}" if status == 0 else code)
                return
            self._note_background()
            line, status = divmod(status, 256)
            if line:
                self.add_note(f"`set -e` stopped the code at line {line}; the session goes on")
            self.agent.executions.on_done(self, number, status)

    def _on_begun(self, status: int) -> None:
        if self._has_handlers:
            return  # code says so, which may say it thousands of times
        if status != 0:
            self.agent.executions.end_interpreter(
                self, "cannot set up its descriptors; is it GNU bash?"
            )
            return
        code, null, out, err = self._fds
        self.expect_private(
            {
                code: identity_of(os.fstat(self._code_fd)),
                null: identity_of(os.stat("/dev/null")),
                out: self.pipes["stdout"].identity,
                err: self.pipes["stderr"].identity,
            }
        )
        self._has_handlers = True
        held, self._held = self._held, ""
        execution = self.agent.running
        if held and execution is not None and not execution.stopping:
            self._command(held)
        self.agent.stopper.on_interruptible(self)

    def limit(self, limits: Mapping[str, int]) -> None:
        # The shell may have to begin anew anyway: its descriptors must lie below the limit.
        if self.has_state:
            super().limit(limits)
        else:
            self.start_over()


def _quoted(text: str) -> str:
    """Gives the text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"
