"""Records of sessions: kept at each moment, and sorted by the next supervisor."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import trio

from fake_fdstore import Held
from nsmd.fdstore import records
from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.records import KeptEntries, SessionRecord, SpecRecord, boot_id
from nsmd.fdstore.store import Kept, NoStore, copies_of
from nsmd.host.processes import pid_of
from nsmd.model.policy import policy_of
from nsmd.model.values import Environment, JailSizes, JailSpec, NetworkRule, SessionLimits, Tenancy
from nsmd.restart.kept_sessions import LoadedSession, SessionStore, load_sessions, session_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from nsmd.fdstore.store import DescriptorStore
    from nsmd.sessions.session import Session

SPEC = JailSpec(
    environment=Environment(name="python", interpreter="python"), project=None, sizes=JailSizes()
)
OTHER = Environment(name="bash", interpreter="bash")
SPEC_DATA = records.encode(SpecRecord(spec=SPEC))
SPEC_NAME = records.spec_name(SPEC_DATA)
TENANCY = Tenancy(name="a", scope="s", client="c", idle_timeout_s=10, max_lifetime_s=100)


class Left:
    """Remains of one session of a supervisor that is gone: a process in place of its jail."""

    def __init__(self, owned: ExitStack) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        owned.callback(self.end)
        self.agent_end, self.channel = socket.socketpair()
        owned.enter_context(self.agent_end)
        self.listener = socket.socket()
        self.record = SessionRecord(
            id="00000001",
            revision=1,
            spec=SPEC_NAME,
            tenancy=TENANCY,
            token="ab" * 16,
            capabilities=("sequence",),
            pid=self.process.pid,
            channel=records.identity(self.channel.fileno()),
            listener=records.identity(self.listener.fileno()),
            network=NetworkRule(mode="allow", allow=("example.org",)),
            created_s=time.monotonic() - 50,
            boot=boot_id(),
            executions=7,
            taken_up=2,
        )

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()

    def give(
        self, *more: bytes, record: SessionRecord | None = None, data: bytes | None = None
    ) -> list[int]:
        """The descriptors, which are another's then."""
        data = data or records.encode(record or self.record)
        given = [
            os.pidfd_open(self.process.pid),
            self.channel.detach(),
            self.listener.detach(),
            *(memory_file(each) for each in (data, *more)),
        ]
        random.Random(1).shuffle(given)
        return given


@pytest.fixture
def left() -> Iterator[Left]:
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as owned:
        it = Left(owned)
        yield it
        it.channel.close()
        it.listener.close()
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"


def spec_files() -> dict[str, list[int]]:
    return {SPEC_NAME: [memory_file(SPEC_DATA)]}


class Store(NoStore):
    """A store that notes what is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[str] = []

    def drop(self, name: str) -> None:
        self.dropped.append(name)


class Loaded:
    """Sessions that the next supervisor has taken over, left alone and dropped."""

    def __init__(self, kept: Kept) -> None:
        store = Store()
        self.entries = KeptEntries(store, kept)
        state = load_sessions(self.entries)
        self.found, self.gone, self.specs = state.found, state.gone, state.specs
        self.unread, self.dropped = state.unread, store.dropped


def release(found: LoadedSession) -> None:
    found.earlier.jail.release()
    if found.earlier.listener is not None:
        os.close(found.earlier.listener)


async def test_a_session_that_lives_is_found(left: Left) -> None:
    older = records.encode(replace(left.record, executions=1, revision=0))
    kept = {"session-00000001": left.give(older, older), **spec_files()}
    result = Loaded(kept)
    (found,) = result.found
    assert (result.gone, result.dropped, len(result.unread)) == ([], [], 0)
    assert result.specs == [SPEC_NAME]
    assert (found.record, found.spec) == (left.record, SPEC)
    earlier = found.earlier
    assert earlier.jail.pid == left.process.pid
    assert (earlier.executions, earlier.taken_up, earlier.token) == (7, 3, b"\xab" * 16)
    assert 49 < trio.current_time() - earlier.created_s < 80
    earlier.jail.socket.send(b"hello")
    assert left.agent_end.recv(9) == b"hello"
    earlier.jail.kill()
    await earlier.jail.wait()
    assert left.process.returncode is None, "it was reaped in passing: it is our child here"
    release(found)


async def test_a_session_whose_jail_has_ended_is_gone(left: Left) -> None:
    given = left.give()
    left.process.send_signal(signal.SIGKILL)
    left.process.wait()
    result = Loaded({"session-00000001": given, **spec_files()})
    assert (result.found, result.gone) == ([], [left.record])
    assert result.dropped == ["session-00000001", SPEC_NAME]


@pytest.mark.parametrize("lacking", ["channel", "pidfd", "record"])
async def test_a_session_without_all_its_parts_is_ended(left: Left, lacking: str) -> None:
    given = left.give()
    kinds: dict[str, Callable[[int], bool]] = {
        "pidfd": lambda fd: pid_of(fd) is not None,
        "record": lambda fd: records.read_file(fd) is not None,
        "channel": lambda fd: records.identity(fd) == left.record.channel,
    }
    for descriptor in [each for each in given if kinds[lacking](each)]:
        os.close(descriptor)
        given.remove(descriptor)
    result = Loaded({"session-00000001": given, **spec_files()})
    assert (result.found, result.dropped) == ([], ["session-00000001", SPEC_NAME])
    assert result.gone == ([] if lacking == "record" else [left.record])
    if lacking != "pidfd":
        with trio.fail_after(120):
            await trio.to_thread.run_sync(left.process.wait)
        assert left.process.returncode == -signal.SIGKILL
    else:
        assert left.agent_end.recv(1) == b"", "its agent sees the end of its channel"


def newer(record: SessionRecord) -> bytes:
    head, _, body = records.encode(record).partition(b"\n")
    return head.replace(b"record 1", b"record 2") + b"\n" + body


def without(data: bytes, *path: str) -> bytes:
    """The same record without the field at that path."""
    plain = json.loads(data.partition(b"\n")[2])
    inner = plain
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    body = json.dumps(plain).encode()
    return b"nsm-record 1 %s\n%s" % (hashlib.sha256(body).hexdigest().encode(), body)


@pytest.mark.parametrize("what", ["newer", "record", "spec"])
async def test_an_unreadable_session_is_left_alone(left: Left, what: str) -> None:
    spec, more = SPEC_DATA, (b"nsm-record 1 0\n{}",)
    record: bytes | None = None
    match what:
        case "newer":
            more = (newer(left.record),)
        case "record":
            record = without(records.encode(left.record), "network")
        case _:
            spec = without(SPEC_DATA, "spec", "sizes")
    given = left.give(*more, data=record)
    kept = {"session-00000001.3": given, SPEC_NAME: [memory_file(spec)]}
    result = Loaded(kept)
    assert (result.found, result.dropped, result.gone, result.specs) == ([], [], [], [SPEC_NAME])
    (session,) = result.unread.live()
    assert (session.id, session.name, session.scope, session.client) == ("00000001", "a", "s", "c")
    assert (session.env, session.pid) == ("python", left.process.pid)
    assert left.process.poll() is None
    # A later supervisor gets all of it again.
    again = {name: list(fds) for name, fds in result.entries.everything_kept()}
    assert again == kept
    assert "1 x session" in result.entries.problem
    other = Loaded({name: [os.dup(fd) for fd in fds] for name, fds in again.items()})
    assert [each.id for each in other.unread.live()] == ["00000001"]
    result.unread.end(session)
    with trio.fail_after(120):
        await trio.to_thread.run_sync(left.process.wait)
    assert left.process.returncode == -signal.SIGKILL
    assert (result.unread.live(), other.unread.live()) == ([], [])
    for each in (result.entries, other.entries):
        ((name, descriptors),) = each.everything_kept()
        assert name == SPEC_NAME
        records.close_all(descriptors)


async def test_a_session_of_an_unknown_specification_is_left_alone(left: Left) -> None:
    result = Loaded({"session-00000001": left.give()})
    assert (result.found, result.dropped, result.gone) == ([], [], [])
    (session,) = result.unread.live()
    assert (session.name, session.why) == ("a", f"what it runs in ({SPEC_NAME}) is not known")
    assert left.process.poll() is None
    result.unread.end(session)
    assert list(result.entries.everything_kept()) == []


async def test_an_unreadable_session_that_has_ended_is_over(left: Left) -> None:
    given = left.give(newer(left.record))
    left.end()
    result = Loaded({"session-00000001": given, **spec_files()})
    assert (result.dropped, len(result.unread)) == (["session-00000001", SPEC_NAME], 0)
    assert list(result.entries.everything_kept()) == []


async def test_a_session_without_a_readable_policy_is_taken_over(left: Left) -> None:
    policy = policy_of(SPEC, SessionLimits(), "forked")
    data = without(records.encode(SpecRecord(spec=SPEC, policy=policy)), "policy", "mounts")
    result = Loaded({"session-00000001": left.give(), SPEC_NAME: [memory_file(data)]})
    (found,) = result.found
    assert found.earlier.jail.policy is None
    release(found)


async def test_a_damaged_record_beside_a_good_one_does_no_harm(left: Left) -> None:
    damaged = records.encode(replace(left.record, revision=9))[:-5]
    result = Loaded({"session-00000001": left.give(damaged), **spec_files()})
    (found,) = result.found
    assert found.record.revision == 1
    release(found)


async def test_descriptors_of_no_session_are_dropped(left: Left) -> None:
    read_end, write_end = os.pipe()
    kept = {"session-x": [read_end, write_end], "session-y": [], "spec-z": [os.dup(0)]}
    result = Loaded(kept)
    assert sorted(result.dropped) == ["session-x", "session-y", "spec-z"]
    assert (result.found, result.gone) == ([], [])


async def test_an_unused_specification_is_dropped(left: Left) -> None:
    """Each supervisor keeps some for the next one-shot; nobody else would ever drop them."""
    other = records.encode(SpecRecord(spec=replace(SPEC, environment=OTHER)))
    unused = {records.spec_name(other): [memory_file(other)]}
    result = Loaded({"session-00000001": left.give(), **spec_files(), **unused})
    assert (result.specs, result.dropped) == ([SPEC_NAME], list(unused))
    release(result.found[0])


async def test_ages_of_another_boot_say_nothing(left: Left) -> None:
    record = replace(left.record, boot="another")
    result = Loaded({"session-00000001": left.give(record=record), **spec_files()})
    (found,) = result.found
    assert trio.current_time() - found.earlier.created_s < 10
    release(found)


# What a supervisor keeps: all of each session once, and no earlier version.


@contextmanager
def session() -> Generator[Session]:
    """The parts of one that are kept; this process in place of its jail."""
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as owned:
        ours, theirs = socket.socketpair()
        owned.enter_context(ours)
        owned.enter_context(theirs)
        pidfd = os.pidfd_open(os.getpid())
        owned.callback(os.close, pidfd)
        link = SimpleNamespace(token=b"\1" * 16, capabilities=frozenset({"sequence"}))
        it = SimpleNamespace(
            id="0badcafe",
            spec=SPEC,
            policy=None,
            tenancy=TENANCY,
            jail=SimpleNamespace(
                template_pid=0,
                outdated=False,
                socket=ours,
                pidfd=pidfd,
                pid=os.getpid(),
                starter_pid=0,
                project_copy=None,
            ),
            link=link,
            network=SimpleNamespace(listener_descriptor=None, rule=NetworkRule()),
            confinement=None,
            created_s=trio.current_time(),
            runs=SimpleNamespace(count=3),
            taken_up=0,
        )
        it.jail.policy = None
        yield cast("Session", it)
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor was left open"


def session_store_in(store: Held) -> SessionStore:
    return SessionStore(cast("DescriptorStore", store))


def taken_up(store: Held) -> LoadedSession:
    """Read the store as the next supervisor does, and own its contents."""
    kept = {name: [os.dup(fd) for fd in fds] for name, fds in store.held.items()}
    (found,) = load_sessions(KeptEntries(NoStore(), kept)).found
    return found


async def test_a_session_that_changes_is_kept_once() -> None:
    with session() as it:
        store = Held()
        session_store, name = session_store_in(store), ""
        for executions in range(50):
            it.runs.count = executions
            session_store.keep(it)
            (name,) = store.sessions
            assert session_id_of(name) == it.id
            assert len(store.sessions[name]) == 3  # record, channel, jail
        found = taken_up(store)
        assert (found.record.executions, found.names) == (49, (name,))
        found.earlier.jail.release()
        session_store.drop(it)
        assert store.sessions == {}
        store.close()


async def test_the_next_supervisor_knows_whether_one_shots_were_not_kept() -> None:
    store = Held()
    session_store = session_store_in(store)

    def told() -> bool:
        entries = KeptEntries(
            NoStore(), {name: [os.dup(fd) for fd in fds] for name, fds in store.held.items()}
        )
        return load_sessions(entries).lost_one_shots

    assert not told()
    assert session_store.note_one_shots()
    assert told()
    assert [name for name, _ in session_store.everything([])] == list(store.held)
    session_store.forget_one_shots()
    assert not told()


async def test_the_newer_of_two_records_holds_and_both_go() -> None:
    """The supervisor was killed between keeping one and dropping the other."""
    with session() as it:
        store = Held()
        session_store = session_store_in(store)
        session_store.keep(it)
        (first,) = store.sessions
        kept = [os.dup(each) for each in store.held[first]]
        it.runs.count = 9
        session_store.keep(it)
        store.held[first] = kept
        found = taken_up(store)
        assert found.record.executions == 9
        assert set(found.names) == set(store.sessions)
        assert len(found.names) == 2
        next_store = session_store_in(store)
        next_store.begin_after(it, found.names, found.record, found.earlier)
        next_store.keep(it)
        assert len(store.sessions) == 1
        next_store.drop(it)
        assert store.sessions == {}
        found.earlier.jail.release()
        store.close()


async def test_a_session_that_has_not_answered_is_kept_as_it_was_left() -> None:
    """By a store that has lost everything, and for the program that this one becomes."""
    with session() as it:
        store = Held()
        session_store = session_store_in(store)
        session_store.keep(it)
        found = taken_up(store)
        store.close()
        cast("SimpleNamespace", it).link = None  # its agent is stopped
        cast("SimpleNamespace", it).jail = None  # its task has not begun
        next_store = session_store_in(store)
        next_store.begin_after(it, found.names, found.record, found.earlier)
        handed_over = copies_of(lambda: next_store.everything([it]))
        assert handed_over.keys() == {found.record.spec, *found.names}
        for name, descriptors in handed_over.items():
            store.keep(name, descriptors)
        for file, *_ in handed_over.values():
            os.close(file)
        assert set(store.sessions) == set(found.names)
        again = taken_up(store)
        assert again.record == found.record
        again.earlier.jail.release()
        found.earlier.jail.release()
        assert list(next_store.everything([it]))[1:] == []  # its jail is gone
        store.close()


async def test_without_descriptors_the_names_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store asks again for what cannot be had at the moment; it is not to fail, nor to forget."""
    with session() as it:
        store = Held()
        session_store = session_store_in(store)
        session_store.keep(it)
        names = [name for name, _ in session_store.everything([it])]

        def exhausted(data: bytes) -> int:
            del data
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patch:
            patch.setattr("nsmd.fdstore.records.memory_file", exhausted)
            assert list(session_store.everything([it])) == [(name, ()) for name in names]
            assert copies_of(lambda: session_store.everything([it])) == {}
        assert len(names) == 2
        store.close()
