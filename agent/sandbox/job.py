"""One job: a program that runs beside the interpreters, its process, its input and its output."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import sys
import time

from sandbox.capture import FIONREAD, NO_BYTES
from sandbox.framing import READ_BYTES
from sandbox.input import Input
from sandbox.job_output import STREAMS
from sandbox.job_start import JobRefusal, choose_for_oom_kill, not_started, start_program
from sandbox.linux import identity_of
from sandbox.processes import signal_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from sandbox.job_output import JobLog
    from sandbox.session import SharedSession


TOLD_ARGUMENTS = 2000
"""Characters of the arguments of a job that are told."""

EXIT_TIMED_OUT = 124

OOM_RETRY_S = 0.002

TIOCSWINSZ, TIOCGPGRP, TIOCSIG = 0x5414, 0x540F, 0x40045436


class JobStream:
    """One output of a job, as the agent reads it.

    Attributes:
        place: index of `STREAMS`.
        paused: the agent does not read it for now.
        hung_up: nobody has this terminal open any more.
    """

    def __init__(self, place: int, read_fd: int) -> None:
        self.place = place
        self.read_fd = read_fd
        self.identity = identity_of(os.fstat(read_fd))
        self.paused = False
        self.hung_up = False


class JobProcess:
    """The process of a job, from its start until the job is forgotten.

    Raise JobRefusal if it cannot be started.

    Args:
        cwd: directory, absolute or relative to the workspace.
        env: variables besides the session's.
        stdin: input follows; else it is empty at once.
        tty: rows and columns of a terminal; None for pipes.
        changed: called when there is more output, or the job has ended.
        paused: called when the job has to wait for its reader.

    Attributes:
        pid: leader of the job's session and process group; 0 when it has ended.
        leader: the same, and kept after the end, to find processes that the job left behind.
        written: how many bytes were taken of each piece of input, by the piece's key.
        answered_reads: offset and size of the output that each reader got, by the reader's name.
        wait_status: as of wait(2); None while it runs.
    """

    is_job = True

    def __init__(
        self,
        session: SharedSession,
        job_id: str,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        stdin: bool,
        tty: tuple[int, int] | None,
        log: JobLog,
        changed: Callable[[JobProcess], None],
        paused: Callable[[JobProcess], None],
    ) -> None:
        self.id = job_id
        self.argv = _shortened(argv)
        self.cwd = cwd
        self.log = log
        self.tty = tty is not None
        self.pid = self.leader = 0
        self.wait_status: int | None = None
        self.timed_out = False
        self.stopping = False
        self.started = self.ended = time.monotonic()
        self.usage: resource.struct_rusage | None = None
        self.pipes: dict[str, JobStream] = {}
        self.input: Input | None = None
        self.written: dict[str, int] = {}
        self.answered_reads: dict[str, tuple[int, int]] = {}
        self.next_read_offset = 0
        self.file: str | None = None
        self._poller = session.poller
        self._changed = changed
        self._on_paused = paused
        theirs: list[int] = []
        try:
            if tty is None:
                actions = self._open_pipes(theirs, stdin=stdin)
            else:
                actions = self._open_terminal(theirs, tty)
            self.pid = self.leader = start_program(
                argv,
                cwd,
                {**os.environ, **env},
                actions,
                session.limits.resources,
                has_forks=session.has_forks,
            )
        except OSError as error:
            self.close()
            raise not_started(argv[0], error.errno or 0) from None
        except JobRefusal:
            self.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        self._mark_for_killing(OOM_RETRY_S)
        for stream in self.pipes.values():
            self._watch(stream)

    # Start.

    def _mark_for_killing(self, retry_s: float) -> None:
        """Have the kernel kill it before the agent when memory runs out; try again if need be."""
        if self.pid and not choose_for_oom_kill(self.pid) and retry_s < 1.0:
            self._poller.at(
                f"job {self.id} oom",
                time.monotonic() + retry_s,
                lambda: self._mark_for_killing(4 * retry_s),
            )

    def _open_pipes(self, theirs: list[int], *, stdin: bool) -> list[Any]:
        actions: list[Any] = []
        if stdin:
            child, write_fd = os.pipe2(os.O_CLOEXEC)
            theirs.append(child)
            os.set_blocking(write_fd, False)
            self.input = Input(self._poller, write_fd, lambda: self._changed(self))
            actions.append((os.POSIX_SPAWN_DUP2, child, 0))
        else:
            actions.append((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0))
        for place, name in enumerate(STREAMS):
            read_fd, child = os.pipe2(os.O_CLOEXEC)
            theirs.append(child)
            os.set_blocking(read_fd, False)
            self.pipes[name] = JobStream(place, read_fd)
            actions.append((os.POSIX_SPAWN_DUP2, child, place + 1))
        return actions

    def _open_terminal(self, theirs: list[int], size: tuple[int, int]) -> list[Any]:
        ours, child = os.openpty()
        theirs.append(child)
        self.pipes["stdout"] = JobStream(0, ours)
        os.set_blocking(ours, False)
        self.input = Input(self._poller, ours, lambda: self._changed(self), of_terminal=True)
        self._set_size(*size)
        # The leader of a session without a terminal gets the first one that it opens.
        path = os.ttyname(child)
        return [
            (os.POSIX_SPAWN_OPEN, 0, path, os.O_RDWR, 0),
            *((os.POSIX_SPAWN_DUP2, 0, place) for place in (1, 2)),
        ]

    # Output.

    def _watch(self, stream: JobStream) -> None:
        def on_event(events: int) -> None:
            if events & select.POLLOUT and self.input is not None:  # a terminal
                self.input.flush()
            if events & ~select.POLLOUT:
                self._on_output(stream)

        self._poller.watch(stream.read_fd, on_event)

    def _on_output(self, stream: JobStream) -> None:
        room = self.log.room(READ_BYTES)
        if not room:
            self._pause(stream)
            return
        try:
            data = os.read(stream.read_fd, room)
        except BlockingIOError:
            return
        except OSError:  # a terminal that nobody has open any more
            data = b""
        if data:
            self.log.write(stream.place, data)
            self._changed(self)
        elif self.tty and self.pid:
            self._hang_up(stream)
        else:
            self._close_stream(stream)

    def _hang_up(self, stream: JobStream) -> None:
        """Read a terminal no more, and keep it open until the program has ended.

        The kernel ends the program that leads a terminal's session by SIGHUP when this end is
        closed, also one that has closed its own end and is about to exit.
        """
        stream.hung_up = True
        self._poller.forget(stream.read_fd)
        if self.input is not None:
            self.input.close()

    def _pause(self, stream: JobStream) -> None:
        stream.paused = True
        self._poller.forget(stream.read_fd)  # poll(2) would report its end again and again
        self._on_paused(self)

    def resume_output(self) -> None:
        """Read on, if nobody would lose anything by it."""
        for stream in list(self.pipes.values()):
            if stream.paused and not self.log.room(1):
                self._on_paused(self)
            elif stream.paused:
                stream.paused = False
                self._watch(stream)
                if self.tty and self.input is not None and self.input.waits:
                    self.input.flush()

    def _close_stream(self, stream: JobStream) -> None:
        for name, each in list(self.pipes.items()):
            if each is stream:
                del self.pipes[name]
        self._poller.forget(stream.read_fd)
        if self.tty and self.input is not None:
            self.input.close()
        os.close(stream.read_fd)

    # Input.

    @property
    def takes_input(self) -> bool:
        return self.input is not None and self.input.takes_more

    @property
    def has_room(self) -> bool:
        """True if input would be taken now, or refused."""
        return self.input is None or not self.input.takes_more or self.input.room > 0

    def write(self, data: bytes) -> int:
        """Take input for the job; returns how many bytes of it there was room for. Raise JobRefusal
        if the job reads no more."""
        if self.input is None or not self.input.takes_more:
            raise JobRefusal(self._why_no_input(), errno.EPIPE)
        taken = data[: self.input.room]
        self.input.write(taken)
        if self.input.broken:
            raise JobRefusal(self._why_no_input(), errno.EPIPE)
        return len(taken)

    def _why_no_input(self) -> str:
        if self.wait_status is not None:
            return f"job {self.id} has ended"
        if self.input is None:
            return f"job {self.id} was started without input: its standard input is empty"
        if self.input.broken:
            return f"job {self.id} does not read its standard input any more"
        return f"the input of job {self.id} has been closed"

    def end_input(self) -> None:
        """Close the job's standard input, once it has read what waits."""
        if self.input is not None:
            self.input.end()

    # Signals and terminal.

    def send_signal(self, number: int) -> None:
        """Signal the job's process group. Raise JobRefusal if it has ended."""
        if not self.pid:
            raise JobRefusal(f"job {self.id} has ended", errno.ESRCH)
        signal_group(self.pid, number)

    def interrupt(self) -> None:
        """Do what Ctrl-C does: in a terminal, interrupt what is in the foreground."""
        terminal = self.pipes.get("stdout")
        if self.tty and terminal is not None:
            with contextlib.suppress(OSError):
                told = fcntl.ioctl(terminal.read_fd, TIOCGPGRP, NO_BYTES)
                if int.from_bytes(told, sys.byteorder):
                    fcntl.ioctl(terminal.read_fd, TIOCSIG, signal.SIGINT)
                    return
        if self.pid:
            signal_group(self.pid, signal.SIGINT)

    def go_on(self) -> None:
        """Continue it where it was stopped: a stopped process handles no other signal."""
        if self.pid:
            signal_group(self.pid, signal.SIGCONT)

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal; the kernel tells the program. Raise JobRefusal if it has
        none."""
        if not self.tty:
            raise JobRefusal(f"job {self.id} has no terminal", errno.ENOTTY)
        self._set_size(rows, columns)

    def _set_size(self, rows: int, columns: int) -> None:
        size = rows.to_bytes(2, sys.byteorder) + columns.to_bytes(2, sys.byteorder) + bytes(4)
        if (terminal := self.pipes.get("stdout")) is not None:
            fcntl.ioctl(terminal.read_fd, TIOCSWINSZ, size)

    # End.

    def has_ended(self, wait_status: int, usage: resource.struct_rusage) -> None:
        """Note that its process is gone. All that it has printed so far belongs to it; the caller
        reports the end.
        """
        self.ended = time.monotonic()
        self.pid = 0
        self.usage = usage
        for stream in list(self.pipes.values()):
            self._read_rest(stream)
            if stream.hung_up:
                self._close_stream(stream)
        self.log.compact()
        self.wait_status = wait_status
        if self.input is not None:
            self.input.close()

    def _read_rest(self, stream: JobStream) -> None:
        """Read what waits, without what processes add that it has left behind."""
        with contextlib.suppress(OSError):
            waiting = fcntl.ioctl(stream.read_fd, FIONREAD, NO_BYTES)
            left = int.from_bytes(waiting, sys.byteorder)
            while left > 0 and (data := os.read(stream.read_fd, min(left, READ_BYTES))):
                self.log.write(stream.place, data)
                left -= len(data)

    def close(self) -> None:
        """Close what the agent has open for it."""
        for stream in list(self.pipes.values()):
            self._close_stream(stream)
        if self.input is not None:
            self.input.close()

    def exit_code(self) -> int | None:
        """Exit code as a shell has it; None while it runs."""
        if self.wait_status is None:
            return None
        if self.timed_out:
            return EXIT_TIMED_OUT
        if os.WIFSIGNALED(self.wait_status):
            return 128 + os.WTERMSIG(self.wait_status)
        return os.WEXITSTATUS(self.wait_status)

    def facts(self) -> dict[str, Any]:
        """All that is told of it."""
        status, usage = self.wait_status, self.usage
        now = time.monotonic()
        signalled = status is not None and os.WIFSIGNALED(status)
        return {
            "job": self.id,
            "argv": self.argv,
            "cwd": self.cwd,
            "pid": self.leader,
            "tty": self.tty,
            "running": status is None,
            "takes_input": self.takes_input,
            "age_s": round(now - self.started, 6),
            "duration_s": round((now if status is None else self.ended) - self.started, 6),
            "exit_code": self.exit_code(),
            "signal": os.WTERMSIG(status) if status is not None and signalled else 0,
            "timed_out": self.timed_out,
            "stopped": self.stopping and not self.timed_out,
            "user_s": usage.ru_utime if usage is not None else 0.0,
            "system_s": usage.ru_stime if usage is not None else 0.0,
            "max_rss_bytes": usage.ru_maxrss * 1024 if usage is not None else 0,
            "output_bytes": self.log.size,
            "input_bytes": 0 if self.input is None else self.input.taken_bytes,
        }


def _shortened(argv: Sequence[str]) -> list[str]:
    """The arguments, the last ones left out if they are long."""
    told: list[str] = []
    room = TOLD_ARGUMENTS
    for argument in argv:
        told.append(argument if len(argument) <= room else argument[:room] + "...")
        room -= len(argument) + 1
        if room < 0:
            break
    return told
