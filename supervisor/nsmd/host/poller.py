"""Functions that are called when descriptors can be read; one task waits for all of them.

In trio, each wait for a descriptor takes a turn of the scheduler and two system calls. A session
waits several times in its life, and most live for one execution only. Here a descriptor is
registered once, and all that can be read in a turn is read in that turn.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable

import trio

log = logging.getLogger(__name__)


class DescriptorPoller:
    """Descriptors that are watched; `run` is the task."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._functions: dict[int, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"<DescriptorPoller of {len(self._functions)} descriptors>"

    def watch(self, descriptor: int, readable: Callable[[], None]) -> None:
        """Call a function whenever the descriptor can be read, until `forget`.

        Args:
            readable: must not block or raise. It may be called although there is nothing to read.

        Raises:
            OSError: the kernel has no room for another one.
        """
        if descriptor not in self._functions:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._functions[descriptor] = readable

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no longer; its owner closes it afterwards. May be repeated.

        Another process may have a copy of the descriptor, so closing it alone would not do.
        """
        if self._functions.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    async def run(self) -> None:
        """Wait and call, until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._call()
        finally:
            self._epoll.close()

    def _call(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            function = self._functions.get(descriptor)  # others may have forgotten it meanwhile
            if function is None:
                continue
            try:
                function()
            except Exception:  # a bug of one session must not end the others
                log.exception("descriptor %d is watched no longer", descriptor)
                self.forget(descriptor)


_present: trio.lowlevel.RunVar[DescriptorPoller] = trio.lowlevel.RunVar("poller")


def poller() -> DescriptorPoller:
    """The poller of this event loop; its task starts with the first use."""
    try:
        return _present.get()
    except LookupError:
        made = DescriptorPoller()
        _present.set(made)
        trio.lowlevel.spawn_system_task(made.run)
        return made
