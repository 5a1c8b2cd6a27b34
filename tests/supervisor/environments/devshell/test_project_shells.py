"""The shells of projects: what they are made from, as code, and in calls, with a double of nix."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from fake_nix import FakeNix
from fakes import CAPABILITIES, PYTHON, FakeAgent, FakeJail, FakeLauncher, launching, no_usage
from flake_world import ATTRIBUTE, BASH, OLDER_ATTRIBUTE, Gate, QuickNix, World
from nsm.wire.errors import BadRequestError
from nsmd.environments import on_demand
from nsmd.environments.catalog import Catalog
from nsmd.environments.devshell import evaluation, project_shells, script
from nsmd.environments.devshell.evaluation import MAX_FILES, FlakeState, read_flake
from nsmd.environments.devshell.script import DevEnvError, parse, setup_steps
from nsmd.environments.on_demand import EnvironmentPendingError, patiently
from nsmd.manager.run_service import RunService
from nsmd.model.limits import check_inherited
from nsmd.model.settings import PoolSettings, Settings
from nsmd.model.values import ClientIdentity, RunOutcome, RunRequest, SetupStep
from run_service_bench import open_run_service


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, QuickNix())


@pytest.fixture
def slow_world(tmp_path: Path) -> World:
    """World whose nix is a process."""
    return World(tmp_path, FakeNix(tmp_path / "nix"))


async def test_a_shell_is_evaluated_in_the_background(world: World) -> None:
    gate = Gate()
    world.has_shell(("gate", gate))
    async with world.shells() as shells:
        shells.expect(world.client())
        pending = shells.environment(world.client())
        assert pending is not None
        assert pending.pending is not None
        assert f"nix has been at {world.project}/flake.nix for 0 s" in pending.pending
        assert str(world.state) in pending.pending
        assert pending.problem is None
        assert world.told == 0
        gate.opened.set()
        environment = await world.settled(shells)
        assert world.told == 1
        assert shells.rows() == [environment]
    assert environment.problem is environment.pending is None
    assert (environment.name, environment.interpreter) == ("project", "bash")
    assert environment.source == f"{world.project}/flake.nix"
    assert [bind.target for bind in environment.binds] == [
        "/opt/python",
        str(world.store / "aaaa-shell-env"),
        str(world.store / "bbbb-tool"),
    ]
    assert [step.name for step in environment.setup][1] == "shellHook"
    assert "builtin cd -- /project" in environment.setup[0].code
    assert world.evaluations() == 1


async def test_nix_gets_words_and_runs_nothing_of_the_project(slow_world: World) -> None:
    world = slow_world
    world.has_shell()
    async with world.shells() as shells:
        await world.settled(shells)
    first, second = (call["arguments"] for call in world.nix.calls())
    assert first[-2:] == ["--", f"path:.#{ATTRIBUTE}"]
    assert "--no-write-lock-file" in first
    profile = first[first.index("--profile") + 1]
    assert os.path.realpath(profile) == str(world.store / "aaaa-shell-env")
    assert profile.startswith(str(world.state))
    assert second[-4:] == ["path-info", "--recursive", "--", os.path.realpath(profile)]
    assert os.listdir(world.project) == ["flake.nix"]


async def test_equal_shells_are_equal_and_values_are_a_client_s_own(world: World) -> None:
    world.has_shell()
    async with world.shells("TOKEN") as shells:
        await world.settled(shells)
        one = shells.environment(world.client(inherited=(("TOKEN", "first hush"),)))
        same = shells.environment(world.client(inherited=(("TOKEN", "first hush"),)))
        other = shells.environment(world.client(inherited=(("TOKEN", "second hush"),)))
        assert one is not None
        assert other is not None
        assert one == same
        assert hash(one) == hash(same)
        assert one != other
        assert one.setup is other.setup
        assert one.variables == (("TOKEN", "first hush"),)
        assert "hush" not in repr(one) + repr(world.client(inherited=one.variables))
        assert "hush" not in repr(shells.rows())
    kept = "".join(path.read_text() for path in world.state.rglob("*") if path.is_file())
    assert "hush" not in kept


async def test_an_evaluation_is_kept_until_the_flake_changes(world: World) -> None:
    world.has_shell()
    async with world.shells() as shells:
        first = await world.settled(shells)
        assert await world.settled(shells) == first
    async with world.shells() as shells:
        assert await world.settled(shells) == first
        assert world.evaluations() == 1
        (world.project / "flake.lock").write_text("{}")
        await world.settled(shells)
        assert world.evaluations() == 2
        (world.project / "flake.lock").unlink()
        await world.settled(shells)
    assert world.evaluations() == 2, "the first answer is still there"


async def test_store_paths_that_were_collected_are_built_again(world: World) -> None:
    world.has_shell()
    async with world.shells() as shells:
        await world.settled(shells)
    (world.store / "bbbb-tool").rmdir()
    async with world.shells() as shells:
        failed = await world.settled(shells)
        assert "bbbb-tool" in str(failed.problem)
    assert world.evaluations() == 2


async def test_a_change_while_nix_is_at_it_counts(world: World) -> None:
    gate = Gate()
    world.has_shell(("gate", gate))
    async with world.shells() as shells:
        shells.expect(world.client())
        await gate.reached.wait()
        world.has_shell()
        (world.project / "flake.nix").write_text("{ }")
        shells.expect(world.client())
        gate.opened.set()
        await world.settled(shells)
        assert world.evaluations() == 2
        assert world.told == 1


async def test_a_flake_without_shell(world: World) -> None:
    async with world.shells() as shells:
        problem = str((await world.settled(shells)).problem)
    assert f"neither {ATTRIBUTE} nor {OLDER_ATTRIBUTE}" in problem
    assert "remove use_flake" in problem


async def test_a_failure_is_told_and_tried_again(
    slow_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = slow_world
    world.nix.builds(ATTRIBUTE, ("log", ["line one"]), ("fail", "undefined variable 'foo'"))
    async with world.shells() as shells:
        failed = await world.settled(shells)
        assert "undefined variable 'foo'" in str(failed.problem)
        log = str(failed.problem).rpartition("The whole log: ")[2]
        assert "line one" in Path(log).read_text()
        assert shells.rows() == [failed]
        world.has_shell()
        assert await world.settled(shells) == failed, "not at once"
        monkeypatch.setattr(project_shells, "RETRY_S", 0.0)
        assert (await world.settled(shells)).problem is None
        assert world.told == 2


async def test_an_evaluation_that_hangs_is_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "EVALUATION_TIMEOUT_S", 0.3)
    world.nix.builds(ATTRIBUTE, ("hang", None))
    async with world.shells() as shells:
        assert "stopped after 0.3 s" in str((await world.settled(shells)).problem)


async def test_too_many_paths_for_a_jail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_CLOSURE_PATHS", 1)
    world.has_shell()
    async with world.shells() as shells:
        assert "needs 2 store paths" in str((await world.settled(shells)).problem)


async def test_projects_that_nobody_comes_from_are_given_up(world: World) -> None:
    world.has_shell()
    (world.root / "b").mkdir()
    other = World(world.root / "b", world.nix)
    async with world.shells() as shells:
        await other.settled(shells)
    (folder,) = world.state.iterdir()
    async with world.shells() as shells:
        await world.settled(shells)
    assert folder.exists()
    for path in folder.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    (world.project / "flake.nix").write_text("{ }")
    async with world.shells() as shells:
        shells.expect(other.client())  # in use again
        await other.settled(shells)
        await world.settled(shells)
    assert folder.exists()
    for path in folder.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    (world.project / "flake.nix").write_text("{  }")
    async with world.shells() as shells:
        await world.settled(shells)
    assert not folder.exists()
    assert other.project.exists()


async def test_the_end_stops_nix(slow_world: World) -> None:
    world = slow_world
    gate = world.root / "gate"
    os.mkfifo(gate)
    world.nix.builds(ATTRIBUTE, ("gate", str(gate)), ("hang", None))
    async with world.shells() as shells:
        shells.expect(world.client())
        held = await trio.to_thread.run_sync(gate.open, "w")  # when nix has come so far
    with pytest.raises(BrokenPipeError), held:
        held.write("there is nobody to read it")
    assert world.told == 1


@pytest.fixture
def flake(tmp_path: Path) -> Path:
    (tmp_path / "flake.nix").write_text("{}")
    (tmp_path / "nix" / "shells").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    return tmp_path


def key(project: Path, known: FlakeState | None = None) -> str:
    state = read_flake(str(project), known)
    assert state is not None
    return state.key


@pytest.mark.parametrize(
    "name",
    ["flake.nix", "flake.lock", "devshell.toml", "shell.nix", "nix/a.nix", "nix/shells/b.nix"],
)
def test_a_change_of_a_shells_files_is_noticed(name: str, flake: Path) -> None:
    first = read_flake(str(flake))
    (flake / name).write_text("one")
    second = read_flake(str(flake), first)
    assert first is not None
    assert second is not None
    assert second.key != first.key
    (flake / name).write_text("two")
    third = key(flake, second)
    assert third not in (first.key, second.key)
    (flake / name).write_text("one")
    assert key(flake, second) == second.key


def test_the_look_at_a_flake_is_bounded_and_reads_no_pipe(flake: Path) -> None:
    os.mkfifo(flake / "flake.lock")
    os.mkfifo(flake / "pipe.nix")
    deep = flake / "nix" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "x.nix").write_text("x")
    (flake / "nix" / "circle").symlink_to(flake)
    for number in range(MAX_FILES + 10):
        (flake / "nix" / f"{number}.nix").write_text("x")
    state = read_flake(str(flake))
    assert state is not None
    assert len(state.signature) < MAX_FILES + 20
    assert not any("/c/" in row[0] for row in state.signature)


def test_the_look_at_a_flake_reads_so_many_bytes_at_most(
    flake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2 * evaluation.MAX_DIRECTORIES):
        (flake / "nix" / f"d{number}").mkdir()
    for name in ("a.nix", "b.nix", "c.nix"):
        (flake / name).write_text("x" * 100)
    (flake / "d.nix").symlink_to("nowhere")
    monkeypatch.setattr(evaluation, "MAX_BYTES", 150)
    state = read_flake(str(flake))
    assert state is not None
    assert len(state.signature) < evaluation.MAX_DIRECTORIES + 20
    (flake / "c.nix").write_text("y" * 100)
    assert key(flake) == state.key, "what is beyond the bound is not read"
    (flake / "b.nix").write_text("y" * 100)
    assert key(flake) != state.key


SAMPLES = Path(__file__).parent / "samples"
SHOW = r"""
printf '%s\0' "$PWD" "$SHELL" "$PATH" "${out-}" "${dev-}" "${plain-}" "${list[2]-}" \
    "${table[a key]-}" "$NIX_BUILD_TOP" "$TMPDIR" "${HOOKED-}" "${shellHook-}" "$HOME"
shopt expand_aliases
sh -c 'echo "${FROM_SETUP-} ${plain-no}"'
declare -F
"""


def sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


def steps_of(data: bytes, project: Path, workspace: Path) -> tuple[SetupStep, ...]:
    return setup_steps(
        parse(data), project=str(project), workspace=str(workspace), program="/b/bash", root="/n/r"
    )


def run(steps: tuple[SetupStep, ...], show: str, workspace: Path) -> str:
    """Run steps in a shell and return what it then shows."""
    code = "\n".join([*(step.code for step in steps), show])
    done = subprocess.run(
        ["/bin/bash", "--norc", "--noprofile"],
        input=code,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=workspace,
        env={"PATH": "/usr/bin:/bin", "HOME": "/home/me", "TMPDIR": str(workspace)},
    )
    assert done.stderr == "", done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "it's a project"
    folder.mkdir()
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("version", ["2.8", "2.26"])
def test_a_shell_has_what_the_flake_says(version: str, project: Path, workspace: Path) -> None:
    data = sample(f"nix-{version}.json")
    told = run(steps_of(data, project, workspace), SHOW, workspace)
    *values, rest = told.split("\0")
    welcome, values[0] = values[0].split("\n", 1)
    assert welcome == "welcome to the shell"
    top = values[8]
    Path(top).rmdir()  # in a jail it goes with the session
    assert top.startswith("/tmp/nix-shell.")
    tool = json.loads(data)["variables"]["buildInputs"]["value"] + "/bin"
    assert values == [
        str(workspace),
        "/b/bash",
        f"{tool}:/usr/bin:/bin:/usr/bin:/bin",
        f"{workspace}/outputs/out",
        f"{workspace}/outputs/dev",
        "not exported, \"quoted\" and 'quoted'",
        "three\nlines",
        "a value",
        top,
        top,
        f"hello from the flake in {project}",
        json.loads(data)["variables"]["shellHook"]["value"],
        "/home/me",
    ]
    assert rest.split() == [
        *("expand_aliases", "on", "set", "by", "setup", "no"),
        *("declare", "-f", "buildPhase", "declare", "-f", "hooked", "declare", "-f", "runHook"),
    ]


def test_structured_attributes_are_files_of_the_session(
    project: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "ATTRIBUTES_DIRECTORY", str(workspace / "attributes"))
    data = sample("structured-2.26.json")
    show = (
        'rmdir "$NIX_BUILD_TOP"; echo $NIX_ATTRS_SH_FILE; . "$NIX_ATTRS_SH_FILE"; '
        'echo "${outputs[out]} ${settings[key]} ${list[1]} $HOOKED"; cat "$NIX_ATTRS_JSON_FILE"'
    )
    told = run(steps_of(data, project, workspace), show, workspace).splitlines()
    assert told[0] == f"{workspace}/attributes/.attrs.sh"
    assert told[1] == f"{workspace}/outputs/out a value two words not exported"
    attributes = json.loads("".join(told[2:]))
    assert attributes["outputs"] == {n: f"{workspace}/outputs/{n}" for n in ("out", "dev")}
    assert (attributes["settings"], attributes["list"]) == (
        {"key": "a value"},
        ["one", "two words"],
    )


def test_every_text_comes_through(project: Path, workspace: Path) -> None:
    texts = ["", "'", "$(echo no)", "`echo no`", "a\nb\n", '"\\"', "*", "ü € 𝄞", "-n", "!x", "\x01"]
    data = env(
        **{f"v{number}": {"type": "var", "value": text} for number, text in enumerate(texts)},
        all={"type": "array", "value": texts},
        map={"type": "associative", "value": {text or "empty": text for text in texts}},
    )
    values = " ".join(f'"$v{number}"' for number in range(len(texts)))
    show = (
        f'rmdir "$NIX_BUILD_TOP"; key="\'"; printf "%s\\0" {values} "${{all[@]}}" "${{map[$key]}}"'
    )
    told = run(steps_of(data, project, workspace), show, workspace)
    assert told.split("\0") == [*texts, *texts, "'", ""]


def env(**variables: Any) -> bytes:
    """Make the output of nix for such variables."""
    outputs = {"type": "exported", "value": "out"}
    out = {"type": "exported", "value": "/nix/store/x-env"}
    all_of_them = {"outputs": outputs, "out": out, **variables}
    return json.dumps({"variables": all_of_them, "bashFunctions": {}}).encode()


def test_variables_whose_names_would_be_code_are_left_out() -> None:
    data = json.loads(env(**{"a; rm": {"type": "var", "value": "1"}}))
    data["bashFunctions"] = {"f; rm": " x", "g$(h)": " x", "name-with.dots::and": " x"}
    told = parse(json.dumps(data).encode())
    assert set(told.variables) == {"outputs", "out"}
    assert set(told.bashFunctions) == {"name-with.dots::and"}


BAD = [
    b"",
    b"\xff",
    b"[]",
    b"{}",
    b'{"variables": []}',
    b'{"variables": {}, "bashFunctions": {"f": 1}}',
    b'{"variables": {"x": 1}, "bashFunctions": {}}',
    b'{"variables": {"x": {"type": "var"}}, "bashFunctions": {}}',
    b'{"variables": {"x": {"type": "array", "value": [1]}}, "bashFunctions": {}}',
    b'{"variables": {"x": {"type": "associative", "value": []}}, "bashFunctions": {}}',
    b'{"variables": {}, "bashFunctions": {}, "structuredAttrs": []}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_output_of_nix_in_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(DevEnvError):
        parse(data)


async def able(agent: FakeAgent, jail: FakeJail) -> None:
    """An agent that can set environments up, and answers with what it was told of that."""
    await agent.be_ready([*CAPABILITIES, "setup"])
    assert agent.hello is not None
    while True:
        frame = await agent.receive()
        if frame["type"] == "execute":
            setup = agent.hello.get("setup", {})
            names = [step["name"] for step in setup.get("steps", [])]
            await agent.answer(frame, stdout=f"{setup.get('interpreter')} {names}")


@asynccontextmanager
async def registry_of(
    world: World, *inherit: str, settings: Settings | None = None, launcher: FakeLauncher
) -> AsyncGenerator[RunService]:
    settings = settings or Settings(pool=PoolSettings(max_spares=0))
    async with (
        world.shells(*inherit) as shells,
        open_run_service(
            settings, Catalog([PYTHON, BASH], shells), launcher, measure=no_usage
        ) as run_service,
    ):
        yield run_service


async def run_call(
    run_service: RunService, client: ClientIdentity, session: str | None = None
) -> RunOutcome:
    request = RunRequest(client=client, env="project", code="x", session=session)
    execution = await patiently(lambda: run_service.submit(request))
    return await execution.wait()


async def test_sessions_have_their_own_clients_values(world: World) -> None:
    world.has_shell()
    settings = Settings(pool=PoolSettings(min_spares=1))
    async with (
        launching(able) as launcher,
        registry_of(world, "TOKEN", settings=settings, launcher=launcher) as run_service,
    ):
        assert run_service.catalog.inherit == ("TOKEN",)
        one = world.client(inherited=(("TOKEN", "first hush"),))
        other = world.client(inherited=(("TOKEN", "second hush"),))
        for client, name in ((one, "a"), (one, "b"), (other, "c"), (other, "d")):
            await run_call(run_service, client, name)
        values = {
            session.name: session.spec.environment.variables
            for session in run_service.live_sessions()
        }
        assert values == {
            **dict.fromkeys("ab", (("TOKEN", "first hush"),)),
            **dict.fromkeys("cd", (("TOKEN", "second hush"),)),
        }
        for kind in run_service.session_manager.pool.kinds:
            spares = {s.spec.environment.variables for s in [*kind.ready, *kind.starting]}
            assert spares <= {kind.spec.environment.variables}
        told = repr(
            [
                *run_service.live_sessions(),
                *run_service.session_manager.pool.kinds,
                await run_service.describe(),
            ]
        )
        assert "hush" not in told


# Waiting, without anything to wait for.


async def test_waiting_can_be_cancelled(autojump_clock: MockClock) -> None:
    def submit() -> None:
        raise EnvironmentPendingError("project", "it takes its time", trio.Event())

    began = trio.current_time()
    with pytest.raises(EnvironmentPendingError):
        await patiently(submit, on_cancel=lambda cancel: cancel())
    assert trio.current_time() - began < on_demand.PATIENCE_S


@pytest.mark.parametrize("value", [3, None, "a\0b", "\ud800"])
def test_a_value_that_cannot_be_a_variable_is_refused(value: object) -> None:
    with pytest.raises(BadRequestError, match="value of A"):
        check_inherited(["A"], {"A": value})
