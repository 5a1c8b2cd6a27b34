"""Records kept of sessions at each moment: all of each once, and no earlier version."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import trio

from fake_fdstore import Held
from nsmd.fdstore.records import KeptEntries
from nsmd.fdstore.store import NoStore, copies_of
from nsmd.model.values import Environment, JailSizes, JailSpec, NetworkRule, Tenancy
from nsmd.restart.kept_sessions import SessionStore, load_sessions, session_id_of

if TYPE_CHECKING:
    from collections.abc import Generator

    import pytest

    from nsmd.fdstore.store import DescriptorStore
    from nsmd.restart.kept_sessions import LoadedSession
    from nsmd.sessions.session import Session

SPEC = JailSpec(
    environment=Environment(name="python", interpreter="python"), project=None, sizes=JailSizes()
)
TENANCY = Tenancy(name="a", scope="s", client="c", idle_timeout_s=10, max_lifetime_s=100)


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
