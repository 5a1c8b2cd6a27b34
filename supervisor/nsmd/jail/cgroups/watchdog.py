"""Watchdog: ends processes that take more memory than their session may have, if no control group
does so in time.

It looks only at sessions in which an execution is under way, or has left a process behind; while
there is none it sleeps. An execution that starts and ends between two looks, as most do, costs an
entry in a set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from nsmd.jail.cgroups.confinement import Confinement, Look

PERIOD_S = 0.5
"""Time between two looks. One loop can write to some 1 GB meanwhile, but to no more than its
process may have (RLIMIT_DATA).
"""

SHARE = 0.1
"""Share of the time that looking may take: with thousands of processes, it looks less often."""


InThread = Callable[
    [Callable[[Sequence[Confinement]], list[Look]], Sequence[Confinement]], Awaitable[list[Look]]
]


async def _in_thread(
    look: Callable[[Sequence[Confinement]], list[Look]], at: Sequence[Confinement]
) -> list[Look]:
    return await trio.to_thread.run_sync(look, at)


class Watchdog:
    """Watchdog over memory and processes of sessions; `run` is the task.

    Args:
        in_thread: runs a look in a thread, so that nobody waits.
    """

    def __init__(self, in_thread: InThread = _in_thread) -> None:
        self._in_thread = in_thread
        self._watched: set[Confinement] = set()
        self._asleep: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<Watchdog of {len(self._watched)} sessions>"

    def watch(self, confinement: Confinement) -> None:
        """Look at a session from now on, until a look finds it at rest."""
        self._watched.add(confinement)
        if self._asleep is not None:
            self._asleep.set()
            self._asleep = None

    async def run(self) -> None:
        """Never returns.

        Cancellation: the usual way to end it.
        """
        took_s = 0.0
        while True:
            if not self._watched:
                asleep = self._asleep = trio.Event()
                await asleep.wait()
            await trio.sleep(max(PERIOD_S, took_s / SHARE))
            before_s = trio.current_time()
            await self._look(tuple(self._watched))
            took_s = trio.current_time() - before_s

    async def _look(self, confinements: Sequence[Confinement]) -> None:
        looks = await self._in_thread(_look_at, confinements)
        for confinement, look in zip(confinements, looks, strict=True):
            if not confinement.act(look):
                self._watched.discard(confinement)


def _look_at(confinements: Sequence[Confinement]) -> list[Look]:
    return [confinement.look() for confinement in confinements]
