"""Messages to the service manager, on a clock of the test's own."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsmd.app.daemon import STATUS_PERIOD_S, ServiceStatus, watchdog_period_s
from nsmd.model.events import Events

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


class Manager:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self.environment = {"NOTIFY_SOCKET": str(path)}

    def told(self) -> list[str]:
        """Return the messages since the last time."""
        found: list[str] = []
        while True:
            try:
                found.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return found


@pytest.fixture
def manager(tmp_path: Path) -> Generator[Manager]:
    made = Manager(tmp_path / "notify")
    with made.socket:
        yield made


async def test_the_line_of_status_changes_with_what_happens_and_not_more_often(
    manager: Manager, autojump_clock: trio.testing.MockClock
) -> None:
    events, counts = Events(), [0, 0, 1]
    status = ServiceStatus(manager.environment, lambda: (counts[0], counts[1], counts[2]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(status.run, events)
        await trio.testing.wait_all_tasks_blocked()
        assert manager.told() == ["STATUS=0 sessions, 0 executions under way, 1 client"]
        for number in range(1, 50):
            counts[:2] = [number, 1]
            events.publish("execution_started")
            await trio.testing.wait_all_tasks_blocked()
        assert manager.told() == []
        await trio.sleep(STATUS_PERIOD_S + 1)
        assert manager.told() == ["STATUS=49 sessions, 1 execution under way, 1 client"]
        # What happens and changes nothing is not told; nor is anything while nothing happens.
        events.publish("execution_started")
        await trio.sleep(100 * STATUS_PERIOD_S)
        assert manager.told() == []
        nursery.cancel_scope.cancel()
    events.publish("execution_started")
    assert repr(events) == "<Events for 0 listeners>"


async def test_a_loop_that_turns_says_so_twice_in_the_watchdogs_time(
    manager: Manager, autojump_clock: trio.testing.MockClock
) -> None:
    manager.environment |= {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    status = ServiceStatus(manager.environment, lambda: (0, 0, 0))
    with trio.move_on_after(60.5):
        await status.run(Events())
    told = manager.told()
    assert told.count("WATCHDOG_USEC=30000000") == 1
    assert told.count("WATCHDOG=1") == 5


@pytest.mark.parametrize(("own_s", "given_s"), [(30, 90), (300, 300)])
def test_the_next_program_has_time_to_load(manager: Manager, own_s: int, given_s: int) -> None:
    manager.environment["WATCHDOG_USEC"] = f"{own_s}000000"
    ServiceStatus(manager.environment, lambda: (0, 0, 0)).ends("reload")
    assert manager.told()[1:] == [f"WATCHDOG_USEC={given_s}000000"]


@pytest.mark.parametrize(
    ("variables", "period_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "3000000"}, 1.5),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_when_it_is_watched(variables: dict[str, str], period_s: float | None) -> None:
    assert watchdog_period_s(variables) == period_s


async def test_a_drain_has_the_time_that_it_was_given(
    manager: Manager, autojump_clock: trio.testing.MockClock
) -> None:
    events = Events()
    status = ServiceStatus(manager.environment, lambda: (1, 2, 0), lambda: 100.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(status.run, events)
        await trio.testing.wait_all_tasks_blocked()
        manager.told()
        events.publish("draining", state="begun", then="stay")
        await trio.sleep(STATUS_PERIOD_S + 1)
        assert manager.told() == ["STATUS=Draining: 1 session, 2 executions under way, 0 clients"]
        events.publish("draining", state="cancelled", then="stay")
        events.publish("draining", state="begun", then="leave")
        assert manager.told()[0].splitlines()[0] == "EXTEND_TIMEOUT_USEC=115000000"
        nursery.cancel_scope.cancel()


def test_the_end_and_a_reload_are_told(manager: Manager) -> None:
    status = ServiceStatus(manager.environment, lambda: (0, 0, 0))
    status.ends("leave")
    status.ends("reload")
    stopping, reloading = manager.told()
    assert stopping.splitlines()[0] == "STOPPING=1"
    first, second, _ = reloading.splitlines()
    assert first == "RELOADING=1"
    assert second.startswith("MONOTONIC_USEC=")
    assert int(second.partition("=")[2]) > 0


async def test_where_nobody_wants_to_know_there_is_nothing_to_run() -> None:
    status = ServiceStatus({}, lambda: (0, 0, 0))
    await status.run(Events())
    status.ends("end")
    assert repr(status) == "<ServiceStatus for nobody>"
