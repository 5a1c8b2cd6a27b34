"""Templates go on under the next supervisor, if it would make them of the same programs."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from nsmd.fdstore import records
from nsmd.fdstore.records import KeptEntries
from nsmd.fdstore.store import NoStore
from nsmd.host.source_watcher import open_source_watcher
from nsmd.jail.templates import TemplateLauncher
from nsmd.jail.templates.template import PREFIX, kept_template
from nsmd.model.values import Environment
from processes import ended
from realjail import ANSWER_TIMEOUT_S, environments, jail_spec, needs_bwrap, new_launcher

pytestmark = [pytest.mark.jail, needs_bwrap]


class Store(NoStore):
    """Keeps copies, as others do."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, list[int]] = {}

    def keep(self, name: str, descriptors: Sequence[int]) -> None:
        self.drop(name)
        self.kept[name] = [os.dup(fd) for fd in descriptors]

    def drop(self, name: str) -> None:
        for fd in self.kept.pop(name, []):
            os.close(fd)

    def given(self) -> dict[str, list[int]]:
        """Return the descriptors that the next supervisor receives."""
        return {name: [os.dup(fd) for fd in fds] for name, fds in self.kept.items()}


@pytest.fixture(scope="module")
def python() -> Environment:
    return environments()["python"]


@asynccontextmanager
async def launching(store: Store, made: str = "these") -> AsyncGenerator[TemplateLauncher]:
    """A supervisor's launcher, which goes on with what is kept, and ends what it has."""
    cold = new_launcher()
    assert cold.system_calls is not None
    async with open_source_watcher() as watcher, trio.open_nursery() as nursery:
        launcher = TemplateLauncher(cold, cold.system_calls, nursery, watcher, store, lambda: made)
        launcher.take_up(KeptEntries(store, store.given()))
        yield launcher
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def left_behind(python: Environment, store: Store) -> AsyncGenerator[int]:
    """A template that is kept, and whose supervisor does not look after it any more; its pid."""
    async with launching(Store()) as first:
        await first.prepare(jail_spec(python))
        (template,) = first.templates
        records.keep(store, kept_template(template, "these"))
        yield template.pid


async def forked(launcher: TemplateLauncher, python: Environment) -> None:
    """A session is a fork."""
    with trio.fail_after(ANSWER_TIMEOUT_S):
        jail = await launcher.launch(jail_spec(python))
    jail.kill()
    await jail.wait()
    jail.release()
    assert not launcher.reasons


async def test_it_is_forked_from_by_the_next_supervisor(python: Environment) -> None:
    store = Store()
    async with left_behind(python, store) as pid:
        assert list(store.kept) == [f"{PREFIX}{pid}"]
        async with launching(store) as again:
            (template,) = again.templates
            assert template.pid == pid
            await forked(again, python)
            assert [name for name, _ in again.everything_kept()] == [f"{PREFIX}{pid}"]
        assert store.kept == {}  # an ordered end ends it


async def test_one_of_other_programs_is_closed(python: Environment) -> None:
    store = Store()
    async with left_behind(python, store) as pid, launching(store, made="others") as again:
        assert again.templates == []
        await forked(again, python)
        (template,) = again.templates
        assert template.pid != pid
        assert f"{PREFIX}{pid}" not in store.kept
        assert f"{PREFIX}{template.pid}" in store.kept


async def test_one_that_has_ended_meanwhile_is_forgotten(python: Environment) -> None:
    store = Store()
    async with left_behind(python, store) as pid:
        pidfd = os.pidfd_open(pid)
    await ended(pidfd)
    os.close(pidfd)
    async with launching(store) as again:
        assert again.templates == []
        assert store.kept == {}
