"""The shells of projects, with a double of nix."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fake_nix import FakeNix
from flake_world import ATTRIBUTE, BASH, OLDER_ATTRIBUTE, Gate, QuickNix, World
from nsmd.environments.devshell import evaluation, project_shells


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


async def test_what_nix_said_is_kept_until_the_flake_changes(world: World) -> None:
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


async def test_a_flake_that_is_mended_is_tried_at_once(world: World) -> None:
    world.nix.builds(ATTRIBUTE, ("fail", "no"))
    async with world.shells() as shells:
        assert (await world.settled(shells)).problem is not None
        world.has_shell()
        (world.project / "flake.nix").write_text("{ }")
        assert (await world.settled(shells)).problem is None
        (world.project / "flake.nix").write_text("{ broken")
        world.nix.builds(ATTRIBUTE, ("fail", "syntax error"))
        assert "syntax error" in str((await world.settled(shells)).problem)
        (world.project / "flake.nix").unlink()
        assert shells.environment(world.client()) is None


async def test_one_that_hangs_is_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "EVALUATION_TIMEOUT_S", 0.3)
    world.nix.builds(ATTRIBUTE, ("hang", None))
    async with world.shells() as shells:
        assert "stopped after 0.3 s" in str((await world.settled(shells)).problem)


async def test_too_many_paths_for_a_jail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MAX_CLOSURE_PATHS", 1)
    world.has_shell()
    async with world.shells() as shells:
        assert "needs 2 store paths" in str((await world.settled(shells)).problem)


async def test_a_bash_of_nix_s_store_comes_with_what_it_needs(world: World) -> None:
    world.has_shell()
    program = world.store / "cccc-bash" / "bin" / "bash"
    program.parent.mkdir(parents=True)
    program.write_text("")
    (world.root / "profile").symlink_to(program.parent)
    base = replace(BASH, program=str(world.root / "profile" / "bash"))
    async with world.shells(base=lambda: base) as shells:
        assert (await world.settled(shells)).program == base.program
    asked = world.nix.calls()[-1]["arguments"]
    root, bash = str(world.store / "aaaa-shell-env"), str(world.store / "cccc-bash")
    assert asked[-4:] == ["--recursive", "--", root, bash]


async def test_two_projects_at_once_and_one_at_two_mount_points(world: World) -> None:
    world.has_shell()
    (world.root / "b").mkdir()
    other = World(world.root / "b", world.nix)
    elsewhere = world.client()
    assert elsewhere.project is not None
    elsewhere = replace(elsewhere, project=replace(elsewhere.project, mount_point="/src"))
    async with world.shells() as shells:
        await world.settled(shells)
        here, there = shells.environment(world.client()), shells.environment(elsewhere)
        assert here is not None
        assert there is not None
        assert "cd -- /src\n" in there.setup[0].code
        assert here.binds == there.binds
        await other.settled(shells)
        assert [row.source for row in shells.rows()] == [
            f"{world.project}/flake.nix",
            f"{other.project}/flake.nix",
        ]
    assert world.evaluations() == 2


async def test_shells_of_long_ago_are_given_up(world: World) -> None:
    world.has_shell()
    async with world.shells() as shells:
        await world.settled(shells)
        (record,) = world.state.rglob("*.json")
        (world.project / "flake.nix").write_text("{ }")
        await world.settled(shells)
        assert record.exists(), "sessions may be using it"
        os.utime(record, (0, 0))
        (world.project / "flake.nix").write_text("{  }")
        await world.settled(shells)
    assert not record.exists()
    assert not os.path.lexists(record.with_suffix(""))
    assert len(list(world.state.rglob("*.json"))) == 2


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


async def test_a_record_that_was_damaged_is_made_again(world: World) -> None:
    world.has_shell()
    async with world.shells() as shells:
        first = await world.settled(shells)
    (record,) = world.state.rglob("*.json")
    told = json.loads(record.read_text())
    for damaged in (
        "",
        "[]",
        "{}",
        json.dumps({**told, "env": 3}),
        json.dumps({**told, "env": ""}),
    ):
        record.write_text(damaged)
        async with world.shells() as shells:
            assert await world.settled(shells) == first
    assert world.evaluations() == 6


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
