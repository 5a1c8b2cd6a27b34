"""Environments that are built: who wants which, what is said, what outlives a supervisor."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from artifact_files import write_artifact
from fake_nix import FakeNix
from nsm.wire.errors import (
    BadRequestError,
    EnvironmentUnavailableError,
    OverloadedError,
    UnknownEnvironmentError,
)
from nsmd.environments import saved_records
from nsmd.environments.builds import build_run
from nsmd.environments.builds import builder as module
from nsmd.environments.builds.build_files import BuildFiles, SavedBuild, load_builds
from nsmd.environments.builds.builder import Builder, open_builder
from nsmd.environments.builds.building import Building
from nsmd.environments.catalog import Catalog, EnvironmentSource, Rank
from nsmd.environments.nix.program import NixFinder
from nsmd.host.paths import trusted_owners
from nsmd.model.packages import (
    WantedPackages,
    check_reference,
    likely_name,
    local_directory,
    shown_reference,
    why_no_reference,
)
from nsmd.model.settings import Defaults, EnvironmentSettings
from nsmd.model.values import ClientIdentity, Environment, Sources
from nsmd.packages.package_builds import Installed, PackageEnvironments
from nsmd.packages.store import EnvironmentStore
from package_world import installation, published

SOMEBODY = ClientIdentity(name="test", scope="here")


class Bench:
    """A workshop with a nix that does as it is told.

    Args:
        folder: for everything.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nix = FakeNix(folder / "bin")
        self.state = folder / "state"
        self.catalog = Catalog()
        self.used: list[Environment] = []

    def artifact(self, name: str = "science") -> str:
        """A sandbox as nix would have built it."""
        folder = self.folder / "store"
        return str(write_artifact(folder, name))

    @asynccontextmanager
    async def open(
        self,
        *references: str,
        configured: dict[str, EnvironmentSettings] | None = None,
        timeout_s: float = 60.0,
    ) -> AsyncGenerator[Builder]:
        """A supervisor's life."""
        self.catalog = Catalog()
        async with open_builder(
            NixFinder(str(self.nix.folder), {}, str(self.folder)),
            installation(self.folder),
            self.catalog,
            str(self.state),
            defaults=Defaults(),
            configured=configured or {},
            owners=trusted_owners(),
            timeout_s=timeout_s,
        ) as builder:
            await builder.begin(references, lambda: self.used)
            yield builder

    def names(self, client: ClientIdentity = SOMEBODY) -> set[str]:
        """Environments that can be used."""
        return {e.name for e in self.catalog.view(client).environments}

    def why(self, name: str, client: ClientIdentity = SOMEBODY) -> str:
        """Return the message for a client that wants to use it."""
        with pytest.raises((EnvironmentUnavailableError, UnknownEnvironmentError)) as caught:
            self.catalog.find(client, name)
        return str(caught.value)

    def roots(self) -> dict[str, str]:
        """The garbage-collector roots and what they keep."""
        try:
            return {p.name: os.readlink(p) for p in (self.state / "roots").iterdir()}
        except FileNotFoundError:
            return {}


async def ended(building: Building) -> None:
    if building.attempt is not None:
        await building.attempt.done.wait()


async def until(building: Building, condition: Callable[[], bool]) -> None:
    while not condition():
        await building.next_change.wait()


@pytest.fixture
def it(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_an_environment_is_added(it: Bench) -> None:
    path = it.artifact()
    reference = it.nix.builds("science", ("log", ["making it"]), ("out", path))
    async with it.open() as builder:
        building = builder.add(reference)
        assert (building.state, it.names()) == ("queued", set())
        await ended(building)
        assert builder.find(reference).state == "ready"
        assert it.names() == {"science"}
        environment = it.catalog.find(SOMEBODY, "science")
        assert environment.source == reference
        assert environment.artifact is not None
        assert environment.artifact.run == f"{path}/bin/run"
        assert list(it.roots().values()) == [path]
        assert "science> making it" in Path(builder.log_path(building)).read_text()
    (call,) = it.nix.calls()
    assert call["arguments"][-2:] == ["--", reference]
    assert "--no-write-lock-file" in call["arguments"]


async def test_nix_is_not_given_a_local_repository(it: Bench) -> None:
    (it.folder / "flake" / ".git").mkdir(parents=True)  # which nsm.git refuses
    async with it.open() as builder:
        building = builder.add(f"git+file://{it.folder}/flake#science")
        await ended(building)
        assert building.failed is not None
        assert f"The files of {it.folder}/flake are not known" in str(building.failed)
    assert it.nix.calls() == []


async def test_an_environment_that_the_store_has_lost_is_built_again(it: Bench) -> None:
    path = Path(it.artifact())
    reference = it.nix.builds("science", ("out", str(path)))
    async with it.open() as builder:
        await ended(builder.add(reference))
    elsewhere = path.rename(path.with_name("elsewhere"))
    it.nix.builds("science", ("out", str(elsewhere)))
    async with it.open() as builder:
        await ended(builder.find(reference))
        assert it.names() == {"science"}
        assert list(it.roots().values()) == [str(elsewhere)]


async def test_a_failed_build_says_why_and_the_rest_works(it: Bench) -> None:
    good = it.nix.builds("science", ("out", it.artifact()))
    bad = it.nix.builds("bad", ("log", ["gcc: no"]), ("fail", "builder failed"))
    async with it.open() as builder:
        buildings = [builder.add(good), builder.add(bad)]
        for building in buildings:
            await ended(building)
        assert it.names() == {"science"}
        assert "its build failed: error: builder failed" in it.why("bad")
        assert "nsm env log bad" in it.why("bad")
        failed = builder.find("bad").failed
        assert failed is not None
        assert "bad> gcc: no" in failed.message
        assert (
            Path(builder.log_path(buildings[1])).read_text().endswith(": error: builder failed\n")
        )
    async with it.open() as builder:
        building = builder.find("bad")
        assert building.attempt is None, "it waits for somebody to look at it"
        assert "error: builder failed" in it.why("bad")
        it.nix.builds("bad", ("out", it.artifact("bad")))
        builder.add(bad)
        await ended(building)
        assert it.names() == {"science", "bad"}


@pytest.mark.parametrize(
    ("out", "why"),
    [
        ("{store}/nothing", "it is missing"),
        ("{store}", "metadata.json"),
        ("relative", "names 0 things"),
    ],
)
async def test_a_build_that_yields_no_sandbox_fails(it: Bench, out: str, why: str) -> None:
    (it.folder / "store").mkdir()
    out = out.format(store=it.folder / "store")
    async with it.open() as builder:
        building = builder.add(it.nix.builds("hello", ("out", out)))
        await ended(building)
        assert building.failed is not None
        assert "yields no sandbox" in building.failed.message
        assert why in building.failed.message
        assert "lib.mkSandbox" in building.failed.hint
        assert "yields no sandbox" in Path(builder.log_path(building)).read_text()
        assert it.roots() == {}


async def test_without_nix_it_says_how_to_get_it_and_finds_it_later(it: Bench) -> None:
    reference = it.nix.builds("science", ("out", it.artifact()))
    hidden = it.nix.folder.rename(it.folder / "hidden")
    async with it.open() as builder:
        building = builder.add(reference)
        await ended(building)
        assert building.failed is not None
        assert "https://nixos.org" in building.failed.hint
        hidden.rename(it.nix.folder)
        builder.update([reference])
        await ended(building)
        assert it.names() == {"science"}


async def test_an_update_replaces_and_a_failed_one_keeps(it: Bench) -> None:
    first, second = it.artifact(), str(write_artifact(it.folder / "second", "science"))
    reference = it.nix.builds("science", ("out", first))
    async with it.open() as builder:
        building = builder.add(reference)
        await ended(building)
        it.nix.builds("science", ("fail", "no network"))
        assert builder.update([]) == [building]
        assert it.names() == {"science"}
        await ended(building)
        assert building.state == "failed"
        assert it.names() == {"science"}
        (problem,) = it.catalog.view(SOMEBODY).problems
        assert "its update failed: error: no network; the one built before is used" in problem.why
        it.nix.builds("science", ("out", second))
        builder.update(["science"])
        await ended(building)
        artifact = it.catalog.find(SOMEBODY, "science").artifact
        assert artifact is not None
        assert artifact.run.startswith(second)
        assert it.catalog.view(SOMEBODY).problems == ()
        assert list(it.roots().values()) == [second]
    assert ["--refresh" in call["arguments"] for call in it.nix.calls()] == [False, True, True]


async def test_the_root_of_what_sessions_run_in_stays(it: Bench) -> None:
    first, second = it.artifact(), str(write_artifact(it.folder / "second", "science"))
    reference = it.nix.builds("science", ("out", first))
    async with it.open() as builder:
        building = builder.add(reference)
        await ended(building)
        it.used.append(it.catalog.find(SOMEBODY, "science"))
        it.nix.builds("science", ("out", second))
        builder.update([])
        await ended(building)
        assert set(it.roots().values()) == {first, second}
        await builder.remove("science")
        assert list(it.roots().values()) == [first]
    async with it.open():
        assert it.roots() == {}


async def test_removing_stops_a_build(it: Bench) -> None:
    reference = it.nix.builds("slow", ("hang", None))
    async with it.open() as builder:
        building = builder.add(reference)
        attempt = building.attempt
        assert attempt is not None
        await until(building, lambda: attempt.started_s is not None)
        await builder.remove("slow")
        assert attempt.done.is_set()
        assert builder.buildings == []
        assert it.catalog.view(SOMEBODY).problems == ()
        assert not Path(builder.log_path(building)).exists()
        with pytest.raises(UnknownEnvironmentError):
            await builder.remove("slow")
    async with it.open() as builder:
        assert builder.buildings == []


async def test_a_build_goes_on_with_the_next_supervisor_however_many_end_in_order(
    it: Bench,
) -> None:
    reference = it.nix.builds("slow", ("hang", None))
    async with it.open() as builder:
        await until_building(builder.add(reference))
    for _ in range(module.MAX_INTERRUPTIONS + 1):
        async with it.open() as builder:
            await until_building(builder.find(reference))


async def test_a_build_that_supervisors_were_killed_in_does_not_begin_for_ever(
    it: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = it.nix.builds("slow", ("hang", None))
    save = BuildFiles.save

    async def save_as_before(files: BuildFiles, *, at_end: bool = False) -> None:
        del at_end  # nobody who is killed knows that it is the end
        await save(files)

    with monkeypatch.context() as killed:
        killed.setattr(BuildFiles, "save", save_as_before)
        async with it.open() as builder:
            await until_building(builder.add(reference))
        for _ in range(module.MAX_INTERRUPTIONS - 1):
            async with it.open() as builder:
                await until_building(builder.find(reference))
    async with it.open() as builder:
        building = builder.find(reference)
        assert building.attempt is None
        assert building.failed is not None
        assert "killed during it 2 times" in building.failed.cause
        it.nix.builds("slow", ("out", it.artifact("slow")))
        builder.update(["slow"])
        await ended(building)
        assert it.names() == {"slow"}


async def until_building(building: Building) -> None:
    attempt = building.attempt
    assert attempt is not None
    await until(building, lambda: attempt.started_s is not None)


async def test_a_few_builds_run_at_once_and_the_rest_waits(
    it: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUED", 1)
    references = [it.nix.builds(f"slow{n}", ("hang", None)) for n in range(4)]
    async with it.open() as builder:
        for reference in references[:2]:
            await until_building(builder.add(reference))
        assert builder.add(references[2]).state == "queued"
        with pytest.raises(OverloadedError, match="1 builds wait"):
            builder.add(references[3])
        assert len(builder.buildings) == 3


async def test_a_second_build_of_a_name_fails(it: Bench) -> None:
    path = it.artifact()
    one, two = it.nix.builds("one", ("out", path)), it.nix.builds("two", ("out", path))
    async with it.open() as builder:
        await ended(builder.add(one))
        second = builder.add(two)
        await ended(second)
        assert second.failed is not None
        assert "is called 'science'" in second.failed.cause
        assert "--name" in second.failed.hint
        with pytest.raises(BadRequestError, match="already"):
            builder.add(two, "science")
        await ended(builder.add(two, "other"))
        assert it.names() == {"science", "other"}
        assert [b.name for b in builder.buildings] == ["other", "science"], "the failed one is gone"


async def test_a_name_that_several_have_means_none_of_them(it: Bench) -> None:
    it.nix.builds("x", ("out", it.artifact()))
    one, two = "path:/one#x", "path:/two#x"
    async with it.open() as builder:
        for reference in (one, two):
            await ended(builder.add(reference, "lab" if reference == one else ""))
        await ended(builder.add("path:/three#lab"))
        assert builder.find("science").reference == two
        with pytest.raises(BadRequestError, match=r"several .*path:/one#x.*path:/three#lab"):
            await builder.remove("lab")
        await builder.remove(one)
        assert builder.find("lab").reference == "path:/three#lab"


async def test_a_fault_of_a_stopped_build_ends_nothing_else(
    it: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leaves_badly() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise OSError("at the end")

    async def build(*_: object) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leaves_badly)
            await trio.sleep_forever()

    monkeypatch.setattr(build_run.BuildRun, "build", build)
    reference = it.nix.builds("science", ("out", it.artifact()))
    async with it.open() as builder:
        building = builder.add(reference)
        await until_building(building)
        await trio.testing.wait_all_tasks_blocked()
        await builder.remove(reference)
        assert it.names() == set()


async def test_a_client_that_comes_during_a_removal_has_it_built(it: Bench) -> None:
    reference = it.nix.builds("slow", ("hang", None))
    own = Sources(flakes=(reference,))
    theirs = ClientIdentity(name="editor", scope="theirs", sources=own)
    async with it.open() as builder, trio.open_nursery() as nursery:
        building = builder.add(reference)
        await until_building(building)
        it.nix.builds("slow", ("out", it.artifact("slow")))
        nursery.start_soon(builder.remove, "slow")
        while building.added:
            await trio.lowlevel.checkpoint()
        assert building.attempt is not None, "nix takes longer to end"
        async with builder.opened(own):
            await until(building, lambda: building.built is not None)
            assert it.names(theirs) == {"slow"}


async def test_logs_of_what_is_forgotten_are_removed(
    it: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNWANTED", 1)
    async with it.open() as builder:
        for name in ("one", "two", "three"):
            reference = it.nix.builds(name, ("log", ["made"]), ("out", it.artifact(name)))
            async with builder.opened(Sources(flakes=(reference,))):
                await ended(builder.find(reference))
    assert len(list((it.state / "logs").iterdir())) <= 2


@pytest.mark.parametrize("found", [False, True])
async def test_a_collection_leaves_what_a_build_has_just_made_or_found(
    it: Bench, monkeypatch: pytest.MonkeyPatch, *, found: bool
) -> None:
    async with it.open() as builder:

        async def make(self: PackageEnvironments, *_: object, **__: object) -> Installed:
            store = EnvironmentStore(self.store)
            path = published(store, "a" * 64)
            if found:
                os.utime(path, times=(0, 0))
                assert store.claim(path)
            await builder.collect(dry_run=False)
            return Installed(path=path, lock="")

        monkeypatch.setattr(PackageEnvironments, "make", make)
        building = builder.add_packages(WantedPackages(pip=("numpy",)), "lab")
        assert building.attempt is not None
        building.attempt.since_s -= 1  # file systems' clocks are some milliseconds behind
        await ended(building)
        assert building.failed is None
        assert it.names() == {"lab"}
        await builder.remove("lab")
        assert (await builder.collect(dry_run=False)).paths


@pytest.mark.parametrize("restarted", [False, True])
async def test_an_environment_that_never_builds_is_forgotten(
    it: Bench, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    bad = it.nix.builds("bad", ("fail", "no such flake"))
    good = it.nix.builds("good", ("out", it.artifact()))
    async with it.open() as builder:
        await ended(builder.add(good))
        it.nix.builds("good", ("fail", "the network is down"))
        await ended(builder.update([good])[0])
        if restarted:
            await ended(builder.add(bad))
            assert len(builder.buildings) == 2
    monkeypatch.setattr(module, "FAILED_KEPT_S", 0.0)
    async with it.open() as builder:
        if not restarted:
            builder.add(bad)
        for building in builder.buildings:
            if building.reference == bad:
                await until(building, lambda: not building.wanted)  # noqa: B023  # at once
        assert [each.reference for each in builder.buildings] == [good]
        assert it.names() == {"science"}


async def test_environments_of_a_client_are_for_it_alone(it: Bench) -> None:
    reference = it.nix.builds("science", ("out", it.artifact()))
    own = Sources(flakes=(reference, "-bad"))
    theirs = ClientIdentity(name="editor", scope="theirs", sources=own)
    async with it.open() as builder:
        async with builder.opened(own):
            building = builder.find(reference)
            await ended(building)
            assert it.names(theirs) == {"science"}
            assert it.names() == set()
            assert "begins with '-'" in it.why("anything", theirs)
            async with builder.opened(own):
                pass
            assert it.names(theirs) == {"science"}
        assert it.names(theirs) == set()
        assert builder.buildings == []
        async with builder.opened(own):
            assert it.names(theirs) == {"science"}
    assert len(it.nix.calls()) == 1


async def test_a_state_directory_that_cannot_be_written(it: Bench) -> None:
    it.state.write_text("no directory")
    reference = it.nix.builds("science", ("out", it.artifact()))
    async with it.open() as builder:
        building = builder.add(reference)
        await ended(building)
        assert building.failed is not None
        assert "state directory cannot be used" in building.failed.cause
        it.state.unlink()
    async with it.open() as builder:
        assert [b.reference for b in builder.buildings] == [reference], "written at the end"


ROW = SavedBuild(
    key="a1", reference="github:me/envs#x", added=True, path="/nix/store/x", link="a1-1"
)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"version": 9, "environments": []}'])
def test_a_broken_one_is_set_aside(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "environments.json"
    path.write_bytes(data)
    assert load_builds(str(path)) == {}
    assert (tmp_path / "environments.json.broken").read_bytes() == data


@pytest.mark.parametrize(
    "row",
    [
        None,
        {},
        {"key": "", "reference": "x"},
        {"key": "a", "reference": 7},
        {"key": "../a", "reference": "x"},
        {"key": "a", "reference": "x", "link": "../../etc"},
        {"key": "a", "reference": "x", "added": 1},
    ],
)
def test_a_broken_row_is_left_out(tmp_path: Path, row: object) -> None:
    path = tmp_path / "environments.json"
    good: dict[str, Any] = {"key": "b", "reference": "y", "built_s": 7, "from_the_future": {}}
    path.write_text(json.dumps({"version": 1, "environments": [row, good]}))
    assert load_builds(str(path)) == {"b": SavedBuild(key="b", reference="y", built_s=7.0)}


def test_a_full_disk_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "environments.json"
    saved_records.save(str(path), "environments", [ROW])
    (tmp_path / "environments.json.nsm-new").mkdir()
    with pytest.raises(OSError, match="directory"):
        saved_records.save(str(path), "environments", [])
    assert load_builds(str(path)) == {"a1": ROW}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no flake"),
        ("#x", "names no flake"),
        ("--expr", "begins with '-'"),
        ("-f", "begins with '-'"),
        ("a b#c", "spaces"),
        ("github:me/envs#x\n--impure", "control characters"),
        ("github:me/envs#\x1b[31m", "control characters"),
        (".#x", "not absolute"),
        ("./envs#x", "not absolute"),
        ("..", "not absolute"),
        ("path:envs#x", "not absolute"),
        ("path:./envs#x", "not absolute"),
        ("git+file:./envs#x", "not absolute"),
        ("git+file:envs#x", "not absolute"),
        ("~/envs#x", "not absolute"),
        ("x" * 3000, "characters"),
        ("git+file:///home/me/envs?ref=main#x", "now: leave out ref"),
        ("git+file:/home/me/envs?submodules=1&dir=a&shallow=1#x", "leave out shallow, submodules"),
        ("/home/me/envs?rev=#x", "leave out rev"),
    ],
)
def test_an_unsafe_reference_is_refused(text: str, why: str) -> None:
    assert why in (why_no_reference(text) or "")
    with pytest.raises(BadRequestError, match="github:OWNER"):
        check_reference(text)


@pytest.mark.parametrize(
    ("reference", "directory"),
    [
        ("/home/me/envs#x", "/home/me/envs"),
        ("/home/me/envs?dir=a/b#x", "/home/me/envs/a/b"),
        ("git+file:///home/me/envs#x", "/home/me/envs"),
        ("git+file:/home/me/my%20envs?dir=a#x", "/home/me/my envs/a"),
        ("path:/home/me/envs#x", None),
        ("git+https://example.org/envs.git#x", None),
        ("github:me/envs#x", None),
        ("nixpkgs#hello", None),
        ("path:/home/me/my%20envs#x^out", None),
    ],
)
def test_directories_of_this_machine_are_found(reference: str, directory: str | None) -> None:
    assert check_reference(reference) == reference
    assert local_directory(reference) == directory


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("github:me/envs#data-science", "data-science"),
        ("github:me/envs#packages.x86_64-linux.Data_Science", "data-science"),
        ("github:me/envs", "envs"),
        ("github:me/envs#default", "envs"),
        ("path:/home/me/my-flake?dir=x", "my-flake"),
        ("path:/home/me/my-flake/#x^out", "x"),
        ("path:/", "environment"),
        ("path:/a#\N{GREEK SMALL LETTER ALPHA}", "environment"),
    ],
)
def test_a_name_before_it_has_its_own(reference: str, name: str) -> None:
    assert likely_name(reference) == name


def test_passwords_are_not_shown() -> None:
    assert (
        shown_reference("git+https://me:secret@example.org/x#y")
        == "git+https://...@example.org/x#y"
    )
    assert shown_reference("git+ssh://git@example.org/a@b") == "git+ssh://...@example.org/a@b"
    assert shown_reference("path:/home/me@work/x#y") == "path:/home/me@work/x#y"
    source = EnvironmentSource(rank=Rank.CLIENT_BUILT, of="git+https://me:secret@example.org/x#y")
    assert "secret" not in str(source.only_for), "other clients read it"
