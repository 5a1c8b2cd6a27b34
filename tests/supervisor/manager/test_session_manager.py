"""Sessions start, wait for room, and fail to, over fake jails. Time is virtual."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from fakes import BASH, CAPABILITIES, FakeAgent, FakeJail, echo, spec
from nsm.wire.errors import (
    FateUnknownError,
    SessionHiddenError,
    SessionLimitError,
    StartFailedError,
)
from nsmd.fdstore.records import SessionRecord
from nsmd.fdstore.running_holders import SilentHolder, SilentHolders
from nsmd.manager.session_manager import CONCURRENT_STARTS, HIDDEN_S, KEPT_AFTER_S
from nsmd.manager.session_slots import MAX_WAITING, WAIT_S
from nsmd.model.settings import PoolSettings, SessionSettings, Settings
from nsmd.model.values import NetworkRule, ProjectMount, RunRequest, Tenancy
from nsmd.restart.ended_sessions import EndedSessionFiles, SessionEnd
from nsmd.restart.kept_sessions import LoadedSession, LoadedState
from nsmd.restart.reattach import SETTLE_S
from nsmd.sessions.agent_session import Earlier
from run_service_bench import ALICE, BOB, bench
from sandbox.framing import encode_frame, resume_marker
from virtual_time import virtual_time

if TYPE_CHECKING:
    from pathlib import Path

    from fakes import FakeLauncher
    from nsmd.model.values import JailSpec

pytestmark = virtual_time


async def test_a_start_that_waits_for_a_template_does_not_delay_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(spec: JailSpec) -> None:
        if spec.environment is BASH:
            await trio.sleep(20)

    async with bench(Settings(pool=PoolSettings(min_spares=0))) as it:
        monkeypatch.setattr(it.launcher, "prepare", hang)
        start_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(2 * CONCURRENT_STARTS):
                nursery.start_soon(partial(it.run, env="bash", session=f"s{number}"))
            await trio.testing.wait_all_tasks_blocked()
            await it.run()
            assert trio.current_time() - start_s < 1


async def test_sessions_that_end_with_the_supervisor_are_not_replaced() -> None:
    async with bench(Settings(pool=PoolSettings(min_spares=0))) as it:
        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(partial(it.run, session=f"s{number}"))
        jails = len(it.launcher.jails)
    assert len(it.launcher.jails) == jails


async def test_the_session_limit_names_what_could_be_ended() -> None:
    settings = Settings(session=SessionSettings(max_sessions=3), pool=PoolSettings(max_spares=0))
    async with bench(settings) as it:
        for name in ("one", "two"):
            await it.run(session=name)
            await trio.sleep(60)
        await it.run(session="secret", client=BOB)
        with pytest.raises(SessionLimitError) as error:
            await it.run(session="four")
        assert "one (idle 2 min), two (idle 60 s)" in error.value.message
        assert "secret" not in str(error.value)
        assert "nsm kill" in error.value.hint
        it.run_service.find("one").end("killed by nsm")
        await it.run(session="four")


async def test_one_shots_beyond_the_limit_have_their_turn() -> None:
    """Fifty at once where ten may be: all are served, and never more than ten have jails."""
    settings = Settings(session=SessionSettings(max_sessions=10), pool=PoolSettings(max_spares=0))
    most = 0

    async def busy(agent: FakeAgent, jail: FakeJail) -> None:
        nonlocal most
        alive = [jail for jail in it.launcher.jails if not jail.killed]
        most = max(most, len(alive))
        await trio.sleep(0.1)
        await echo(agent, jail)

    async with bench(settings, busy) as it:
        answers: list[str] = []

        async def one(number: int) -> None:
            result = await it.run(str(number), session=None, execution_id=f"e{number}")
            answers.append(result.outcome.stdout)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(one, number)
        assert {int(answer) for answer in answers} == set(range(50))
        assert most == 10


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "not-noted"])
async def test_a_one_shot_is_kept_once_it_lasts_or_nobody_else_would_know_of_it(
    monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    kept: list[str] = []
    async with bench() as it:
        manager, store = it.session_manager, it.session_manager._session_store
        monkeypatch.setattr(store, "keep", lambda session: kept.append(session.id))
        monkeypatch.setattr(store, "note_one_shots", lambda: noted)

        def begin() -> str:
            request = RunRequest(client=ALICE, env="python", code="wait", session=None)
            return it.run_service.submit(request).session.id

        await it.run(session=None)
        assert bool(kept) is not noted
        kept.clear()
        lasting = begin()
        await trio.sleep(KEPT_AFTER_S / 2)
        later = begin()
        await it.run(session=None)
        await trio.sleep(KEPT_AFTER_S * 0.6)
        if noted:
            assert kept == [lasting]
            await trio.sleep(KEPT_AFTER_S / 2)
            assert kept == [lasting, later]
        leaving = begin()
        await trio.sleep(KEPT_AFTER_S / 2)
        manager.leave()
        assert kept[-1] == leaving


@pytest.mark.parametrize("lost", [True, False], ids=["killed", "left"])
async def test_a_one_shot_runs_again_only_if_none_was_lost_with_its_supervisor(lost: bool) -> None:
    async with bench() as it:
        it.session_manager.take_up(LoadedState(lost_one_shots=lost))
        await trio.sleep(SETTLE_S)
        again = partial(it.run, session=None, execution_id="e", again=True)
        if lost:
            with pytest.raises(FateUnknownError):
                await again()
        else:
            assert (await again()).outcome.stdout == "x"


async def test_a_client_that_waits_for_a_place_can_go() -> None:
    settings = Settings(session=SessionSettings(max_sessions=1), pool=PoolSettings(max_spares=0))
    async with bench(settings) as it:
        request = RunRequest(client=ALICE, env="python", code="wait")
        running = it.run_service.submit(request)
        await trio.testing.wait_all_tasks_blocked()
        gone, interrupted, last = (it.run_service.submit(request) for _ in range(3))
        await trio.testing.wait_all_tasks_blocked()
        assert len(it.launcher.jails) == 1
        gone.abandon()
        interrupted.interrupt()
        assert (await interrupted.wait()).outcome.interrupted
        running.interrupt()
        await running.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert len(it.launcher.jails) == 2
        last.interrupt()
        assert (await last.wait()).outcome.interrupted


async def test_a_place_that_does_not_become_free_is_not_waited_for_long() -> None:
    settings = Settings(session=SessionSettings(max_sessions=1), pool=PoolSettings(max_spares=0))
    async with bench(settings) as it:
        it.run_service.submit(RunRequest(client=ALICE, env="python", code="wait", timeout_s=30))
        began = trio.current_time()
        with pytest.raises(SessionLimitError, match="waited 30 s for a place"):
            await it.run(session="named")
        assert trio.current_time() - began == pytest.approx(WAIT_S)


async def test_calls_beyond_those_that_may_wait_are_refused_with_what_to_do() -> None:
    settings = Settings(session=SessionSettings(max_sessions=1), pool=PoolSettings(max_spares=0))
    async with bench(settings) as it:
        request = RunRequest(client=ALICE, env="python", code="wait")
        it.run_service.submit(request)
        for _ in range(MAX_WAITING):
            it.run_service.submit(request)
        for _ in range(3):
            with pytest.raises(SessionLimitError, match="256 calls wait") as error:
                it.run_service.submit(request)
            assert "max_sessions" in error.value.hint


async def test_a_failed_start_is_told_and_leaves_nothing() -> None:
    async with bench() as it:
        it.launcher.fail = StartFailedError("bwrap: no", hint="`nsm doctor`")
        with pytest.raises(StartFailedError, match="bwrap: no"):
            await it.run()
        it.launcher.fail = None
        assert (await it.run()).created


async def test_sessions_that_fail_to_start_are_not_tried_for_ever() -> None:
    async def dying(agent: FakeAgent, jail: FakeJail) -> None:
        jail.words = "boom"

    async with bench(behave=dying) as it:
        with pytest.raises(StartFailedError, match="boom"):
            await it.run()
        await trio.sleep(1000)
        tried = len(it.launcher.jails)
        assert tried <= 12  # less and less often, while the kind is thought to be in use
        await trio.sleep(3600)
        assert len(it.launcher.jails) == tried


async def test_a_session_of_the_command_line_of_an_older_supervisor_gets_its_projects_scope() -> (
    None
):
    """nsm 0.1 had one scope, `cli`, for all that the command line named."""
    token = "ab" * 16

    async def resume(agent: FakeAgent, jail: FakeJail) -> None:
        agent.hello = {}  # it was said long ago
        await agent.take_marker(resume_marker(token))
        question = await agent.receive()
        resumed = encode_frame({"type": "resumed", "executions": {}, "files": []})
        await agent.send_raw(resume_marker(token) + resumed)
        await agent.send({"type": "idle", "id": question["id"]})
        await trio.sleep_forever()

    async with bench(Settings(pool=PoolSettings(min_spares=0, max_spares=0)), resume) as it:
        shop = ProjectMount(path="/home/user/shop", mount_point="/project", device=1, inode=1)
        found = [
            await _kept(it.launcher, number, scope, project, token)
            for number, (scope, project) in enumerate(
                [("cli", shop), ("cli", None), ("editor", shop)]
            )
        ]
        it.session_manager.take_up(LoadedState(found=found))
        await it.session_manager.wait_reattached()
        sessions = [it.run_service.find(each.record.id) for each in found]
        scopes = [session.tenancy.scope for session in sessions if session.tenancy is not None]
        assert scopes == ["cli:/home/user/shop", "cli:-", "editor"]
        for scope, session in zip(scopes, sessions, strict=True):
            assert it.run_service.named(scope, "work") is session
        assert it.run_service.named("cli", "work") is None


async def test_a_reattached_session_waits_for_no_other() -> None:
    token = "ab" * 16

    async def resume(agent: FakeAgent, jail: FakeJail) -> None:
        agent.hello = {}
        if jail is it.launcher.jails[0]:  # it is stopped
            await trio.sleep_forever()
        await agent.take_marker(resume_marker(token))
        question = await agent.receive()
        resumed = encode_frame({"type": "resumed", "executions": {}, "files": [], "count": 3})
        await agent.send_raw(resume_marker(token) + resumed)
        await agent.send({"type": "idle", "id": question["id"]})
        await agent.take_marker(resume_marker(token))
        await agent.send_raw(resume_marker(token) + resumed)
        await trio.sleep_forever()

    async with bench(Settings(pool=PoolSettings(min_spares=0, max_spares=0)), resume) as it:
        found = [
            await _kept(it.launcher, number, scope, None, token)
            for number, scope in enumerate(["silent", "quick"])
        ]
        manager = it.session_manager
        manager.take_up(LoadedState(found=found))
        began_s = trio.current_time()
        await manager.wait_reattached("quick/work")
        quick = it.run_service.named("quick", "work")
        assert quick is not None
        assert (quick.state.value, quick.runs.count) == ("idle", 3)
        assert manager.earlier_executions.state_of("x", "quick", "work") == "never"
        assert manager.earlier_executions.state_of("x", "silent", "work") == "unknown"
        assert not manager.all_found
        assert trio.current_time() == began_s
        await manager.wait_reattached("00000000")
        assert trio.current_time() == began_s + SETTLE_S
        await manager.wait_reattached()
        assert manager.all_found
        assert trio.current_time() == began_s + SETTLE_S
        await manager.wait_reattached("silent/work")


async def test_sessions_of_a_silent_holder_are_waited_for_and_then_refused(tmp_path: Path) -> None:
    """Their names are known from their files. Nobody gets another session under one of them."""
    earlier = EndedSessionFiles(str(tmp_path))
    earlier.began("alice", "held")
    earlier.began("alice", "ended")
    earlier.keep("alice", "ended", SessionEnd(reason="idle timeout", at_s=trio.current_time()))
    settings = Settings(pool=PoolSettings(min_spares=0, max_spares=0))
    async with bench(settings, ended_files=EndedSessionFiles(str(tmp_path))) as it:
        manager = it.session_manager
        silent = SilentHolders([SilentHolder("/nowhere", None)])
        manager.take_up(LoadedState(), silent)
        began_s = trio.current_time()
        for target in ("alice/held", "held", "0badcafe", None):
            assert not manager.all_found
            with trio.move_on_after(0.1) as waiting:
                await manager.wait_found(target)
            assert waiting.cancelled_caught
        await manager.wait_found("ended")
        assert trio.current_time() < began_s + 1
        await manager.wait_found("held")
        assert trio.current_time() == began_s + HIDDEN_S
        assert manager.all_found
        for refused in (
            partial(it.run, session="held"),
            partial(it.run, session="held", again=True, execution_id="e"),
        ):
            with pytest.raises(SessionHiddenError, match="does not answer"):
                await refused()
        with pytest.raises(SessionHiddenError):
            it.run_service.find("alice/held")
        with pytest.raises(FateUnknownError):  # it may run in the holder's session
            await it.run(again=True, execution_id="one-shot")
        assert (await it.run(session="fresh")).created
        assert "idle timeout" in str((await it.run(session="ended")).replaced)
        assert (await it.run(client=BOB, session="held")).created


async def test_the_earlier_of_two_sessions_of_one_name_is_renamed() -> None:
    async def hang(agent: FakeAgent, jail: FakeJail) -> None:
        await trio.sleep_forever()

    async with bench(Settings(pool=PoolSettings(min_spares=0, max_spares=0)), hang) as it:
        found = [await _kept(it.launcher, n, "s", None, "ab" * 16) for n in range(2)]
        early = replace(found[1], earlier=replace(found[1].earlier, created_s=-10.0))
        it.session_manager.take_up(LoadedState(found=[found[0], early]))
        assert it.run_service.find("s/work").id == found[0].record.id
        other = it.run_service.find(early.record.id)
        assert other.name is not None
        assert other.name.startswith("work-")
        assert it.run_service.named("s", other.name) is other


async def _kept(
    launcher: FakeLauncher, number: int, scope: str, project: ProjectMount | None, token: str
) -> LoadedSession:
    """A session named work that an earlier supervisor has left."""
    its_spec = replace(spec(), project=project)
    jail = await launcher.launch(its_spec)
    record = SessionRecord(
        id=f"0000000{number}",
        revision=1,
        spec="spec-1",
        tenancy=Tenancy(
            name="work", scope=scope, client="nsm", idle_timeout_s=100, max_lifetime_s=1000
        ),
        token=token,
        capabilities=tuple(CAPABILITIES),
        pid=jail.pid,
        channel="",
        network=NetworkRule(),
        created_s=0,
    )
    earlier = Earlier(
        jail=jail,
        token=bytes.fromhex(token),
        capabilities=frozenset({*CAPABILITIES, "notes"}),
        group=None,
        listener=None,
        network=NetworkRule(),
        created_s=trio.current_time(),
        executions=3,
        taken_up=1,
    )
    return LoadedSession((f"session-{record.id}",), record, its_spec, earlier)
