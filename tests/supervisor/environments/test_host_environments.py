"""A second look at interpreters of the host that could not be used."""

from __future__ import annotations

import threading

import trio
import trio.testing

from nsmd.environments.host_presets import HostEnvironments
from nsmd.model.settings import Settings
from nsmd.model.values import Environment

GOOD = Environment(name="python", interpreter="python", program="/usr/bin/python3")
BAD = Environment(name="node", interpreter="node", problem="it was killed")
MENDED = Environment(name="node", interpreter="node", program="/usr/bin/node")


class Host(HostEnvironments):
    """Environments of a host where the next look finds `there`."""

    def __init__(self) -> None:
        super().__init__(self._look_around, Settings())
        self.there: list[Environment] = [GOOD, BAD]
        self.error: Exception | None = None
        self.may_end = threading.Event()
        self.may_end.set()
        self.looks = 0
        self.changes = 0
        self.changed = self._count

    def _count(self) -> None:
        self.changes += 1

    def _look_around(self, _settings: Settings) -> list[Environment]:
        self.looks += 1
        self.may_end.wait()
        if self.error is not None:
            raise self.error
        return list(self.there)


async def test_what_could_not_be_used_is_asked_again() -> None:
    host = Host()
    await host.begin()
    await host.search_again()
    assert (host.looks, host.changes) == (2, 0)
    host.there = [GOOD, MENDED]
    await host.search_again()
    assert (host.looks, host.changes, host.found) == (3, 1, [GOOD, MENDED])
    await host.search_again()
    assert host.looks == 3, "all can be used"


async def test_all_who_come_at_once_share_a_look() -> None:
    host = Host()
    await host.begin()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(host.search_again)
    assert host.looks == 2


async def test_a_look_that_is_overtaken_changes_nothing() -> None:
    host = Host()
    await host.begin()
    host.there = [GOOD, MENDED]
    host.may_end.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.search_again)
        await trio.testing.wait_all_tasks_blocked()
        host.put(Settings(), [GOOD])
        host.may_end.set()
    assert (host.found, host.changes) == ([GOOD], 1)


async def test_there_may_be_no_room_for_a_thread() -> None:
    host = Host()
    await host.begin()
    host.error = RuntimeError("can't start new thread")  # as threading says it
    await host.search_again()
    assert host.found == [GOOD, BAD]
