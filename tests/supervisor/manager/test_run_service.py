"""Names, scopes, limits and reasons, over fake jails. Time is virtual."""

from __future__ import annotations

import dataclasses
import gc
import sys
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from fakes import PYTHON, FakeAgent, FakeJail
from nsm.wire.errors import (
    AmbiguousSessionError,
    BadProjectError,
    BadRequestError,
    CodeTooLargeError,
    EnvironmentUnavailableError,
    NsmError,
    SessionEndedError,
    ShuttingDownError,
    UnknownEnvironmentError,
    UnknownExecutionError,
    UnknownSessionError,
    WrongEnvironmentError,
)
from nsmd.environments.catalog import EnvironmentSource, Rank
from nsmd.jail.project import NoCopyError
from nsmd.manager.projects import check_project
from nsmd.model.settings import PoolSettings, SessionSettings, Settings
from nsmd.model.values import (
    MAX_CODE_BYTES,
    Artifact,
    Environment,
    NetworkRule,
    RunRequest,
    Sources,
)
from run_service_bench import ALICE, BOB, bench
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

pytestmark = virtual_time


async def test_a_remembered_result_keeps_no_code() -> None:
    async def brief(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await agent.answer(await agent.receive(), stdout="done")

    async with bench(behave=brief) as it:
        await it.run("x" * 1_000_000, execution_id="k")
        kept = it.run_service.execution("k")
        assert (await kept.wait()).outcome.stdout == "done"
        assert len(kept.request.code) <= kept.answer_bytes < 10_000


async def test_scopes_keep_names_apart() -> None:
    async with bench() as it:
        alice, bob = await it.run(client=ALICE), await it.run(client=BOB)
        assert alice.session_id != bob.session_id
        with pytest.raises(AmbiguousSessionError) as error:
            it.run_service.find("a")
        assert set(error.value.data["ids"]) == {alice.session_id, bob.session_id}
        assert it.run_service.find("bob/a").id == bob.session_id
        assert it.run_service.find(alice.session_id).id == alice.session_id
        with pytest.raises(UnknownSessionError, match="nsm ps"):
            it.run_service.find("b")
        await it.run(client=ALICE, session="analysis")
        with pytest.raises(UnknownSessionError) as unknown:
            it.run_service.find("anaylsis")
        assert unknown.value.hint.startswith("Did you mean 'analysis'? ")
        with pytest.raises(UnknownSessionError) as unread:
            it.run_service.transcript("anaylsis")
        assert unread.value.hint.startswith("Did you mean 'analysis'? ")
        with pytest.raises(UnknownSessionError) as foreign:
            it.run_service.session_manager.index.find("anaylsis", scope=BOB.scope)
        assert "analysis" not in foreign.value.hint


async def test_a_markdown_fence_is_taken_off() -> None:
    async with bench() as it:
        result = await it.run("```js\nx\n```", env="python")
        assert result.outcome.stdout == "x\n"
        assert result.notes == (
            "the Markdown fence around the code was removed; it says js, and python ran the code",
        )
        session = it.run_service.find(result.session_id)
        request = RunRequest(client=ALICE, env="", code="```\ny\n```")
        result = await it.run_service.submit(request, session=session).wait()
        assert (result.outcome.stdout, len(result.notes)) == ("y\n", 1)


async def test_a_lost_session_is_told_once() -> None:
    async with bench() as it:
        await it.run()
        it.run_service.find("a").end("killed by nsm")
        await trio.sleep(12 * 60)
        again = await it.run()
        assert again.created
        assert again.replaced == "ended 12 min ago (killed by nsm)"
        assert (await it.run()).replaced is None


async def test_a_name_taken_again_while_its_session_ends() -> None:
    async with bench() as it:
        await it.run()
        it.run_service.find("a").end("killed by nsm")
        again = await it.run()  # nothing awaited in between: the old jail is not gone yet
        assert again.replaced == "ended 0 s ago (killed by nsm)"
        it.run_service.find("a").end("second end")
        await trio.testing.wait_all_tasks_blocked()
        assert (await it.run()).replaced == "ended 0 s ago (second end)"


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"env": "pyhton"}, UnknownEnvironmentError, "Did you mean 'python'"),
        ({"env": ""}, BadRequestError, "Available: python, bash"),
        ({"env": "node"}, EnvironmentUnavailableError, "no `node` on PATH"),
        ({"session": "../x"}, BadRequestError, "'../x' is not allowed"),
        ({"session": ""}, BadRequestError, "1 to 64 characters"),
        ({"session": "x" * 65}, BadRequestError, "1 to 64 characters"),
        ({"session": "a\0b"}, BadRequestError, "is not allowed"),
        ({"session": "а"}, BadRequestError, "is not allowed"),  # noqa: RUF001 (Cyrillic)
        ({"session": "a\n"}, BadRequestError, "is not allowed"),
        ({"code": "x" * (MAX_CODE_BYTES + 1)}, CodeTooLargeError, str(MAX_CODE_BYTES)),
        ({"code": "\U0001f600" * (MAX_CODE_BYTES // 4 + 1)}, CodeTooLargeError, "limit"),
        ({"timeout_s": 0.0}, BadRequestError, "above 0"),
        ({"timeout_s": -1.0}, BadRequestError, "above 0"),
        ({"timeout_s": float("nan")}, BadRequestError, "above 0"),
        ({"execution_id": ""}, BadRequestError, "1 to 128"),
        ({"execution_id": "a\nb"}, BadRequestError, "printable"),
    ],
)
async def test_bad_requests_say_what_is_wrong(
    fields: dict[str, object], error: type[NsmError], says: str
) -> None:
    async with bench() as it:
        request = RunRequest(client=ALICE, env="python", code="x", session="a")
        with pytest.raises(error) as caught:
            it.run_service.submit(dataclasses.replace(request, **fields))  # type: ignore[arg-type]
        assert says in str(caught.value)
        assert it.launcher.jails == []


async def test_a_longer_limit_is_clamped_and_said() -> None:
    async with bench() as it:
        result = await it.run(timeout_s=float("inf"))
        assert result.timeout_s == PYTHON.timeout_s
        assert result.clamped_from_s == float("inf")
        assert (await it.run(timeout_s=5)).clamped_from_s is None


async def test_sessions_that_a_client_will_likely_use_are_ready(tmp_path: Path) -> None:
    mount = check_project(str(tmp_path), "/project", "/home/user")
    client = dataclasses.replace(ALICE, project=mount)
    async with bench(Settings()) as it:
        variables = {"PROJECT_DIR": str(tmp_path)}
        async with it.run_service.attached(variables=variables, cwd=None, sources=None):
            await trio.sleep(1)
        assert len(it.launcher.jails) == 2  # Python and Bash; there is no Node here
        await it.run(client=client)
        await it.run(client=client, env="bash", session="b")
        assert (it.session_manager.pool.hits, it.session_manager.pool.misses) == (2, 0)


async def test_a_client_whose_project_cannot_be_is_expected_to_do_nothing() -> None:
    async with bench(Settings()) as it:
        for variables, cwd in (({"PROJECT_DIR": "/nowhere"}, None), ({}, "/")):
            async with it.run_service.attached(variables=variables, cwd=cwd, sources=None):
                await trio.sleep(1)
        assert it.launcher.jails == []


async def test_an_execution_id_is_used_once_and_its_result_kept() -> None:
    async with bench() as it:
        await it.run("text", execution_id="mine")
        with pytest.raises(BadRequestError, match="not run again"):
            await it.run(execution_id="mine")
        assert (await it.run_service.execution("mine").wait()).outcome.stdout == "text"
        with pytest.raises(UnknownExecutionError):
            it.run_service.execution("other")


@pytest.mark.slow
async def test_kept_results_are_bounded() -> None:
    async with bench() as it:
        for n in range(10):
            await it.run("#" * MAX_CODE_BYTES, execution_id=f"e{n}")
        with pytest.raises(UnknownExecutionError):
            it.run_service.execution("e0")
        it.run_service.execution("e9")


async def calls_of(function: Callable[[], Awaitable[object]]) -> int:
    """How many functions are called meanwhile, those of the fake agents included."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    await trio.testing.wait_all_tasks_blocked()
    gc.disable()
    sys.setprofile(note)
    try:
        await function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.slow
@pytest.mark.parametrize("session", ["s1", "fresh", "new", None])
async def test_a_call_costs_the_same_beside_many_others(session: str | None) -> None:
    async def cost() -> int:
        name = f"fresh{len(it.run_service.live_sessions())}" if session == "fresh" else session
        return await calls_of(lambda: it.run(session=name))

    limits = SessionSettings(max_sessions=1000)
    async with bench(Settings(session=limits, pool=PoolSettings(max_spares=0))) as it:
        for number in range(5):
            await it.run(session=f"s{number}")
        few = [await cost() for _ in range(5)]
        for number in range(200):
            await it.run(session=f"t{number}")
        many = [await cost() for _ in range(5)]
        assert min(many) < 1.1 * min(few) + 20


@pytest.mark.parametrize("session", [None, "work"])
async def test_a_project_that_cannot_be_copied_is_refused_with_the_reason(
    session: str | None,
) -> None:
    async with bench() as it:
        it.launcher.fail = NoCopyError("/p", "the kernel is too old")
        with pytest.raises(BadProjectError, match="kernel is too old") as caught:
            await it.run(session=session)
        assert "readonly" in caught.value.hint


async def test_a_live_session_is_what_a_call_asks_for_or_runs_nothing() -> None:
    async with bench() as it:
        await it.run()
        plain = RunRequest(client=ALICE, env="python", code="x", session="a")
        listed = NetworkRule(mode="allow", allow=("x.org",))
        for request, why in (
            (dataclasses.replace(plain, project_mode="overlay"), "it sees no project"),
            (
                dataclasses.replace(plain, client=dataclasses.replace(ALICE, network=listed)),
                "its network is off, not limited to x.org",
            ),
            (
                dataclasses.replace(plain, client=dataclasses.replace(ALICE, secrets=("key",))),
                "its secrets are none, not key",
            ),
        ):
            with pytest.raises(BadRequestError, match=f"{why}; the code was not run"):
                it.run_service.submit(request)
        same = dataclasses.replace(ALICE, network=NetworkRule())
        await it.run_service.submit(dataclasses.replace(plain, client=same)).wait()


async def test_a_closed_registry_takes_nothing() -> None:
    async with bench() as it:
        execution = it.run_service.submit(
            RunRequest(client=ALICE, env="python", code="wait", session="a")
        )
        it.session_manager.close()
        with pytest.raises(SessionEndedError, match="shutting down"):
            await execution.wait()
        with pytest.raises(ShuttingDownError):
            await it.run()


async def test_idle_sessions_are_found_unless_a_fork_runs() -> None:
    async with bench() as it:
        await it.run(session="idle")
        it.run_service.submit(RunRequest(client=ALICE, env="python", code="wait", session="busy"))
        await trio.sleep(20)
        assert [s.name for s in it.run_service.idle_longer_than(10)] == ["idle"]
        assert it.run_service.idle_longer_than(30) == []
        idle, busy = (it.run_service.named(ALICE.scope, name) for name in ("idle", "busy"))
        assert idle is not None
        assert busy is not None
        idle.forks.add(busy)
        assert it.run_service.idle_longer_than(10) == [], "its fork would end, too"


async def test_a_replaced_project_directory_is_mounted_again(tmp_path: Path) -> None:
    directory = tmp_path / "project"
    directory.mkdir()
    mount = check_project(str(directory), "/project", "/home/user")
    client = dataclasses.replace(ALICE, project=mount)
    async with bench() as it:
        await it.run(session="before", client=client)
        directory.rename(tmp_path / "old")
        directory.mkdir()
        await it.run(session="after", client=client)
        before = it.run_service.find("before").spec.project
        after = it.run_service.find("after").spec.project
        assert before == mount
        assert after is not None
        assert after.inode != mount.inode
        directory.rmdir()
        with pytest.raises(BadProjectError):
            await it.run(session="none", client=client)


DIRECTORY = EnvironmentSource(rank=Rank.DIRECTORY)
SCIENCE = Environment(
    name="science",
    interpreter="python",
    source="/d/science",
    timeout_s=10.0,
    artifact=Artifact(run="/s/1/run", session_run="/s/1/session-run", stamp="1"),
)
NEWER = dataclasses.replace(
    SCIENCE, timeout_s=5.0, artifact=Artifact(run="/s/2/run", session_run="/s/2/session-run")
)


async def test_sessions_outlive_their_environment_and_new_ones_get_the_new_one() -> None:
    async with bench() as it:
        it.run_service.catalog.put(DIRECTORY, [SCIENCE])
        old = await it.run(env="science", session="old")
        it.run_service.catalog.put(DIRECTORY, [NEWER])
        again = await it.run(env="science", session="old", timeout_s=60)
        assert (again.session_id, again.timeout_s) == (old.session_id, 10.0)
        new = await it.run(env="science", session="new-one", timeout_s=60)
        assert new.timeout_s == 5.0
        sessions = {s.name: s.spec.environment for s in it.run_service.live_sessions()}
        assert sessions == {"old": SCIENCE, "new-one": NEWER}
        kinds = {kind.spec.environment for kind in it.session_manager.pool.kinds}
        assert SCIENCE not in kinds
        it.run_service.catalog.put(DIRECTORY, [])
        assert (await it.run(env="science", session="old")).session_id == old.session_id
        with pytest.raises(UnknownEnvironmentError, match="was removed"):
            await it.run(env="science", session="another")
        with pytest.raises(UnknownEnvironmentError, match="was removed"):
            await it.run(env="science", session=None)
        with pytest.raises(WrongEnvironmentError, match="runs science, not bash"):
            await it.run(env="bash", session="old")


async def test_a_session_is_found_by_an_older_name_that_something_else_bears_now() -> None:
    async with bench() as it:
        first = await it.run(env="shell")
        shell = dataclasses.replace(SCIENCE, name="shell", interpreter="bash")
        it.run_service.catalog.put(DIRECTORY, [shell])
        assert (await it.run(env="shell")).session_id == first.session_id
        await it.run(env="shell", session="another")
        assert it.run_service.find("another").spec.environment == shell


async def test_an_environment_without_state_has_no_sessions() -> None:
    once = dataclasses.replace(SCIENCE, name="once", artifact=Artifact(run="/s/run"))
    async with bench() as it:
        it.run_service.catalog.put(DIRECTORY, [once])
        for name in ("a", "new"):
            with pytest.raises(BadRequestError, match=r"keeps no state.*Name no session"):
                await it.run(env="once", session=name)
        assert (await it.run(env="once", session=None)).session_name is None


async def test_a_clients_own_environments_are_its_own() -> None:
    own = Sources(directory="/own")
    async with bench() as it:
        it.run_service.catalog.put(
            EnvironmentSource(rank=Rank.CLIENT_DIRECTORY, of="/own"), [SCIENCE]
        )
        client = dataclasses.replace(ALICE, sources=own)
        assert (await it.run(env="science", client=client)).env == "science"
        with pytest.raises(UnknownEnvironmentError):
            await it.run(env="science", client=BOB)


async def test_a_session_is_for_those_who_have_its_environment() -> None:
    other = dataclasses.replace(SCIENCE, source="/other/science", description="Other")
    async with bench() as it:
        catalog = it.run_service.catalog
        catalog.put(EnvironmentSource(rank=Rank.CLIENT_DIRECTORY, of="/own"), [SCIENCE])
        catalog.put(EnvironmentSource(rank=Rank.CLIENT_DIRECTORY, of="/other"), [other])
        alice = dataclasses.replace(ALICE, sources=Sources(directory="/own"))
        first = await it.run(env="science", session="s", client=alice)
        # The same entry, and later one flake more.
        more = dataclasses.replace(ALICE, sources=Sources(directory="/own", flakes=("a#b",)))
        for client in (alice, more):
            again = await it.run(env="science", session="s", client=client)
            assert again.session_id == first.session_id
        elsewhere = dataclasses.replace(ALICE, sources=Sources(directory="/other"))
        with pytest.raises(WrongEnvironmentError, match="which another client has"):
            await it.run(env="science", session="s", client=elsewhere)
        with pytest.raises(UnknownEnvironmentError):
            await it.run(env="science", session="s", client=ALICE)
        # It lives on, whatever becomes of its environment.
        catalog.put(EnvironmentSource(rank=Rank.CLIENT_DIRECTORY, of="/own"), [])
        again = await it.run(env="science", session="s", client=alice)
        assert again.session_id == first.session_id
        # What everybody has, is everybody's.
        python = await it.run(env="python", session="p", client=alice)
        shared = await it.run(env="python", session="p", client=ALICE)
        assert shared.session_id == python.session_id
