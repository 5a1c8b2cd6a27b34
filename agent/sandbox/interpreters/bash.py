"""Bash: one long-lived shell, driven by lines on its control socket."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import stat
import time

from sandbox.capture import OutputPipe
from sandbox.framing import READ_BYTES
from sandbox.interpreters.base import Interpreter
from sandbox.job_start import in_a_scope
from sandbox.limits import limits_for_bash
from sandbox.linux import IGNORED_BY_PYTHON, identity_of
from sandbox.processes import caught_signals, read_children, read_process, signal_child
from sandbox.workers import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sandbox.processes import Process, ProcessTrees
    from sandbox.session import SharedSession


VALUES = (
    *("source", "null", "out", "err", "number", "confirmation", "status", "signal"),
    *("abort", "end", "workspace", "folder", "program", "path", "first"),
    *("note", "leave", "levels", "text", "around_err", "on_err", "around_exit", "on_exit"),
    *("stdin", "words", "stay", "traps", "look", "watch", "untrace"),
)
"""Names between two `@` in the driver."""


def _parts_of(driver: str) -> dict[str, str]:
    """Parts of the driver by name, for `%`. No expressions: compiling them takes longer."""
    parts: dict[str, str] = {}
    for function in driver.split("\n}\n"):
        head, _, body = function.partition("() {\n  ")
        text = body.replace("\n  ", "\n").replace(" \\\n  ", " ").replace(" \\\n", " ")
        for value in VALUES:
            text = text.replace(f"@{value}@", f"%({value})s")
        parts[head.rpartition("\n")[2]] = text
    return parts


PARTS = _parts_of(text_of("bash/driver.sh"))
"""Parts of the driver, which the shell receives one by one."""


def quoted(text: str) -> str:
    """Give the text as one word of a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


class CodeFile:
    """Memory file that is written again for each piece of code. The descriptor is its own."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._shows_reads = True  # for the trial: not every kernel notes reads
        self.write("try")
        os.pread(fd, 1, 0)
        self._shows_reads = not self.is_unread

    def write(self, code: str) -> None:
        """Put code in the place of what was there."""
        os.ftruncate(self.fd, 0)
        view = memoryview(code.encode("utf-8", "replace"))
        offset = 0
        while offset < len(view):
            offset += os.pwrite(self.fd, view[offset:], offset)
        os.utime(self.fd, ns=(0, 0))

    @property
    def is_unread(self) -> bool:
        """True if nobody has read what was written; False where the kernel does not tell."""
        status = os.fstat(self.fd)
        return self._shows_reads and status.st_size > 0 and status.st_atime_ns == 0

    def close(self) -> None:
        os.close(self.fd)


HOLD_S = 0.0005

HOLD_LIMIT_S = 1.0
"""How long a shell may take to stop, and its forks to begin, before they are signalled, at most:
microseconds, or on a machine with more to do than processors until it is their turn."""


def first_descriptor(resources: Mapping[str, int]) -> int:
    """The first of the four descriptors that a shell keeps: code, /dev/null, stdout, stderr."""
    return min(230, resources.get("descriptors", 1024) - 24)


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
    there are two traps, `on_err` and `on_exit`, or `around_err` and `around_exit` about those that
    code has of its own: a trap of DEBUG sees it set them (`watch`).

    Bash gives the number of a line in its messages only if it is not interactive, and a shell that
    is not ends at an interrupt and at a failed expansion, with its state. It counts each sourced
    file as one level of `set -x`, and after a bad number for a variable that is an integer it goes
    on where it reads commands itself. So a session differs from a script in these.
    """

    name = "bash"
    may_miss_interrupt = True
    has_jobs = True
    exit_note = " (`exit`, `exec`, or a command that failed under `set -e`)"
    OPTIONS = (
        *("--norc", "--noprofile", "--noediting", "+o", "history", "+o", "histexpand"),
        *("-O", "execfail", "-i"),  # a failed `exec` ends no shell at a terminal either
    )
    ABORT_SIGNAL = signal.SIGURG
    """Follows SIGINT to have the shell give up the code (`abort`). Ignored if code took the trap
    away."""
    SETS_ERREXIT = re.compile(r"\bset\s(?:[^\n;&|]*\s)?-\w*e|\berrexit\b")
    SETS_NOUNSET = re.compile(r"\bset\s(?:[^\n;&|]*\s)?-\w*u|\bnounset\b")
    ASSERTS = re.compile(r"\$\{!?\w+(?:\[[^]]*\])?:?\?")
    SETS_ERRTRACE = re.compile(r"\bset\s(?:[^\n;&|]*\s)?[-+]\w*E|\berrtrace\b")
    SETS_FUNCTRACE = re.compile(r"\bset\s(?:[^\n;&|]*\s)?[-+]\w*T|\bfunctrace\b")
    SETS_TRAP = re.compile(r"\btrap\s+(?!-(?:[lp]|\s))")
    MAY_TRAP_INT = re.compile(r"\btrap\b.*(?:INT\b|\b2\b)", re.DOTALL | re.IGNORECASE)
    COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
    RESUMES = re.compile(r"(?:^|[;&|({]|\b(?:do|then|else|if|while|!))\s*(?:fg|bg)\b", re.MULTILINE)
    CONFIRMATIONS = 3
    """Reports after signals: SIGINT may discard one, `abort` another, before all is settled."""

    def __init__(self, session: SharedSession, trees: ProcessTrees, program: str) -> None:
        super().__init__(session, trees, program)
        self._code: CodeFile | None = None
        self._send_again: Callable[[], None] = _nothing
        self._line = b""
        self._fds: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._confirmations = 0
        self._has_handlers = False
        self._stdin = ""
        self._number = 0
        self._options = b""
        self._added_options = b""
        self._has_traps = False
        self._may_trap_int = False
        self._unparsed: str | None = None
        self._held = ""
        self._link_folder = ""
        self.ends_with_code = False

    @property
    def takes_signals(self) -> bool:
        return self._has_handlers

    def start(self) -> None:
        self._prepare()
        if self._code is not None:
            self._code.close()
        self._code = CodeFile(os.memfd_create("code", os.MFD_CLOEXEC))
        super().start()

    def _prepare(self) -> None:
        first = first_descriptor(self.session.limits.resources)
        self._fds = (first, first + 1, first + 2, first + 3)
        # Made with a name that nobody can foresee, and not used if it is there already.
        self._link_folder = self._link_folder or f"/tmp/.nsm-{os.urandom(8).hex()}"  # noqa: S108

    def adopt(self, pid: int, *fds: int) -> None:
        """Take over the copy of a shell, which waits for commands."""
        self._code = CodeFile(fds[1])
        self._prepare()
        super().adopt(pid, *fds)
        self._has_traps = True  # which nobody knows
        seed = int.from_bytes(os.urandom(4), "little")
        self._command(self._part("begin_fork", number=seed) + "\n" + self._report(0, 0, "0"))

    def spawn(self, control_fd: int, pipes: Mapping[str, OutputPipe]) -> int:
        """Start the shell without a fork, which would copy the agent's memory for nothing.

        Everything else that the agent has open is close-on-exec.
        """
        given = (control_fd, self._file.fd, pipes["stdout"].child_fd, pipes["stderr"].child_fd)
        null = max(given) + 1
        copies = range(null + 1, null + 1 + len(given))  # beyond what any step below overwrites
        control, code, out, err = copies
        places = {0: control, 1: null, 2: null, 3: code, 4: null, 5: out, 6: err}
        actions = [
            (os.POSIX_SPAWN_OPEN, null, "/dev/null", os.O_RDWR, 0),
            *((os.POSIX_SPAWN_DUP2, fd, copy) for fd, copy in zip(given, copies)),
            *((os.POSIX_SPAWN_DUP2, fd, place) for place, fd in places.items()),
            *((os.POSIX_SPAWN_CLOSE, fd) for fd in (null, *copies)),
        ]
        with contextlib.suppress(OSError):
            os.chdir(self.session.workspace)
        start = functools.partial(
            os.posix_spawn,
            self.program,
            ["bash", *self.OPTIONS],
            os.environ,
            file_actions=actions,
            setsid=True,
            setsigdef=IGNORED_BY_PYTHON,
        )
        return in_a_scope(start) if self.session.has_forks else start()

    def begin(self) -> None:
        self._line = b""
        self._has_handlers = False
        self._options = b""
        self._has_traps = False
        self._held = ""
        self.ends_with_code = False
        values = {"abort": PARTS["abort"], "signal": self.ABORT_SIGNAL.name}
        limits = limits_for_bash(self.session.limits.resources)
        self._command("\n".join([self._part("begin", **values), *limits, self._report(0, 0)]))

    def _part(self, name: str, **values: object) -> str:
        """A part of the driver, with descriptors and `values` put in."""
        source, null, out, err = self._fds
        known = {"source": source, "null": null, "out": out, "err": err}
        return PARTS[name] % {**known, **values}

    @staticmethod
    def _report(number: int, confirmation: int, status: str = "$?") -> str:
        values = {"number": number, "confirmation": confirmation, "status": status}
        return PARTS["report"] % values + "\n"

    @classmethod
    def _reports(cls, number: int, confirmation: int, status: str = "$?") -> str:
        """The rest of the line that runs something, and what follows it."""
        values = {"number": number, "confirmation": confirmation, "status": status}
        again = PARTS["report_again"] % values
        return f" {cls._report(number, confirmation, status)}{again}\n"

    def _command(self, lines: str) -> None:
        if self.link is not None:
            self.link.send(lines.encode())

    def send_code(self, number: int, code: str, *, one_shot: bool = False, stdin: str = "") -> None:
        self._number = number
        self._stdin = stdin or f"&{self._fds[1]}"
        self.ends_with_code = one_shot and not self.setup
        self.resumes_jobs = bool(self.RESUMES.search(code))
        self._has_traps = self._has_traps or bool(self.SETS_TRAP.search(code))
        self._may_trap_int = bool(self.MAY_TRAP_INT.search(code))
        self._confirmations = 0
        self._unparsed = None
        self._added_options = b""
        in_place = self.ends_with_code and self._is_file(code)
        if self.argv and not in_place:  # in the same line: the numbers of lines stay
            # The name would stay, too, in a session that goes on.
            name = f"BASH_ARGV0={quoted(self.argv[0])};" if self.ends_with_code else ""
            code = f"shift; {name} {code}"
        if self.ends_with_code:
            self._file.write(":;" + code)
            lines = self._become_script(in_place=in_place) + self._reports(number, 0)
            if self._has_handlers:
                self._command(lines)
            else:
                # It closes the control socket, and with lines unread in there its first report
                # is lost.
                self._held = lines
        elif b"u" in self._options or self.SETS_NOUNSET.search(code) or self.ASSERTS.search(code):
            self._unparsed = code
            self._file.write(f"((1))||{{ {code}\n}}")
            self._command(self._part("parse") + self._reports(number, 0))
        elif b"e" in self._options or self.SETS_ERREXIT.search(code):
            self._send_guarded(number, code)
        else:
            self._send_plain(number, code)

    def _send_plain(self, number: int, code: str) -> None:
        self._send_again = functools.partial(self._send_plain, number, code)
        self._file.write(code)
        self._command(self._run() + self._reports(number, self._confirmations))

    def _run(self) -> str:
        """Give the command that runs the code with its standard input."""
        return self._part("run", stdin=self._stdin, words=self._words())

    def _words(self) -> str:
        """Give what code finds in `$1` and so on, for a script after a word that it shifts away:
        without any, `.` would let it find those of the shell.
        """
        return " ".join(["-", *map(quoted, self.argv[1:])]) if self.argv else ""

    def _send_guarded(self, number: int, code: str) -> None:
        """Have the shell run code so that what would end a script ends no more than the code."""
        self._send_again = functools.partial(self._send_guarded, number, code)
        self._file.write(code)
        status = "${nsm_stop-$?}"
        errtrace = b"E" in self._options or self.SETS_ERRTRACE.search(code)
        functrace = b"T" in self._options or self.SETS_FUNCTRACE.search(code)
        traps = len(self.SETS_TRAP.findall(self.COMMENT.sub("", code)))
        set_traps = self._set_traps("*:[1-9]*:*" if errtrace else "0:[1-9]*:")
        self._added_options = b"" if errtrace else b"E"
        before = PARTS["repair"] + "\n" + self._part("guard", traps=set_traps)
        after = self._part("unguard", untrace=self._off(b"E"))
        if traps:
            self._added_options += b"" if functrace else b"T"
            untrace = self._off(b"T")
            look = quoted(self._part("look", traps=set_traps, untrace=untrace))
            watch = quoted(PARTS["watch"])
            before += "\n" + self._part("guard_traps", number=traps, look=look, watch=watch)
            after = self._part("unguard_traps", untrace=untrace) + "\n" + after
        lines = (
            before,
            f"{self._run()} {self._part('settle', status=status)}"
            + self._reports(number, self._confirmations, status)
            + after,
            "",
        )
        self._command("\n".join(lines))

    def _off(self, option: bytes) -> str:
        """Give the command that switches an option off if the driver has switched it on."""
        return rf"\builtin \set +{option.decode()}" if option in self._added_options else "[[ 1 ]]"

    def _set_traps(self, levels: str) -> str:
        """Give the command that sets the traps of ERR and EXIT. `levels` is a pattern of the depths
        of subshells and calls and the function in which code's own trap of ERR runs."""
        around = "\0"
        values = {"note": PARTS["note"], "leave": PARTS["leave"], "stay": self._part("stay")}
        names = ["on_err", "on_exit"]
        if self._has_traps:
            names += ["around_err", "around_exit"]
        traps = {
            name: quoted(self._part(name, levels=levels, text=around, **values)).replace(
                around, "'\"$nsm_text\"'"
            )
            for name in names
        }
        return self._part("wrap_traps" if self._has_traps else "set_traps", **traps)

    @property
    def _file(self) -> CodeFile:
        assert self._code is not None, "the shell has been started"
        return self._code

    def _is_file(self, code: str) -> bool:
        """Return whether the script's path leads to this code, here in the jail.

        Such a script is run by its path, since many ask `BASH_SOURCE` for their directory, which
        nobody can assign.
        """
        if not self.argv or not self.argv[0].startswith("/"):
            return False
        try:
            expected = code.encode()
            fd = os.open(self.argv[0], os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return False
        with open(fd, "rb", buffering=0) as file:
            status = os.fstat(fd)
            return (
                stat.S_ISREG(status.st_mode)
                and status.st_size == len(expected)
                and file.readall() == expected
            )

    def _become_script(self, *, in_place: bool) -> str:
        """Give the command by which the shell becomes one that runs the file as a script, or in
        place the script's own file."""
        first = self._part(
            "prepare_file" if in_place else "prepare_script",
            end=quoted(PARTS["end_script"]),
            workspace=quoted(self.session.workspace),
        )
        path, change, words = "/dev/fd/9", "", self._words()
        if in_place:
            path, words = quoted(self.argv[0]), " ".join(map(quoted, self.argv[1:]))
        else:
            with contextlib.suppress(OSError):
                os.mkdir(self._link_folder, 0o700)
                os.symlink(path, f"{self._link_folder}/bash")
                change = self._part("enter", folder=quoted(self._link_folder)) + " "
                path = "bash"
        values = {
            "program": quoted(self.program),
            "path": path,
            "words": words,
            "first": quoted(first),
            "stdin": self._stdin,
        }
        return change + self._part("become_script", **values)

    def on_exit(self) -> None:
        if self.ends_with_code:
            with contextlib.suppress(OSError):
                os.unlink(f"{self._link_folder}/bash")
                os.rmdir(self._link_folder)

    def variables_code(self, variables: Mapping[str, str]) -> str:
        return "".join(f"export {name}={quoted(value)}\n" for name, value in variables.items())

    def interrupt_again(self) -> None:
        # `read` and `select` look for signals, and a moment later they wait. A shell that is a
        # script has looked for traps to run even before. What the shell waits for has been
        # interrupted.
        children = map(read_process, read_children(self.pid))
        if any(child is not None and child.alive for child in children):
            return
        if not self.ends_with_code:
            self.release(self._number)  # `abort` leaves alone what is not to be stopped
        elif self.takes_signals and not self._may_trap_int:
            # `end_script` ignores what comes later, a trap of code's own would run twice.
            signal_child(self.pid, signal.SIGINT)

    def hold(self) -> None:
        """Stop the shell, so that what it is starting is there to be seen, and set up."""
        if self.takes_signals:
            signal_child(self.pid, signal.SIGSTOP)
            self._await(lambda row: row.state == b"T" and not self._has_new_forks())

    def await_forks(self) -> None:
        self._await(lambda _: not self._has_new_forks())

    def _await(self, condition: Callable[[Process], bool]) -> None:
        """Wait until that is true of the shell, or it has ended, for a bounded time."""
        limit = time.monotonic() + HOLD_LIMIT_S
        while True:
            row = read_process(self.pid)
            if row is None or not row.alive or condition(row) or time.monotonic() > limit:
                return
            time.sleep(HOLD_S)

    def _has_new_forks(self) -> bool:
        """Return whether a child may still have the shell's handlers, all or those not yet reset.

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
            signal_child(self.pid, self.ABORT_SIGNAL)
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
                        self.end("became a restricted shell by `set -r`", int(words[0]))
                    else:
                        if words[1]:
                            self._options = words[1].translate(None, self._added_options)
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
            if self._file.is_unread and self._should_have_read:
                self._repair()
                return
            if status and self.resumes_jobs and b"m" not in self._options:
                self.add_note("`fg` and `bg` resume jobs that were started after `set -m`")
            line, status = divmod(status, 256)
            if line:
                self.add_note(f"`set -e` stopped the code at line {line}; the session goes on")
            self.on_done(self, number, status)

    @property
    def _should_have_read(self) -> bool:
        """True if nothing that code may want has kept the shell from reading the code."""
        if self.execution is None or self.execution.stopping or self.ends_with_code:
            return False
        # `shopt -s extdebug` sets both: a trap of DEBUG may forbid all commands.
        return not (b"E" in self._options and b"T" in self._options)

    def _repair(self) -> None:
        """Have the shell run code again that it did not read; at the second time, end it."""
        if self._send_again is _nothing:
            reason = "cannot run code any more, as code has disabled or replaced the command `.`"
            self.end(reason, 127)
            return
        self.add_note("code had disabled or replaced the command `.`, which nsm has put back")
        self._confirmations += 1
        self._command(PARTS["repair"] + "\n")
        self._send_again()
        self._send_again = _nothing

    def _on_begun(self, status: int) -> None:
        if self._has_handlers:
            return  # code says so, which may say it thousands of times
        if status != 0:
            self.end("cannot set up its descriptors; is it GNU bash?")
            return
        code, null, out, err = self._fds
        self.expect_private(
            {
                code: identity_of(os.fstat(self._file.fd)),
                null: identity_of(os.stat("/dev/null")),
                out: self.pipes["stdout"].identity,
                err: self.pipes["stderr"].identity,
            }
        )
        self._has_handlers = True
        held, self._held = self._held, ""
        if held and self.execution is not None and not self.execution.stopping:
            self._command(held)
        self.on_interruptible(self)

    def limit(self, limits: Mapping[str, int]) -> None:
        # The shell may have to restart anyway: its descriptors must lie below the limit.
        if self.has_state:
            super().limit(limits)
        else:
            self.start_over()


def _nothing() -> None:
    """Send nothing again: that was done."""
