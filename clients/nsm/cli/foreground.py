"""A job in the foreground: its output goes to ours, and our input, signals and size go to it.

Output is read by the main thread. Two others send: one what is typed or piped in, one signals and
sizes. Each has a connection of its own, since a client has one call at a time.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import termios
import threading
import time
import tty
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from nsm.cli import terminal
from nsm.cli.options import EXIT_INTERRUPTED
from nsm.client.blocking import Client
from nsm.client.jobs import Job
from nsm.wire.errors import JobError, NsmError

if TYPE_CHECKING:
    from collections.abc import Generator

READ_BYTES = 64 * 1024

LEAVE = b"\x1d"
"""Ctrl-]. Three times within a second, it leaves a job's terminal."""

LEAVE_TIMES, LEAVE_S = 3, 1.0

INTERRUPTS = 3
"""Ctrl-C so many times leaves a job that goes on regardless."""

_STDIN, _STDOUT, _STDERR = 0, 1, 2


DEFAULT_SIZE = (24, 80)


@contextmanager
def _raw(descriptor: int) -> Generator[None]:
    """Have the terminal hand over each key at once, to the job, and give it back as it was."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        with suppress(termios.error):  # it has been closed
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def size_of(descriptor: int) -> tuple[int, int]:
    """Rows and columns of a terminal; the usual ones where it does not tell."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return DEFAULT_SIZE
    return size.lines or DEFAULT_SIZE[0], size.columns or DEFAULT_SIZE[1]


class _LeftError(Exception):
    """The user has left the job, which goes on."""


class Foreground:
    """A job, and this process as its terminal (`tty`) or its pipes.

    Its output is shown from `job.offset` on. Our standard input may be the job's, and the end of
    ours the end of the job's."""

    def __init__(self, job: Job, *, tty: bool, reads_input: bool, ends_input: bool = True) -> None:
        self._job = job
        self._tty = tty
        self._reads_input = reads_input
        self._ends_input = ends_input
        self._orders: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
        self._main = threading.get_ident()
        self._interrupts = 0

    def run(self) -> int:
        """Return the exit code of the job once it has ended, or of leaving it."""
        try:
            with ExitStack() as stack:
                stack.enter_context(self._signals())
                if self._tty:
                    stack.enter_context(_raw(_STDIN))
                threading.Thread(target=self._obey, daemon=True).start()
                if self._reads_input:
                    threading.Thread(target=self._send_input, daemon=True).start()
                return self._show()
        except _LeftError:
            job = self._job
            terminal.note(
                f"left job {job.id}, which goes on: `nsm attach {job.session} --job {job.id}` "
                f"comes back, `nsm jobs {job.session} --stop {job.id}` ends it"
            )
            return EXIT_INTERRUPTED if self._interrupts else 0

    def _show(self) -> int:
        for chunk in self._job:
            if chunk.missing:
                terminal.note(
                    f"{chunk.missing} bytes of output before this are lost: the job printed more "
                    "than is kept for a reader that stops"
                )
            _write(_STDERR if chunk.stream == "stderr" else _STDOUT, chunk.data)
        return self._job.info.exit_code or 0

    # Input, in a thread.

    def _send_input(self) -> None:
        with suppress(NsmError, OSError), self._other_handle() as job:
            leaving: list[float] = []
            while data := os.read(_STDIN, READ_BYTES):
                if self._tty and self._leaves(data, leaving):
                    signal.pthread_kill(self._main, signal.SIGUSR1)
                    return
                try:
                    job.write(data)
                except JobError:
                    return  # it reads no more, and may go on
            if self._ends_input:
                job.close_stdin()

    @staticmethod
    def _leaves(data: bytes, leaving: list[float]) -> bool:
        """Return whether Ctrl-] has been pressed often enough. `leaving` has when it was."""
        now = time.monotonic()
        if data.strip(LEAVE):
            leaving.clear()
            return False
        leaving[:] = [each for each in leaving if now - each < LEAVE_S] + [now] * len(data)
        return len(leaving) >= LEAVE_TIMES

    # Signals and sizes, in a thread.

    def _obey(self) -> None:
        order = self._orders.get()
        with suppress(NsmError, OSError), self._other_handle() as job:
            while True:
                what, first, second = order
                with suppress(JobError):
                    if what == "resize":
                        job.resize(first, second)
                    else:
                        job.signal(first)
                order = self._orders.get()

    @contextmanager
    def _other_handle(self) -> Generator[Job]:
        with Client(autostart=False, project=None) as client:
            yield Job(client, self._job.session, self._job.info)

    @contextmanager
    def _signals(self) -> Generator[None]:
        handlers = {
            signal.SIGINT: self._on_interrupt,
            signal.SIGTERM: self._on_terminate,
            signal.SIGUSR1: self._on_leave,
        }
        if self._tty:
            handlers[signal.SIGWINCH] = self._on_resize
        before = {number: signal.signal(number, each) for number, each in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_interrupt(self, *_: object) -> None:
        self._interrupts += 1
        if self._interrupts >= INTERRUPTS:
            raise _LeftError
        self._orders.put(("signal", signal.SIGINT, 0))

    def _on_terminate(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one is for us
        self._orders.put(("signal", signal.SIGTERM, 0))

    def _on_resize(self, *_: object) -> None:
        self._orders.put(("resize", *size_of(_STDIN)))

    def _on_leave(self, *_: object) -> None:
        raise _LeftError


def _write(descriptor: int, data: bytes) -> None:
    stream = sys.stderr if descriptor == _STDERR else sys.stdout
    stream.flush()
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
