"""Ctrl-C during a blocking call: first a request to stop, then `KeyboardInterrupt`.

Python raises `KeyboardInterrupt` between any two byte codes, also between reading bytes from a
socket and keeping them. Such a stream is of no more use, and the result of the interrupted run
would be lost. So the first SIGINT only wakes up whoever waits here.
"""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Self


class Interrupts:
    """Takes SIGINT over from Python's own handler while the context is open.

    In another thread than the main one, or where the program has a handler of its own, nothing is
    taken over and `wait` just waits.
    """

    def __init__(self) -> None:
        self._count = 0
        self._told = False
        self._wakeup: tuple[int, int] | None = None
        self._previous_wakeup = -1

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return self
        wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._previous_wakeup = signal.set_wakeup_fd(wakeup[1], warn_on_full_buffer=False)
        except ValueError:  # not the main thread; no signal handler ever runs here
            os.close(wakeup[0])
            os.close(wakeup[1])
            return self
        self._wakeup = wakeup
        signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._wakeup is None:
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        os.close(self._wakeup[0])
        os.close(self._wakeup[1])
        self._wakeup = None
        if self._count and not self._told and error is None:
            # It came when there was nothing left to stop: the caller should hear of it.
            signal.raise_signal(signal.SIGINT)

    def wait(self, descriptor: int) -> bool:
        """Wait until a descriptor is readable or SIGINT comes.

        Returns:
            True once, when the first SIGINT has come; else False, and there is something to read.
        """
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if self._wakeup is not None:
            poll.register(self._wakeup[0], select.POLLIN)
        while True:
            if self._count and not self._told:
                self._told = True
                return True
            ready = [number for number, _ in poll.poll()]
            if self._wakeup is not None and self._wakeup[0] in ready:
                os.read(self._wakeup[0], 4096)  # other signals write there as well
            if descriptor in ready:
                return False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
