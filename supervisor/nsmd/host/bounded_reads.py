"""Reads of files whose disk may hang: of a network's file system, or one that a program serves.

A read happens in a thread. Its caller, for whom the whole supervisor waits, waits a moment at most.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeVar

import trio

if TYPE_CHECKING:
    from outcome import Outcome

T = TypeVar("T")

WAIT_S = 5.0
"""Longest time to wait for a read. It takes microseconds, and more where a machine is so busy that
the thread does not get its turn.
"""


class BoundedReads:
    """Reads that may hang. After one has hung, others of its key fail at once until it ends."""

    def __init__(self) -> None:
        self._under_way: set[Hashable] = set()

    def __repr__(self) -> str:
        return f"<BoundedReads, {len(self._under_way)} under way>"

    def read(self, key: Hashable, function: Callable[[], T]) -> T:
        """Call a function in a thread, and return its result.

        Args:
            key: names what it reads.
            function: it must change nothing, as nobody may wait for its end.

        Raises:
            TimeoutError: it has not ended in time, or an earlier one of that key has not.
            Exception: any error of the function.
        """
        ended, results = threading.Event(), list["Outcome[T]"]()

        def deliver(result: Outcome[T]) -> None:
            results.append(result)
            self._under_way.discard(key)
            ended.set()

        if key not in self._under_way:
            self._under_way.add(key)
            try:
                trio.lowlevel.start_thread_soon(function, deliver)
            except RuntimeError:  # there can be no further thread
                self._under_way.discard(key)
                return function()
            if ended.wait(WAIT_S):
                return results[0].unwrap()
        raise TimeoutError(errno.ETIMEDOUT, "its disk does not answer")
