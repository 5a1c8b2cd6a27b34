"""A person's terminal for tests: a pty with an emulator behind it, and waiting for what it shows.

The emulator knows what line editors use: characters of any width, cursor movement, erasing,
wrapping, scrolling, and the question for the cursor's place, which it answers. What it does not
know is listed in `Emulator.unknown`.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
from typing import TYPE_CHECKING

from wcwidth import wcwidth

from rungates import of_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

DEADLINE_S = 30.0
"""Time limit for anything to appear, on a machine that runs everything at once."""

_TOKEN = re.compile(
    r"\x1b\[(?P<private>[?>=]?)(?P<numbers>[0-9;:]*)(?P<final>[@-~])"
    r"|(?P<osc>\x1b\][^\x07\x1b]*(?:\x07|\x1b\\))"
    r"|\x1b(?P<escape>[^\[\]])"
    r"|(?P<text>[^\x00-\x1f\x7f]+)"
    r"|(?P<control>[\x00-\x1a\x1c-\x1f\x7f])"
)


class Emulator:
    """Screen of a terminal.

    Attributes:
        lines: all lines from the first one on, those that have scrolled away included.
        unknown: sequences that were met and not understood.
        replies: what the terminal has to say.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.lines: list[list[str]] = [[]]
        self.unknown: list[str] = []
        self.replies: list[str] = []
        self.modes: set[str] = {"?7"}
        self._top = 0
        self._x = self._y = 0
        self._rest = ""

    @property
    def text(self) -> str:
        """All lines, without the space at their ends."""
        return "\n".join("".join(line).rstrip() for line in self.lines)

    @property
    def current_line(self) -> str:
        """The line of the cursor."""
        return "".join(self.lines[self._y]).rstrip()

    def feed(self, text: str) -> None:
        """Take what a program wrote."""
        text = self._rest + text
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None:
                break
            at = token.end()
            self._take(token)
        self._rest = text[at:]

    def _take(self, token: re.Match[str]) -> None:
        if text := token["text"]:
            if text.isascii() and self._x + len(text) <= self.columns:  # most text, at once
                self._reach()[self._x : self._x + len(text)] = text
                self._x += len(text)
                return
            for character in text:
                self._put(character)
        elif control := token["control"]:
            self._control(control)
        elif final := token["final"]:
            self._sequence(token["private"], token["numbers"], final)
        elif token["osc"]:
            self.unknown.append(token["osc"])
        elif token["escape"] not in "=>78":
            self.unknown.append(token.group())

    def _control(self, control: str) -> None:
        match control:
            case "\r":
                self._x = 0
            case "\n":
                self._down()
            case "\b":
                self._x = max(0, self._x - 1)
            case "\t":
                self._x = min(self.columns - 1, (self._x // 8 + 1) * 8)
            case "\x07":
                pass
            case _:
                self.unknown.append(control)

    def _sequence(self, private: str, numbers: str, final: str) -> None:
        parameters = [int(number or 0) for number in re.split("[;:]", numbers)]
        count = max(1, parameters[0])
        match final:
            case "A":
                self._y = max(self._top, self._y - count)
            case "B":
                self._y = min(self._top + self.rows - 1, self._y + count)
            case "C":
                self._x = min(self.columns - 1, self._x + count)
            case "D":
                self._x = max(0, min(self._x, self.columns - 1) - count)
            case "H":
                self._y, self._x = self._top + count - 1, max(1, [*parameters, 1][1]) - 1
            case "J" | "K" if parameters[0] == 0:
                self._reach()
                del self.lines[self._y][self._x :]
                if final == "J":
                    del self.lines[self._y + 1 :]
            case "J" if parameters[0] == 2:
                del self.lines[self._top :]
            case "n" if numbers == "6":
                self.replies.append(f"\x1b[{self._y - self._top + 1};{self._x + 1}R")
            case "h":
                self.modes.add(private + numbers)
            case "l":
                self.modes.discard(private + numbers)
            case "m" | "q":
                pass
            case _:
                self.unknown.append(f"{private}{numbers}{final}")
        self._reach()

    def _put(self, character: str) -> None:
        width = max(0, wcwidth(character))
        if self._x + width > self.columns:
            if "?7" not in self.modes:
                self._x = self.columns - width
            else:
                self._x = 0
                self._down()
        line = self._reach()
        if not width:
            if self._x:
                line[self._x - 1] += character
            return
        line[self._x : self._x + width] = [character] + [""] * (width - 1)
        self._x += width

    def _down(self) -> None:
        self._y += 1
        self._top = max(self._top, self._y - self.rows + 1)
        self._reach()

    def _reach(self) -> list[str]:
        """The cursor's line, as long as the cursor is far in."""
        while len(self.lines) <= self._y:
            self.lines.append([])
        line = self.lines[self._y]
        line.extend(" " * (self._x - len(line)))
        return line


class Terminal:
    """A program on a pty of its own, and a person who types and reads.

    Use it as a context manager: at the end the program is killed if it is still there.

    Attributes:
        mode_before, mode_after: the terminal's settings when the program began and had ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        rows: int = 40,
        columns: int = 100,
    ) -> None:
        self.emulator = Emulator(rows, columns)
        self._changed = threading.Condition()
        self._ended = False
        self._master, self._slave = pty.openpty()
        self._wake, self._waker = os.pipe()
        self.resize(rows, columns)
        self.mode_before = termios.tcgetattr(self._slave)
        self.mode_after: list[object] = []
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _AS_CONTROLLING_TERMINAL, *command],
            env={"TERM": "xterm-256color", "LANG": "C.UTF-8", **of_run(), **variables},
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"the terminal showed:\n{self.text}")
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        self.vanish()
        os.close(self._wake)
        os.close(self._waker)

    @property
    def text(self) -> str:
        """Text shown so far, including what has scrolled away."""
        with self._changed:
            return self.emulator.text

    def type(self, text: str) -> None:
        """Press keys; Enter is ``\\r``."""
        os.write(self._master, text.encode())

    def paste(self, text: str) -> None:
        """Paste, as a terminal does that was asked to tell it from typing."""
        assert "?2004" in self.emulator.modes
        self.type(f"\x1b[200~{text}\x1b[201~")

    def resize(self, rows: int, columns: int) -> None:
        """Make the window larger or smaller; the kernel sends SIGWINCH to the foreground group."""
        with self._changed:
            self.emulator.rows, self.emulator.columns = rows, columns
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def wait(self, condition: Callable[[Emulator], bool], what: str) -> None:
        """Wait until the screen fulfils a condition."""
        with self._changed:
            self._changed.wait_for(lambda: condition(self.emulator) or self._ended, DEADLINE_S)
            assert condition(self.emulator), f"{what} has not come"

    def see(self, *texts: str) -> None:
        """Wait until all these texts are shown, one below or after the other."""

        def in_order(emulator: Emulator) -> bool:
            at, shown = 0, emulator.text
            for text in texts:
                at = shown.find(text, at)
                if at < 0:
                    return False
                at += len(text)
            return True

        self.wait(in_order, repr(texts))

    def see_line(self, line: str) -> None:
        """Wait until the line of the cursor is this, and keys are edited."""
        self.wait(lambda e: e.current_line == line and "?2004" in e.modes, repr(line))

    def end(self) -> int:
        """Wait until the program has ended and everything it wrote is shown.

        Returns:
            Its exit code.
        """
        code = self.process.wait(DEADLINE_S)
        self.mode_after = termios.tcgetattr(self._slave)
        os.close(self._slave)
        self._slave = -1
        self._reader.join(DEADLINE_S)
        assert not self._reader.is_alive()
        return code

    def vanish(self) -> None:
        """Close the window."""
        os.write(self._waker, b"x")
        self._reader.join(DEADLINE_S)
        for descriptor in (self._master, self._slave):
            if descriptor >= 0:
                os.close(descriptor)
        self._master = self._slave = -1

    def take(self, text: str) -> None:
        """The program has written something; the screen is locked meanwhile."""
        self.emulator.feed(text)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            if self._wake in [descriptor for descriptor, _ in poll.poll()]:
                break
            try:
                data = os.read(self._master, 65536)
            except OSError:  # EIO: nobody has the other end open any more
                break
            with self._changed:
                self.take(decoder.decode(data))
                replies, self.emulator.replies = self.emulator.replies, []
                self._changed.notify_all()
            for reply in replies:
                self.type(reply)
        with self._changed:
            self._ended = True
            self._changed.notify_all()


_AS_CONTROLLING_TERMINAL = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execve(sys.argv[1], sys.argv[1:], os.environ)
"""
