"""Descriptors from a service manager are taken, or refused with the reason; readiness is
reported."""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsmd.app.daemon import STATUS_PERIOD_S, ServiceStatus
from nsmd.app.service_manager import (
    LISTEN_VARIABLES,
    PassedDescriptors,
    ServiceManagerError,
    notify,
    take_passed,
)
from nsmd.model.events import Events

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


def passed(count: str = "1") -> dict[str, str]:
    return {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count, "LISTEN_FDNAMES": "control"}


@contextmanager
def listener(path: Path) -> Generator[int]:
    """The descriptor of a socket that listens there; whoever takes it closes it."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        bound.listen()
        yield os.dup(bound.fileno())


def test_the_socket_is_taken_once_and_is_not_passed_on(tmp_path: Path) -> None:
    environment = passed() | {"HOME": "/"}
    with listener(tmp_path / "s") as fd:
        os.set_inheritable(fd, True)
        taken = take_passed(environment, first_fd=fd).listener
        assert taken is not None
        with taken, socket.socket(socket.AF_UNIX) as client:
            assert environment == {"HOME": "/"}
            assert not taken.get_inheritable()
            assert not taken.getblocking()
            client.connect(str(tmp_path / "s"))
            connection, _ = taken.accept()
            connection.close()
    assert take_passed(environment) == PassedDescriptors()
    assert (tmp_path / "s").exists()  # it is the service manager's


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="nothing"),
        pytest.param(passed() | {"LISTEN_PID": "1"}, id="meant for another process"),
        pytest.param({"LISTEN_FDS": "1"}, id="meant for nobody"),
        pytest.param(passed("0"), id="none"),
    ],
)
def test_descriptors_for_another_process_are_left_alone(environment: dict[str, str]) -> None:
    assert take_passed(environment, first_fd=-1) == PassedDescriptors()
    assert not set(LISTEN_VARIABLES) & set(environment)


def test_kept_descriptors_are_told_from_the_socket(tmp_path: Path) -> None:
    with listener(tmp_path / "s") as original, ExitStack() as stack:
        # In one row, as a manager passes them: only above all that is open there is room for sure.
        first = max(map(int, os.listdir("/proc/self/fd"))) + 1
        fds = [fcntl.fcntl(original, fcntl.F_DUPFD, first + index) for index in range(4)]
        os.close(original)
        assert fds == list(range(first, first + 4))
        names = "nsm-supervisor.socket:session-a:spec-0:session-a"
        environment = passed("4") | {"LISTEN_FDNAMES": names}
        taken = take_passed(environment, first_fd=first)
        assert taken.listener is not None
        stack.enter_context(taken.listener)
        for kept in fds[1:]:
            stack.callback(os.close, kept)
        assert taken.kept == {"session-a": [fds[1], fds[3]], "spec-0": [fds[2]]}
        assert not any(map(os.get_inheritable, fds))


def test_descriptors_of_an_unknown_name_are_kept(tmp_path: Path) -> None:
    """The supervisor starts, and leaves it alone."""
    with listener(tmp_path / "s") as original, open(os.devnull, "rb") as null:
        first = max(map(int, os.listdir("/proc/self/fd"))) + 1
        fds = [fcntl.fcntl(each, fcntl.F_DUPFD, first) for each in (original, null.fileno())]
        os.close(original)
        environment = passed("2") | {"LISTEN_FDNAMES": "nsm-supervisor.socket:paint-1"}
        taken = take_passed(environment, first_fd=first)
        assert taken.listener is not None
        taken.listener.close()
        assert taken.kept == {"paint-1": [fds[1]]}
        os.close(fds[1])


def test_descriptors_are_kept_without_a_socket() -> None:
    with open(os.devnull, "rb") as kept:
        environment = passed() | {"LISTEN_FDNAMES": "session-a"}
        taken = take_passed(environment, first_fd=kept.fileno())
        assert taken == PassedDescriptors(None, {"session-a": [kept.fileno()]})


@pytest.mark.parametrize("count", ["2", "-1", "many"])
def test_only_one_is_taken(count: str) -> None:
    with pytest.raises(ServiceManagerError, match=r"one ListenStream="):
        take_passed(passed(count))


def test_a_descriptor_that_cannot_serve_is_refused_and_closed(tmp_path: Path) -> None:
    def refused(fd: int) -> str:
        with pytest.raises(ServiceManagerError) as caught:
            take_passed(passed(), first_fd=fd)
        return str(caught.value)

    with socket.socket(socket.AF_INET) as internet:
        internet.bind(("127.0.0.1", 0))
        internet.listen()
        fd = os.dup(internet.fileno())
        assert "not a Unix stream socket" in refused(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    with socket.socket(socket.AF_UNIX) as idle:
        idle.bind(str(tmp_path / "idle"))
        assert "does not listen" in refused(os.dup(idle.fileno()))
    with socket.socket(socket.AF_UNIX) as nameless:
        nameless.bind("\0nsm-test-" + str(os.getpid()))
        nameless.listen()
        assert "has no path" in refused(os.dup(nameless.fileno()))
    with open(tmp_path / "file", "wb") as file:
        assert "is not a socket" in refused(file.fileno())


@pytest.mark.parametrize("abstract", [False, True])
def test_readiness_is_told(abstract: bool, tmp_path: Path) -> None:
    name = f"@nsm-notify-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1))
        notify({"NOTIFY_SOCKET": name}, "READY=1")
        assert manager.recv(100) == b"READY=1"


# Messages to the service manager, on a clock of the test's own.


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
