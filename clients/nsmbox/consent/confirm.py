"""Questions to whoever sits at the terminal: before a box starts, and about its directory.

Nobody is asked what they have answered already, or where there is no terminal. Nothing of the
terminal is changed for it, so that there is nothing to put back after a signal.
"""

from __future__ import annotations

import os
import sys
import termios
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Literal

from nsmbox.consent import agreements, screen
from nsmbox.model.plan import BoxError

if TYPE_CHECKING:
    from nsmbox.model.plan import Plan

Answer = Literal["yes", "once", "details", "no"]

_ANSWERS: dict[str, Answer] = {
    "y": "yes",
    "yes": "yes",
    "o": "once",
    "once": "once",
    "d": "details",
    "details": "details",
    "n": "no",
    "no": "no",
    "": "no",
}

_YES_OR_NO = {"y": True, "yes": True, "n": False, "no": False, "": False}

MAX_QUESTIONS = 5
"""Number of questions; after so many other answers there is probably no person."""

_MAX_ANSWER_BYTES = 1024
_INTERRUPT, _END = b"\x03", b"\x04"
"""Bytes of Ctrl-C and Ctrl-D if an earlier program has left the terminal in raw mode."""


def confirm(plan: Plan, *, home: str) -> bool:
    """Return once somebody agrees to the plan, has agreed to it before, or cannot be asked.

    Returns:
        True if somebody has seen the plan.

    Raises:
        KeyboardInterrupt: they pressed Ctrl-C.
    """
    with ExitStack() as closing:
        terminal = Terminal.find(closing)
        if terminal is None:
            return False
        before = agreements.find(plan)
        if before is not None and agreements.covers(before, plan):
            return False
        answer = _ask(terminal, plan, home, before)
        if answer == "no":
            raise BoxError(
                "nothing was started.",
                hint="`--dry-run` shows the whole command; `--yes` does not ask.",
            )
        if answer == "yes":
            try:
                agreements.remember(plan)
            except OSError as error:
                terminal.write(
                    f"nsm: the answer cannot be kept: {screen.sentence(str(error))}\n"
                    "It will be asked again.\n"
                )
        return True


def _ask(terminal: Terminal, plan: Plan, home: str, before: agreements.Agreement | None) -> Answer:
    size = terminal.size()
    changes: list[str] | None = None
    if before is not None:
        old = before.plan()
        changes = (
            ["what is not known: there was too much of it"]
            if old is None
            else screen.differences(old, agreements.essence(plan), home=home)
        )
    text = screen.screen(
        plan, home=home, size=size, changes=changes, agreed_on=before.day if before else ""
    )
    for _ in range(MAX_QUESTIONS):
        terminal.write(text)
        terminal.forget_typed()
        terminal.write(screen.question(size))
        try:
            answer = _ANSWERS.get(terminal.read_line())
        except KeyboardInterrupt:
            terminal.write("\n")
            raise
        if answer == "details":
            text = screen.details(plan, home=home)
        elif answer is not None:
            return answer
        else:
            text = "Please type one of the letters y, o, d, n, and Enter.\n"
    return "no"


def ask_once(directory: str, question: str, text: str, *, ask: bool) -> bool | None:
    """Find the answer to a question about a directory: an earlier one, else the person's.

    Args:
        question: tells questions about it apart.
        text: what the person reads; lines that are fit to be shown, the last one the question.

    Returns:
        None if there is no answer, and nobody can be asked.

    Raises:
        KeyboardInterrupt: they pressed Ctrl-C.
    """
    earlier = agreements.answer_to(directory, question)
    if earlier is not None or not ask:
        return earlier
    with ExitStack() as closing:
        terminal = Terminal.find(closing)
        if terminal is None:
            return None
        for _ in range(MAX_QUESTIONS):
            terminal.forget_typed()
            terminal.write(f"{text} [y]es   [n]o: ")
            typed = _YES_OR_NO.get(terminal.read_line())
            if typed is None:
                terminal.write("Please type y or n, and Enter.\n")
                continue
            try:
                agreements.remember_answer(directory, question, yes=typed)
            except OSError as error:
                terminal.write(f"nsm: the answer cannot be kept: {error.strerror}\n")
            return typed
    return False


class Terminal:
    """Terminal at which a person sits."""

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self._write = write

    @classmethod
    def find(cls, closing: ExitStack) -> Terminal | None:
        """The terminal of whoever started us; None if they have none.

        Somebody is there if standard input or standard error is a terminal; the other one, and
        standard output, may lead elsewhere (`claudebox | cat`, `claudebox < file`).
        """
        has_input, has_errors = os.isatty(0), os.isatty(2)
        if has_input and has_errors:
            return cls(0, 2)
        if not (has_input or has_errors):
            return None
        try:
            own = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None  # ENXIO: it is not that of our session
        closing.callback(os.close, own)
        return cls(own, own)

    def size(self) -> tuple[int, int]:
        """Columns and rows; those of a VT100 where nobody knows."""
        try:
            size = os.get_terminal_size(self._write)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    def write(self, text: str) -> None:
        """Show a text that is fit to be shown."""
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        data = memoryview(text.encode(encoding, "backslashreplace"))
        while data:
            data = data[os.write(self._write, data) :]

    def forget_typed(self) -> None:
        """Drop the input typed before the question was seen: it is no answer."""
        with suppress(termios.error):
            termios.tcflush(self._read, termios.TCIFLUSH)

    def read_line(self) -> str:
        """Read a line up to Enter, in lower case; `n` if the person is gone.

        Raises:
            KeyboardInterrupt: they pressed Ctrl-C.
        """
        line = b""
        while not line.endswith((b"\n", b"\r")):
            try:
                typed = os.read(self._read, _MAX_ANSWER_BYTES)
            except OSError:  # EIO: the window is closed, or we run in the background for ever
                return "n"
            if _INTERRUPT in typed:
                raise KeyboardInterrupt
            line += typed
            if not typed or _END in typed or len(line) > _MAX_ANSWER_BYTES:
                self.write("\n")
                return "n"
        return line.decode(errors="replace").strip().lower()
