"""Input of jobs and executions: bytes that wait until they are read."""

from __future__ import annotations

import os
import select

from sandbox.framing import READ_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandbox.polling import Poller


INPUT_BYTES = 256 * 1024
"""Input that a program has not read yet; who writes more has to wait."""

END_OF_INPUT = b"\x04"
"""Ctrl-D, the end of input in a terminal (VEOF), unless the program has changed that."""


class Input:
    """Bytes on their way into a pipe or a terminal, written as far as there is room.

    Args:
        fd: ours to write to, not blocking. A pipe is closed with the input. A terminal belongs to
            who reads it, and who calls `flush` when there is room.
        changed: called when something was written, or nobody reads any more.

    Attributes:
        taken_bytes: how many were taken so far.
        ended: no more are taken, since the end of the input was told.
        broken: no more are taken, since nobody reads them.
    """

    def __init__(
        self, poller: Poller, fd: int, changed: Callable[[], None], *, of_terminal: bool = False
    ) -> None:
        self.taken_bytes = 0
        self.ended = self.broken = False
        self._poller = poller
        self._fd = fd
        self._changed = changed
        self._of_terminal = of_terminal
        self._waiting = bytearray()
        if not of_terminal:
            poller.watch(fd, self._on_event, 0)

    @property
    def takes_more(self) -> bool:
        return self._fd >= 0 and not self.ended

    @property
    def room(self) -> int:
        """Bytes that would be taken now."""
        return max(0, INPUT_BYTES - len(self._waiting))

    @property
    def waits(self) -> bool:
        """True if bytes wait for room."""
        return bool(self._waiting)

    def write(self, data: bytes) -> None:
        """Take bytes, if any are taken."""
        if self.takes_more:
            self._waiting += data
            self.taken_bytes += len(data)
            self.flush()

    def end(self) -> None:
        """Close the pipe once all has been read, or type the end of input into the terminal."""
        if not self.takes_more:
            return
        if self._of_terminal:
            self._waiting += END_OF_INPUT  # it goes on; the program decides
        else:
            self.ended = True
        self.flush()

    def flush(self) -> None:
        try:
            while self._waiting and self._fd >= 0:
                written = os.write(self._fd, self._waiting[:READ_BYTES])
                del self._waiting[:written]
        except BlockingIOError:
            pass
        except OSError:
            self._break()
        if self.ended and not self._waiting:
            self.close()
        elif self._fd >= 0:
            waits = select.POLLOUT if self._waiting else 0
            self._poller.change(self._fd, waits | (select.POLLIN if self._of_terminal else 0))
        self._changed()

    def _on_event(self, events: int) -> None:
        if events & (select.POLLERR | select.POLLHUP):  # which poll(2) would report for ever
            self._break()
            self._changed()
        else:
            self.flush()

    def _break(self) -> None:
        self.broken = True
        self.close()

    def close(self) -> None:
        """Drop what waits, and close the pipe."""
        self._waiting.clear()
        if self._fd >= 0 and not self._of_terminal:
            self._poller.forget(self._fd)
            os.close(self._fd)
        self._fd = -1
