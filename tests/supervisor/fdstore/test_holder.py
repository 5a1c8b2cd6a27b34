"""The program that holds descriptors, and the supervisor's side of it: processes, really killed."""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
import threading
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from nsm.startup import start
from nsm.wire.errors import NotRunningError
from nsmd.fdstore import holder_store
from nsmd.fdstore.holder import DescriptorHolder, memory_file
from nsmd.fdstore.holder_store import HolderStore
from nsmd.fdstore.records import read_file
from nsmd.fdstore.running_holders import HolderError, RunningHolder, take_copies
from processes import Watched, collect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
    from pathlib import Path

END_S = 120


class World:
    """A place for a holder, descriptors to be held, and no process left afterwards."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.path = str(directory / "keeper.sock")
        self._stack = stack

    def store(self, found: RunningHolder | None = None, *, linger_s: float = 60) -> HolderStore:
        store = HolderStore(self.path, found=found, linger_s=linger_s)
        self._stack.callback(store.end)
        return store

    def taken(self) -> RunningHolder:
        found = take_copies(self.path)
        assert found is not None
        self._stack.callback(self._give_up, found)
        return found

    @staticmethod
    def _give_up(found: RunningHolder) -> None:
        found.link.close()
        for fd in (fd for fds in found.kept.values() for fd in fds):
            os.close(fd)

    def pair(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket.socketpair()
        return self._stack.enter_context(ours), self._stack.enter_context(theirs)

    def keeping(self, *, linger_s: float = 60) -> tuple[HolderStore, socket.socket]:
        """A store that keeps one descriptor, for session-a, and that descriptor."""
        store, (_, theirs) = self.store(linger_s=linger_s), self.pair()
        store.keep("session-a", [theirs.fileno()])
        return store, theirs

    def ask(self, *messages: bytes, fds: Sequence[int] = ()) -> socket.socket:
        link = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        link.settimeout(END_S)
        link.connect(self.path)
        for message in messages:
            socket.send_fds(link, [message], fds)
        return link

    def held(self) -> int:
        with self.ask(b"count") as link:
            return int(link.recv(100).split()[1])


@pytest.fixture
def world(tmp_path: Path) -> Generator[World]:
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:
        yield World(tmp_path, stack)
    assert len(os.listdir("/proc/self/fd")) == before


@asynccontextmanager
async def running(
    store: HolderStore, wanted: Callable[[], Iterable[tuple[str, Sequence[int]]]]
) -> AsyncGenerator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, wanted)
        yield
        nursery.cancel_scope.cancel()


async def caught_up(store: HolderStore) -> None:
    with trio.fail_after(END_S):
        await store.caught_up()


def test_descriptors_come_back_under_their_names(world: World) -> None:
    store = world.store()
    assert store.pid == 0  # nothing to keep yet
    ours, theirs = world.pair()
    process = os.pidfd_open(os.getpid())
    store.keep("session-a", [theirs.fileno()])
    store.keep("session-a", [theirs.fileno(), process])
    store.keep("session-b", [theirs.fileno()])
    os.close(process)
    theirs.close()
    store.drop("session-b")
    store.close()
    found = world.taken()
    assert (found.pid, list(found.kept), len(found.kept["session-a"])) == (
        store.pid,
        ["session-a"],
        2,
    )
    channel = next(fd for fd in found.kept["session-a"] if stat.S_ISSOCK(os.fstat(fd).st_mode))
    assert not any(os.get_inheritable(fd) for fd in found.kept["session-a"])
    os.write(channel, b"there")
    assert ours.recv(10) == b"there"
    world.store(found).end()
    collect(found.pid)
    assert not os.path.exists(world.path)


def test_the_same_descriptor_is_kept_once(world: World) -> None:
    """Before Linux 6.9 all pidfds are one inode."""
    store = world.store()
    _, theirs = world.pair()
    own, parent = os.pidfd_open(os.getpid()), os.pidfd_open(os.getppid())
    store.keep("session-a", [theirs.fileno(), own, parent] * 3)
    os.close(own)
    os.close(parent)
    store.close()
    found = world.taken()
    assert len(found.kept["session-a"]) == 3
    world.store(found)


def test_a_record_is_held_without_a_descriptor_and_comes_back_sealed(world: World) -> None:
    """Thousands of sessions have one each."""
    store = world.store()
    _, theirs = world.pair()
    contents = [f"record {number}".encode() for number in range(20)]
    for number, content in enumerate(contents):
        record = memory_file(content)
        store.keep(f"session-{number}", [record, theirs.fileno()])
        os.close(record)
    store.drop("session-0")
    assert world.held() == 19
    # Two sockets, /dev/null, what it holds; the connection that has asked may be there still.
    assert len(os.listdir(f"/proc/{store.pid}/fd")) in (3 + 19, 4 + 19)
    store.close()
    found = world.taken()
    records = {name: read_file(next(filter(is_record, fds))) for name, fds in found.kept.items()}
    assert records == {f"session-{n}": contents[n] for n in range(1, 20)}
    assert all(len(fds) == 2 for fds in found.kept.values())
    record = next(filter(is_record, found.kept["session-1"]))
    with pytest.raises(PermissionError):
        os.write(record, b"more")
    world.store(found)


def is_record(fd: int) -> bool:
    return read_file(fd) is not None


def test_the_holder_holds_nothing_of_its_starter(world: World) -> None:
    store = world.store()
    _, theirs = world.pair()
    with open(os.devnull, "rb") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        os.set_inheritable(inherited.fileno(), False)
        store.keep("session-a", [theirs.fileno()])
    assert world.held() == 1  # it has come up
    facts = f"/proc/{store.pid}"
    assert os.readlink(f"{facts}/cwd") == "/"
    assert os.getsid(store.pid) == os.getpgid(store.pid) == store.pid
    assert os.readlink(f"{facts}/fd/2") == os.devnull
    # Two sockets, /dev/null, what it holds; the connection that has asked may be there still.
    assert len(os.listdir(f"{facts}/fd")) in (4, 5)
    soft, hard = resource.prlimit(store.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
    assert stat.S_IMODE(os.stat(world.path).st_mode) == 0o600
    os.kill(store.pid, signal.SIGHUP)  # the terminal hangs up
    os.kill(store.pid, signal.SIGINT)
    assert world.held() == 1


def test_anyone_may_ask_whether_it_is_alone(world: World) -> None:
    """`nsm ps` does, to find out whether there is anything to go on with."""
    store, _ = world.keeping()
    with world.ask(b"count") as link:
        assert link.recv(100) == b"count 1 supervised"
    store.close()
    with world.ask(b"count") as link:
        assert link.recv(100) == b"count 1 alone"
    world.store(world.taken())


def test_a_holder_ends_when_no_supervisor_comes(world: World) -> None:
    store = world.store(linger_s=0.01)
    ours, theirs = world.pair()
    store.keep("session-a", [theirs.fileno()])
    theirs.close()
    pid = store.pid
    store.close()
    collect(pid)
    assert ours.recv(1) == b""  # so does whatever it has held
    assert take_copies(world.path) is None


def test_a_holder_waits_longer_while_no_supervisor_can_start(world: World) -> None:
    mine, theirs = world.pair()
    other, anyone = world.pair()
    with socket.socket() as listener:
        it = DescriptorHolder(listener, theirs, 600.0)
        anyone.send(b"wait 86400")
        assert it.hear(other)
        assert it.longest_s == 86400
        anyone.send(b"wait 5")
        assert it.hear(other)
        assert it.longest_s == 600
        anyone.send(b"wait 86400")
        mine.send(b"supervise")
        assert it.hear(other)
        assert it.hear(theirs)
        assert it.longest_s == 600
        assert mine.recv(100) == b"pid %d" % os.getpid()


def test_a_holder_with_nothing_to_hold_ends_at_once(world: World) -> None:
    store, _ = world.keeping()
    store.drop("session-a")
    store.close()
    collect(store.pid)


def test_a_supervisor_that_comes_to_a_stopped_holder_is_heard(world: World) -> None:
    """The time is over when it goes on; but a supervisor has come meanwhile."""
    store, _ = world.keeping(linger_s=0.001)
    assert world.held() == 1
    os.kill(store.pid, signal.SIGSTOP)
    store.close()
    link = world.ask(b"supervise", b"give")
    os.kill(store.pid, signal.SIGCONT)
    assert link.recv(100) == f"pid {store.pid}".encode()
    assert link.recv(100) == b"has session-a"
    assert link.recv(100) == b"all"
    link.send(b"end")
    collect(store.pid)


def test_the_last_words_of_a_killed_supervisor_are_kept(world: World) -> None:
    """The next one asks before the holder has read all of it."""
    store = world.store()
    ours, theirs = world.pair()
    store.keep("session-0", [theirs.fileno()])
    assert world.held() == 1
    os.kill(store.pid, signal.SIGSTOP)
    for number in range(1, 50):
        store.keep(f"session-{number}", [theirs.fileno()])
    link = world.ask(b"supervise", b"give")
    store.close()
    os.kill(store.pid, signal.SIGCONT)
    names: set[bytes] = set()
    while (message := link.recv(100)) != b"all":
        names.add(message)
    assert len(names) == 51  # and its process id
    link.send(b"end")
    collect(store.pid)
    assert ours.fileno() >= 0


@pytest.mark.alone  # the kernel counts descriptors on their way for the whole user
@pytest.mark.usefixtures("many_descriptors")
def test_garbage_does_no_harm(world: World) -> None:
    store = world.store()
    ours, theirs = world.pair()
    store.keep("session-a", [theirs.fileno()])
    for message in (b"\xff" * 4000, b"keep", b"drop session-a", b"end", b"give", b"x" * 65000):
        world.ask(message, fds=[ours.fileno()] * 250).close()
    for _ in range(100):
        with suppress(OSError):
            world.ask()
    found = world.taken()
    assert found.kept.keys() == {"session-a"}
    for message in (b"what", b" ", b"keep", b"keep session-b", b"set session-b"):
        found.link.send(message)
    store.close()
    assert world.held() == 1
    world.store(found)


def test_a_full_socket_holds_up_nobody(world: World) -> None:
    """Descriptors that a stopped holder cannot take are sent when it continues, as they are by
    then."""
    store = world.store()
    _, theirs = world.pair()
    wanted: dict[str, list[int]] = {}

    def keep(name: str) -> None:
        wanted[name] = [theirs.fileno()]
        store.keep(name, wanted[name])

    keep("session-first")
    os.kill(store.pid, signal.SIGSTOP)
    for number in range(2000):
        keep(f"session-{number}")
    assert "has not taken" in store.problem
    for number in range(1000, 2000):
        del wanted[f"session-{number}"]
        store.drop(f"session-{number}")
    os.kill(store.pid, signal.SIGCONT)

    async def main() -> None:
        async with running(store, wanted.items):
            await caught_up(store)

    trio.run(main)
    assert store.problem == ""
    store.close()
    found = world.taken()
    assert found.kept.keys() == wanted.keys()
    world.store(found)


async def test_a_holder_that_takes_nothing_is_replaced(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder_store, "TAKE_TIMEOUT_S", 0.05)
    store = world.store()
    _, theirs = world.pair()
    wanted = {f"session-{number}": [theirs.fileno()] for number in range(2000)}
    store.keep("session-0", [theirs.fileno()])
    assert world.held() == 1
    os.kill(store.pid, signal.SIGSTOP)
    for name, descriptors in wanted.items():
        store.keep(name, descriptors)
    assert "has not taken" in store.problem
    async with trio.open_nursery() as nursery:
        with Watched([store.pid]) as watched:
            nursery.start_soon(store.run, wanted.items)
            await watched.all_ended()
        monkeypatch.undo()  # its Python needs longer to start
        await caught_up(store)
        nursery.cancel_scope.cancel()
    assert world.held() == 2000


async def test_a_killed_holder_is_replaced_and_told_all(world: World) -> None:
    store, theirs = world.keeping()
    first = store.pid
    async with running(store, {"session-a": [theirs.fileno()]}.items):
        for _ in range(3):
            killed = store.pid
            with Watched([killed]) as watched:
                os.kill(killed, signal.SIGKILL)
                await watched.all_ended()
            await trio.testing.wait_all_tasks_blocked()  # it has noticed
            await caught_up(store)
            assert store.pid not in (killed, 0)
    assert store.pid != first
    store.close()
    found = world.taken()
    assert found.kept.keys() == {"session-a"}
    world.store(found)


async def test_a_holder_and_its_supervisor_that_are_killed_in_turn_lose_nothing(
    world: World,
) -> None:
    """Another holder has everything as soon as the supervisor has seen the end of the first."""
    store = world.store()
    _, theirs = world.pair()
    wanted = {f"session-{number}": [theirs.fileno()] for number in range(200)}
    for name, descriptors in wanted.items():
        store.keep(name, descriptors)
    async with running(store, wanted.items):
        with Watched([store.pid]) as watched:
            os.kill(store.pid, signal.SIGKILL)
            await watched.all_ended()
        await trio.testing.wait_all_tasks_blocked()  # it has noticed
        store.close()
        found = world.taken()
    assert found.kept.keys() == wanted.keys()
    world.store(found)


async def test_descriptors_that_are_missing_for_a_moment_are_told_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder_store, "RETRY_S", 0.01)
    store, theirs = world.keeping()
    kept: list[list[int]] = [[], [], [theirs.fileno()]]
    asked: list[int] = []

    def refill() -> list[tuple[str, list[int]]]:
        asked.append(store.pid)
        return [("session-a", kept.pop(0) if len(kept) > 1 else kept[0])]

    async with running(store, refill):
        with Watched([store.pid]) as watched:
            os.kill(store.pid, signal.SIGKILL)
            await watched.all_ended()
        await trio.testing.wait_all_tasks_blocked()
        await caught_up(store)
    assert len(asked) >= 3
    assert world.held() == 1


async def test_a_holder_without_its_socket_is_replaced(world: World) -> None:
    """The socket was removed, as cleaners of /tmp do."""
    store, theirs = world.keeping()
    async with running(store, {"session-a": [theirs.fileno()]}.items):
        before = store.pid
        store.ensure_reachable()
        os.unlink(world.path)
        with Watched([before]) as watched:
            store.ensure_reachable()
            await watched.all_ended()
        await trio.testing.wait_all_tasks_blocked()
        await caught_up(store)
    store.close()
    found = world.taken()
    assert found.kept.keys() == {"session-a"}
    assert found.pid != before
    world.store(found)


def test_a_silent_holder_is_left_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder_store, "ANSWER_TIMEOUT_S", 0.05)
    store, _ = world.keeping()
    os.kill(store.pid, signal.SIGSTOP)
    with pytest.raises(HolderError, match="does not answer") as raised:
        take_copies(world.path, timeout_s=0.05)
    if raised.value.pidfd is not None:  # else it was stopped before it listened
        os.close(raised.value.pidfd)
    pid = store.pid
    store.end()  # its own supervisor has it killed
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@contextmanager
def holder_that_gives(world: World, fd: int, *, and_ends: bool) -> Generator[None]:
    """One thing of two, and then it says no more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(world.path)
        listener.listen()

        def give() -> None:
            link, _ = listener.accept()
            with link:
                assert (link.recv(99), link.recv(99)) == (b"supervise", b"give")
                link.send(b"pid 1")
                socket.send_fds(link, [b"has session-a"], [fd])
                if not and_ends:
                    link.recv(99)

        thread = threading.Thread(target=give)
        thread.start()
        yield
        thread.join()


async def test_descriptors_of_a_holder_that_ends_while_it_gives_are_kept(world: World) -> None:
    _, theirs = world.pair()
    with holder_that_gives(world, theirs.fileno(), and_ends=True):
        found = take_copies(world.path)
    assert found is not None
    assert found.ended
    assert found.kept.keys() == {"session-a"}
    store = world.store(found)
    assert "another is being started" in store.problem
    async with running(store, found.kept.items):
        await caught_up(store)
    assert (world.held(), store.problem) == (1, "")
    found.close()


def test_a_holder_that_gives_a_part_leaves_nothing_open_here(world: World) -> None:
    """The descriptors are still its own: two holders would keep an ended session's agent alive."""
    _, theirs = world.pair()
    with (
        holder_that_gives(world, theirs.fileno(), and_ends=False),
        pytest.raises(HolderError, match="does not answer"),
    ):
        take_copies(world.path, timeout_s=0.05)


def test_descriptors_beyond_the_limit_are_refused(world: World) -> None:
    store = world.store()
    pairs = [world.pair() for _ in range(20)]
    store.keep("session-first", [pairs[0][0].fileno()])
    assert world.held() == 1  # it has come up, and raised its limit
    resource.prlimit(store.pid, resource.RLIMIT_NOFILE, (80, 80))
    link = world.ask(b"supervise")
    assert link.recv(100) == f"pid {store.pid}".encode()
    store.close()
    for number, pair in enumerate(pairs):
        socket.send_fds(link, [f"keep session-{number}".encode()], [pair[0].fileno()])
    link.send(b"supervise")
    answers: list[bytes] = []
    while not (answer := link.recv(100)).startswith(b"pid"):
        answers.append(answer)
    assert answers
    assert set(answers) == {f"lost session-{n}".encode() for n in range(20 - len(answers), 20)}
    assert world.held() == 21 - len(answers)
    link.send(b"end")
    collect(store.pid)


async def test_no_room_for_more_is_told(world: World) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    store = HolderStore(
        world.path, found=RunningHolder(path=world.path, link=ours, pid=os.getpid())
    )
    with ours, theirs:
        theirs.send(b"lost session-a")
        async with running(store, dict[str, list[int]]().items):
            await trio.testing.wait_all_tasks_blocked()
            assert "no room for 1 of" in store.problem
            store.drop("session-a")
            assert store.problem == ""


class Clock:
    """Stand-in for `time`: nobody waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(("kept", "patience_s"), [(True, start.KEPT_S), (False, start.RECONNECT_S)])
def test_clients_give_up_later_where_sessions_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, kept: bool, patience_s: float
) -> None:
    """Clients give up just as late when no supervisor comes to listen, for whatever reason."""
    clock = Clock()
    monkeypatch.setattr(start, "time", clock)
    monkeypatch.setattr(start, "RETRY_S", 1.0)
    monkeypatch.setenv("NSM_AUTOSTART", "0")
    os.chmod(os.path.dirname(world.path), 0o700)
    path = os.path.join(os.path.dirname(world.path), "control.sock")
    if kept:
        store = world.store()
        store.keep("session-a", [world.pair()[0].fileno()])
    with pytest.raises(NotRunningError, match="NSM_AUTOSTART=0") as raised:
        start.reconnect(path, patience_s=start.KEPT_S)
    assert "unset NSM_AUTOSTART" in (raised.value.hint or "")
    assert clock.now_s == pytest.approx(patience_s, abs=1)


def test_clients_see_a_holder_that_was_moved_aside(world: World) -> None:
    path = os.path.join(os.path.dirname(world.path), "control.sock")
    assert not start.sessions_are_kept(path)
    store = world.store()
    store.keep("session-a", [world.pair()[0].fileno()])
    os.rename(world.path, f"{world.path}.1")
    assert start.sessions_are_kept(path)
