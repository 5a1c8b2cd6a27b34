"""Ctrl-C during a blocking call: first a request to stop, then `KeyboardInterrupt`.

Python raises `KeyboardInterrupt` between any two byte codes, also between reading bytes from a
socket and keeping them. Such a stream is of no more use, and the result of the interrupted run
would be lost. So the first SIGINT only wakes up whoever waits here.
"""

from __future__ import annotations

import os
import select
import signal

# `signal` wraps these two to give enumerations, in ten times as long.
from _signal import getsignal, signal as set_handler  # type: ignore[import-not-found]  # isort: skip
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any, Self


class Interrupts:
    """Takes SIGINT over from Python's own handler while the context is open.

    In another thread than the main one, or where the program has a handler of its own, nothing is
    taken over and `wait` just waits. A context can be opened again and again, one at a time; what
    it needs for that is kept until `close`.
    """

    def __init__(self) -> None:
        self._count = 0
        self._told = False
        self._active = False
        self._closing = False
        self._wakeup: tuple[int, int] | None = None
        self._previous_wakeup = -1
        self._poll = select.poll()
        self._watched = -1

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptors back, at the end of the context if it is open. Idempotent."""
        self._closing = True
        if not self._active and self._wakeup is not None:
            for descriptor in self._wakeup:
                os.close(descriptor)
            self._wakeup = None

    def __enter__(self) -> Self:
        self._count = 0
        self._told = False
        self._closing = False
        if getsignal(signal.SIGINT) is not signal.default_int_handler:
            return self
        if self._wakeup is None:
            self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            self._poll.register(self._wakeup[0], select.POLLIN)
        try:
            self._previous_wakeup = signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        except ValueError:  # not the main thread; no signal handler ever runs here
            return self
        self._active = True
        set_handler(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._active:
            return
        set_handler(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(self._previous_wakeup)
        self._active = False
        if self._closing:
            self.close()
        if self._count and not self._told and error is None:
            # It came when there was nothing left to stop: the caller should hear of it.
            signal.raise_signal(signal.SIGINT)

    @property
    def told(self) -> bool:
        """Tell whether `wait` has told of a SIGINT in this context."""
        return self._told

    def note(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Note in an answer that SIGINT came before, even if it was on its way by then."""
        return {**answer, "cancelled": True} if self._told else answer

    def wait(self, descriptor: int) -> bool:
        """Wait until a descriptor is readable or SIGINT comes.

        Returns:
            True once, when the first SIGINT has come; else False, and reading will tell.
        """
        if not self._active or self._wakeup is None:
            return False  # the reader may wait as well
        if descriptor != self._watched:
            if self._watched >= 0:
                self._poll.unregister(self._watched)
            self._poll.register(descriptor, select.POLLIN)
            self._watched = descriptor
        while True:
            if self._count and not self._told:
                self._told = True
                return True
            ready = [number for number, _ in self._poll.poll()]
            if self._wakeup[0] in ready:
                os.read(self._wakeup[0], 4096)  # other signals write there as well
            if descriptor in ready:
                return False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt
