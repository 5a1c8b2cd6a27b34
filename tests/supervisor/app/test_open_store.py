"""Descriptors passed to the program that a supervisor becomes, and those collected at the start."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsmd.app.startup import open_store
from nsmd.fdstore import running_holders
from nsmd.fdstore.handover import VARIABLE, HandedOver, SuccessorError, take_over, try_successor
from nsmd.fdstore.holder_store import HolderStore
from nsmd.fdstore.running_holders import RunningHolder, take_copies
from nsmd.fdstore.store import Kept, copies_of
from nsmd.fdstore.systemd_store import SystemdStore
from processes import collect

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

LEAVES = """
import os, socket, sys
from nsmd.fdstore.store import NoStore
from nsmd.fdstore.handover import Leaving
mine, kept, lock = socket.socketpair()[0], os.memfd_create("kept"), os.open("/", os.O_RDONLY)
os.write(kept, b"what was kept")
stray = os.open("/usr", os.O_RDONLY)
os.set_inheritable(stray, True)
store = NoStore()
store._refill = {"session-a": [kept], "session-b": [mine.fileno(), lock]}.items
first = [] if sys.argv[1:] == ["now"] else ["/nowhere/nsm-supervisor"]
leaving = Leaving(listener=mine, own=(1, 2), lock=lock, store=store, command=first or [
    sys.executable, "-c", TAKES])
leaving.hold_place()
leaving(HOW)
"""

TAKES = """
import json, os, sys
from nsmd.fdstore import running_holders
from nsmd.fdstore.handover import take_over
handed = take_over(os.environ)
assert handed is not None
fds = [handed.listener, handed.lock, *(fd for fds in handed.kept.values() for fd in fds)]
links = sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
               if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}"))
print(json.dumps({
    "pid": os.getpid(), "own": handed.own, "names": sorted(handed.kept),
    "content": os.pread(handed.kept["session-a"][0], 100, 0).decode(),
    "inheritable": any(map(os.get_inheritable, fds)),
    "stray": "/usr" in links, "lock": os.readlink(f"/proc/self/fd/{handed.lock}"),
    "variable": "NSM_HANDED_OVER" in os.environ,
}))
"""


def left(how: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process that leaves so."""
    code = LEAVES.replace("TAKES", repr(TAKES)).replace("HOW", repr(how))
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_the_next_program_has_all_that_was_handed_over_and_nothing_else() -> None:
    process = left("reload", "now")
    assert process.stderr == ""
    told = json.loads(process.stdout)
    assert told.pop("pid") > 1
    assert told == {
        "own": [1, 2],
        "names": ["session-a", "session-b"],
        "content": "what was kept",
        "inheritable": False,
        "stray": False,
        "lock": "/",
        "variable": False,
    }


class Given:
    """Two descriptors to hand over."""

    def __init__(self, fds: tuple[int, int]) -> None:
        self.listener, self.lock = fds

    def variables(self, **changes: object) -> dict[str, str]:
        """The variable of a file that says so."""
        told: dict[str, object] = {
            "version": 1,
            "pid": os.getpid(),
            "listener": self.listener,
            "own": None,
            "lock": self.lock,
            "kept": {},
        }
        fd = os.memfd_create("handed")
        os.write(fd, json.dumps(told | changes).encode())
        return {VARIABLE: str(fd)}


@pytest.fixture
def given() -> Generator[Given]:
    with open(os.devnull, "rb") as one, open(os.devnull, "rb") as other:
        yield Given((one.fileno(), other.fileno()))


def test_descriptors_handed_over_are_taken_once(given: Given) -> None:
    variables = given.variables()
    expected = HandedOver(listener=given.listener, own=None, lock=given.lock, kept={})
    assert take_over(variables) == expected
    assert take_over(variables) is None


@pytest.mark.parametrize(
    "changes",
    [{"version": 2}, {"pid": 1}, {"kept": [1]}, {"kept": {"session-a": [987654]}}, {"lock": None}],
    ids=str,
)
def test_an_unreadable_handover_is_left_and_logged(
    given: Given, changes: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    assert take_over(given.variables(**changes)) is None
    assert "is unreadable" in caplog.text


def test_copies_of_files_in_memory_last() -> None:
    with open(os.devnull, "rb") as lasting:

        def refill() -> Generator[tuple[str, list[int]]]:
            fd = os.memfd_create("record")
            yield "session-a", [fd, lasting.fileno()]
            os.close(fd)
            yield "session-gone", [fd]

        found = copies_of(refill)
        assert found.keys() == {"session-a"}
        copy, same = found["session-a"]
        assert same == lasting.fileno()
        os.close(copy)


class Start:
    """Inputs that a supervisor finds at its start."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.path = str(directory / "keeper.sock")
        self.stack = stack

    def left_in_a_holder(self, *names: str) -> int:
        """Leave descriptors of a supervisor that is gone in a holder; return the holder's process
        id."""
        store = HolderStore(self.path)
        with open(os.devnull, "rb") as some:
            for name in names:
                store.keep(name, [some.fileno()])
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(self.path)
            link.send(b"count")
            link.recv(100)  # it has come up
        store.close()
        return store.pid

    def some(self, *names: str) -> dict[str, list[int]]:
        return {name: [os.open(os.devnull, os.O_RDONLY)] for name in names}

    def close(self, kept: Kept) -> None:
        for fds in kept.values():
            for fd in fds:
                os.close(fd)


@pytest.fixture
def start(tmp_path: Path) -> Generator[Start]:
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:
        yield Start(tmp_path, stack)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_holder_gives_what_it_has_and_is_kept(start: Start) -> None:
    start.left_in_a_holder("session-a", "session-b")
    store, kept, _ = open_store({}, start.path, {}, None)
    assert kept.keys() == {"session-a", "session-b"}
    start.close(kept)
    store.end()


def test_descriptors_handed_over_win_over_those_of_a_holder(start: Start) -> None:
    start.left_in_a_holder("session-a", "session-b")
    mine = start.some("session-a", "session-c")
    handed = HandedOver(listener=0, own=None, lock=0, kept=mine)
    store, kept, _ = open_store({}, start.path, {}, handed)
    assert kept.keys() == {"session-a", "session-b", "session-c"}
    assert kept["session-a"] == mine["session-a"]
    start.close(kept)
    store.end()


@contextmanager
def room_for(descriptors: int) -> Generator[None]:
    """Let this process open so many more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(descriptors):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_holder_keeps_what_there_is_no_room_for(start: Start) -> None:
    """One of two fits, beside the connection."""
    start.left_in_a_holder("session-a", "session-b")
    with room_for(2), pytest.raises(OSError, match="no room for what is kept") as caught:
        open_store({}, start.path, {}, None)
    assert caught.value.errno == errno.EMFILE
    store, kept, _ = open_store({}, start.path, {}, None)
    assert {name: len(fds) for name, fds in kept.items()} == {"session-a": 1, "session-b": 1}
    start.close(kept)
    store.end()


def test_no_room_is_needed_for_what_is_handed_over(start: Start) -> None:
    start.left_in_a_holder("session-a", "session-b")
    mine = start.some("session-a", "session-b")
    handed = HandedOver(listener=0, own=None, lock=0, kept=mine)
    with room_for(2):
        store, kept, _ = open_store({}, start.path, {}, handed)
    assert kept == mine
    start.close(kept)
    store.end()


def test_systemd_gets_what_a_holder_had(start: Start, tmp_path: Path) -> None:
    """A supervisor that was started by a client is followed by one that systemd starts."""
    pid = start.left_in_a_holder("session-a")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "FDSTORE": "100"}
        passed = start.some("session-b")
        with pytest.MonkeyPatch.context() as patched:
            # This process is the manager, too, which answers nobody while it waits.
            patched.setattr("nsmd.fdstore.systemd_store.SETTLE_TIMEOUT_S", 0.05)
            store, kept, _ = open_store(variables, start.path, passed, None)
        assert isinstance(store, SystemdStore)
        store.close()
        assert manager.recv(100) == b"FDSTORE=1\nFDNAME=session-a\nFDPOLL=0"
        assert manager.recv(100) == b"BARRIER=1"
    assert kept.keys() == {"session-a", "session-b"}
    collect(pid)
    start.close(kept)


@pytest.mark.parametrize("settled", [True, False])
def test_systemd_is_not_told_again_what_it_has(
    start: Start, tmp_path: Path, *, settled: bool
) -> None:
    """Records are handed over as new files, which it would keep beside those of before."""
    mine = start.some("spec-a")
    handed = HandedOver(listener=0, own=None, lock=0, kept=mine, settled=settled)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "FDSTORE": "100"}
        store, kept, _ = open_store(variables, start.path, {}, handed)
        assert isinstance(store, SystemdStore)
        store.drop("spec-a")
        store.close()
        if not settled:
            assert manager.recv(100, socket.MSG_DONTWAIT) == b"FDSTORE=1\nFDNAME=spec-a\nFDPOLL=0"
        assert manager.recv(100, socket.MSG_DONTWAIT) == b"FDSTOREREMOVE=1\nFDNAME=spec-a"
    start.close(kept)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Process ids of stopped holders, for which nobody waits long."""
    pids: set[int] = set()

    def take_soon(path: str, *, timeout_s: float) -> RunningHolder | None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link, suppress(OSError):
            link.connect(path)
            peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            timeout_s = 0.05 if struct.unpack("3i", peer)[0] in pids else 60.0
        return take_copies(path, timeout_s=timeout_s)

    monkeypatch.setattr(running_holders, "take_copies", take_soon)
    return pids


async def test_another_holder_keeps_what_comes_while_the_first_is_silent(
    start: Start, stopped: set[int]
) -> None:
    """Both come together when it answers, and one of them ends."""
    first = start.left_in_a_holder("session-a", "spec-a")
    stopped.add(first)
    os.kill(first, signal.SIGSTOP)
    store, kept, silent = open_store({}, start.path, {}, None)
    assert (kept, store.problem) == ({}, "")
    assert silent is not None
    assert f"process {first}" in silent.problem
    silent.close()
    mine = start.some("session-b", "spec-b")
    for name, fds in mine.items():
        store.keep(name, fds)
    assert isinstance(store, HolderStore)
    store.close()  # this supervisor is killed, and the next one finds it silent still
    store, kept, silent = open_store({}, start.path, {}, None)
    assert kept.keys() == {"session-b", "spec-b"}
    start.close(kept)
    assert isinstance(store, HolderStore)
    store.close()
    assert silent is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(silent.wait)
        await trio.testing.wait_all_tasks_blocked()  # it asks
        os.kill(first, signal.SIGCONT)
    silent.close()
    stopped.clear()
    second = store.pid
    store, kept, silent = open_store({}, start.path, {}, None)
    assert kept.keys() == {"session-a", "session-b", "spec-a", "spec-b"}
    assert silent is None
    assert isinstance(store, HolderStore)
    collect(({first, second} - {store.pid}).pop())
    store.close()
    found = take_copies(start.path)
    assert found is not None
    assert (found.pid, found.kept.keys()) == (store.pid, kept.keys())
    for each in (kept, mine, found.kept):
        start.close(each)
    HolderStore(start.path, found=found).end()
    assert not os.listdir(os.path.dirname(start.path))


async def test_a_silent_holder_that_is_killed_is_waited_for_no_longer(
    start: Start, stopped: set[int]
) -> None:
    first = start.left_in_a_holder("session-a")
    stopped.add(first)
    os.kill(first, signal.SIGSTOP)
    _, _, silent = open_store({}, start.path, {}, None)
    assert silent is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(silent.wait)
        await trio.testing.wait_all_tasks_blocked()
        silent.end()
    collect(first)
    _, kept, silent = open_store({}, start.path, {}, None)
    assert (kept, silent) == ({}, None)
    assert not os.listdir(os.path.dirname(start.path))


async def test_the_next_program_is_tried() -> None:
    assert await try_successor([sys.executable, "-P", "-m", "nsmd"])
    with pytest.raises(SuccessorError, match="can't be started"):
        await try_successor(["/nowhere/nsm-supervisor"])
    with pytest.raises(SuccessorError, match="unrecognized arguments: --try"):
        await try_successor(
            [sys.executable, "-c", "import argparse; argparse.ArgumentParser().parse_args()"]
        )
    with pytest.raises(SuccessorError, match="it ends with 3"):
        await try_successor([sys.executable, "-c", "raise SystemExit(3)"])
