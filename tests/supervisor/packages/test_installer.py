"""Environments that the installer makes, in real jails, from a local index."""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

import pytest
import trio
import uv
from uv import find_uv_bin

from nsm.wire.errors import PackagesFailedError
from nsmd.model.packages import WantedPackages
from nsmd.packages.package_builds import Installed
from nsmd.packages.python_packages import find_uv
from nsmd.packages.store import UNUSED_CACHE_S, EnvironmentStore
from package_world import Workshop, sdist
from packageindex import HTML, JSON, IndexServer, index_server, wheel

pytestmark = pytest.mark.jail


class PipWorkshop(Workshop):
    """A workshop, and the index of its user."""

    def __init__(self, folder: Path, index: IndexServer) -> None:
        super().__init__(folder, PIP_INDEX_URL=index.url("/simple", host="127.0.0.1"))
        self.index = index

    async def make(
        self,
        *pip: str,
        name: str = "science",
        refresh: bool = False,
        allow_builds: bool = False,
        timeout_s: float = 120.0,
        project: Path | None = None,
        requirements: Path | None = None,
    ) -> Installed:
        wanted = WantedPackages(
            pip=pip,
            allow_builds=allow_builds,
            project=str(project or ""),
            requirements=str(requirements or ""),
        )
        return await self.build(wanted, name, refresh=refresh, timeout_s=timeout_s)

    def versions(self, made: Installed) -> dict[str, str]:
        return self.details(made.path).versions

    def file(self, made: Installed, name: str) -> Path:
        (path,) = Path(made.path).glob(f"lib/python3*/site-packages/{name}")
        return path


@pytest.fixture
def it(tmp_path: Path) -> Iterator[PipWorkshop]:
    with index_server(None) as index:
        yield PipWorkshop(tmp_path, index)


async def test_an_environment_is_made_and_locked(it: PipWorkshop) -> None:
    it.index.add_project("demo", "1.0", "2.0", requires="helper>=1")
    it.index.add_project("helper", "1.5")
    made = await it.make("demo")
    assert it.versions(made) == {"demo": "2.0", "helper": "1.5"}
    assert it.file(made, "__pycache__/demo.*.pyc").is_file()
    lock = Path(made.lock).read_text()
    assert made.lock == str(it.folder / "locks/science.txt")
    assert "demo==2.0" in lock
    assert lock.count("--hash=sha256:") == 2
    assert it.leftovers() == []
    assert it.phases[0] == "resolving"  # phases that take no time may go untold


@pytest.mark.slow
async def test_jails_may_read_what_a_supervisor_makes_for_itself(it: PipWorkshop) -> None:
    for name in ("demo", "other"):
        it.index.add_project(name, "1.0")
    before = os.umask(0o077)
    try:
        await it.make("demo", name="one")
        made = await it.make("demo", "other")
    finally:
        os.umask(before)
    for path in (Path(made.path), *Path(made.path).rglob("*")):
        assert path.is_symlink() or path.stat().st_mode & 0o444 == 0o444, path
        assert not path.is_dir() or path.stat().st_mode & 0o111 == 0o111, path


@pytest.mark.slow
async def test_a_lock_decides_the_versions_until_an_update(it: PipWorkshop) -> None:
    it.index.add_project("demo", "1.0")
    first = await it.make("demo")
    it.index.add_project("demo", "1.0", "2.0")
    asked = len(it.index.asked)
    assert await it.make("demo") == first
    assert len(it.index.asked) == asked, "nothing is asked for what is there"
    it.store.collect((), dry_run=False)
    assert it.versions(await it.make("demo")) == {"demo": "1.0"}
    assert it.versions(await it.make("demo", refresh=True)) == {"demo": "2.0"}
    assert "demo==2.0" in Path(first.lock).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [HTML, JSON])
async def test_a_lock_has_the_files_of_all_platforms(it: PipWorkshop, kind: str) -> None:
    plain, data, _ = wheel("demo", "1.0")
    better, data_of_better, _ = wheel("demo", "1.0", more={"more.py": b""})
    files = {plain: data, better.replace("1.0-", "1.0-1-"): data_of_better}
    older, data_of_older, _ = wheel("demo", "0.9")
    hashes = {
        name: hashlib.sha256(content).hexdigest()
        for name, content in {**files, older: data_of_older}.items()
    }

    def offer(names: Iterable[str]) -> None:
        links = {name: f"/files/{name}" for name in names}
        for name, url in links.items():
            it.index.add(url, "application/octet-stream", files.get(name, b""))
        page: str = "".join(
            f'<a href="{url}#sha256={hashes[name]}">{name}</a>' for name, url in links.items()
        )
        if kind == JSON:
            told = [
                {"filename": name, "url": url, "hashes": {"sha256": hashes[name]}}
                for name, url in links.items()
            ]
            page = json.dumps({"meta": {"api-version": "1.0"}, "name": "demo", "files": told})
        it.index.add("/simple/demo/", kind, page)

    offer(hashes)
    made = await it.make("demo")
    assert it.file(made, "more.py").exists(), "the build number decides"
    lock = Path(made.lock).read_text()
    assert hashes[plain] in lock
    assert hashes[older] not in lock
    offer([plain, older])
    shutil.rmtree(it.folder / "envs")
    again = await it.make("demo")
    assert not (it.file(again, "demo.py").parent / "more.py").exists()
    assert Path(again.lock).read_text() == lock


@pytest.mark.slow
async def test_a_lock_changed_by_hand_is_used_or_refused(it: PipWorkshop) -> None:
    it.index.add_project("demo", "1.0", "2.0")
    one = await it.make("demo==1.0", name="one")
    made = await it.make("demo")
    wanted_hash = next(
        line for line in Path(made.lock).read_text().splitlines() if line.startswith("# wanted")
    )
    pins = [line for line in Path(one.lock).read_text().splitlines() if line[0] != "#"]
    Path(made.lock).write_text("\n".join([wanted_hash, *pins]))
    assert it.versions(await it.make("demo")) == {"demo": "1.0"}
    Path(made.lock).write_text(f"{wanted_hash}\ndemo>=1\n")
    with pytest.raises(PackagesFailedError, match=r"science.txt cannot be used: 'demo>=1'"):
        await it.make("demo")


async def test_packages_that_cannot_be_had_are_named(it: PipWorkshop) -> None:
    it.index.add_project("demo", "1.0", requires="helper<2")
    it.index.add_project("helper", "1.0", "2.0")
    assert "nothere" in await it.why_not("nothere")
    assert "helper" in await it.why_not("demo", "helper>=2")


PROBE = """
def probe():
    import socket
    places = ("{home}", "{home}/home/.ssh", "/root/.ssh", "/var")
    found = [place for place in places if os.path.exists(place)]
    for host, port in (("127.0.0.1", {port}), ("192.0.2.1", 80)):
        try:
            socket.create_connection((host, port), 1)
        except OSError:
            continue
        found.append(host)
    for path in ("/env/bin/python", "/usr/x", "/build/../envs"):
        try:
            os.stat(path) if path.endswith("envs") else open(path, "ab").close()
        except OSError:
            continue
        found.append(path)
    return found
"""


def add_source(it: PipWorkshop, probe: str) -> None:
    file, data = sdist("demo", "1.0", probe)
    it.index.add(f"/files/{file}", "application/gzip", data)
    it.index.add("/simple/demo/", HTML, f'<html><a href="/files/{file}">{file}</a></html>')


async def test_a_source_is_built_only_if_allowed_and_sees_nothing(it: PipWorkshop) -> None:
    secret = it.folder / "home/.ssh/id_ed25519"
    secret.parent.mkdir(parents=True)
    secret.write_text("secret")
    add_source(it, PROBE.format(home=it.folder, port=it.index.port))
    assert "--allow-builds" in await it.why_not("demo")
    made = await it.make("demo", allow_builds=True)
    assert it.file(made, "demo.py").read_text() == "found = []"


@pytest.mark.slow
async def test_a_build_that_prints_or_hangs_is_bounded(it: PipWorkshop) -> None:
    add_source(
        it,
        "def probe():\n    import time\n    print('x' * 79 + '\\n', end='')\n"
        "    for _ in range(200000):\n        print('x' * 79)\n    time.sleep(600)",
    )
    with pytest.raises(PackagesFailedError, match="stopped after"):
        await it.make("demo", allow_builds=True, timeout_s=6)
    assert it.log.stat().st_size < 8 << 20
    assert it.store.names() == []


@pytest.mark.slow
async def test_files_of_a_killed_build_are_removed(it: PipWorkshop) -> None:
    it.index.add_project("demo", "1.0")
    left = it.folder / "envs/.builds/shared/build-0123"
    left.mkdir(parents=True)
    made = await it.make("demo")
    assert it.leftovers() == []
    assert it.versions(made) == {"demo": "1.0"}


@pytest.mark.slow
async def test_equal_builds_at_once_make_one_environment(it: PipWorkshop) -> None:
    it.index.add_project("demo", "1.0")
    made: list[Installed] = []

    async def make(name: str) -> None:
        made.append(await it.make("demo", name=name))

    async with trio.open_nursery() as builds:
        for name in ("one", "two"):
            builds.start_soon(make, name)
    assert made[0].path == made[1].path
    assert it.leftovers() == []


@pytest.mark.slow
async def test_without_network_the_cache_is_used_or_the_reason_told(tmp_path: Path) -> None:
    with index_server(None) as index:
        it = PipWorkshop(tmp_path, index)
        index.add_project("demo", "1.0")
        first = await it.make("demo")
    assert await it.make("demo") == first, "what is there needs no index"
    it.store.collect((), dry_run=False)
    assert (await it.make("demo")).path == first.path
    it.store.collect((), dry_run=False)
    assert "127.0.0.1" in await it.why_not("other")


@pytest.mark.slow
async def test_no_code_of_wheels_runs(it: PipWorkshop) -> None:
    code = b"import os; open('/build/cache/was-here', 'w').close()"
    it.index.add_project("demo", "1.0", more={"demo.pth": code})
    await it.make("demo")
    assert not (it.folder / "envs/.builds/shared/cache/was-here").exists()


@pytest.mark.slow
async def test_compiled_modules_come_from_sources_alone(it: PipWorkshop) -> None:
    it.index.add_project("demo", "1.0")
    source = b"version = __version__ = '1.0'\n"
    hostile = compile("version = 'hostile'\n", "/env/demo.py", "exec")
    header = MAGIC_NUMBER + (1).to_bytes(4, "little") + source_hash(source)
    compiled = f"__pycache__/demo.{sys.implementation.cache_tag}.pyc"
    beside = "other-1.0.data/purelib/demo-1.0.dist-info"
    more = {
        "demo.py": source,
        compiled: header + marshal.dumps(hostile),
        f"{beside}/RECORD": b"demo.py,,\n",
        f"{beside}/METADATA": b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n",
    }
    it.index.add_project("other", "1.0", more=more)
    bad = await it.make("other", name="bad")
    good = await it.make("demo", name="good")
    assert it.file(good, "demo.py").samefile(it.file(bad, "demo.py"))
    assert b"hostile" not in it.file(good, "__pycache__/demo.*.pyc").read_bytes()


@pytest.mark.parametrize(
    "path", ["scripts/python", pytest.param("data/pyvenv.cfg", marks=pytest.mark.slow)]
)
async def test_no_package_takes_the_place_of_python(it: PipWorkshop, path: str) -> None:
    it.index.add_project("demo", "1.0", more={f"demo-1.0.data/{path}": b"#!/bin/sh\n"})
    print(await it.why_not("demo"))


LINKS = """
def probe():
    import glob
    (build,) = glob.glob("/build/build-*")
    for name in {names}:
        place = os.path.join(build, name)
        if os.path.lexists(place):
            os.rename(place, place + ".old")
        os.symlink("{target}", place)
"""


@pytest.mark.parametrize(
    "name",
    [
        "env/environment.json",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("sources.txt", "lock.txt")),
    ],
)
async def test_a_build_writes_nothing_through_links(it: PipWorkshop, name: str) -> None:
    kept = it.folder / "kept"
    kept.write_text("mine")
    add_source(it, LINKS.format(names=[name], target=kept))
    made = await it.make("demo", allow_builds=True)
    assert kept.read_text() == "mine"
    assert it.versions(made) == {"demo": "1.0"}


def test_a_cache_that_no_build_uses_any_more_is_removed(tmp_path: Path) -> None:
    store = EnvironmentStore(str(tmp_path / "envs"))
    with store.building(alone=False) as staging:
        cache = Path(staging.mount, "cache")
    (cache / "wheel").write_bytes(bytes(100_000))
    assert store.collect((), dry_run=False).freed_bytes == 0
    os.utime(cache, times=(0, time.time() - UNUSED_CACHE_S - 60))
    assert store.collect((), dry_run=True).freed_bytes >= 100_000
    assert (cache / "wheel").exists()
    assert store.collect((), dry_run=False).freed_bytes >= 100_000
    assert not cache.exists()
    with store.building(alone=False):
        assert store.collect((), dry_run=False).freed_bytes == 0
        assert cache.exists()


@pytest.mark.parametrize("alone", [True, False])
def test_a_build_that_begins_is_not_taken_for_one_that_was_left(
    tmp_path: Path, *, alone: bool
) -> None:
    store = EnvironmentStore(str(tmp_path / "envs"))
    ended = threading.Event()

    def collect() -> None:
        while not ended.is_set():
            store.collect((), dry_run=False)

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        for _ in range(200):
            with store.building(alone=alone) as staging:
                assert os.listdir(staging.place) == ["tmp"]
    finally:
        ended.set()
        collector.join()


@pytest.mark.parametrize("replaced", ["", "env", "env/lib", "env/lib/site-packages"])
def test_an_environment_is_no_link_to_another_directory(tmp_path: Path, replaced: str) -> None:
    with EnvironmentStore(str(tmp_path / "envs")).building(alone=True) as staging:
        os.makedirs(os.path.join(staging.environment, "lib/site-packages"))
        staging.check("lib/site-packages")
        place = os.path.normpath(os.path.join(staging.place, replaced))
        os.rename(place, f"{staging.mount}/moved")
        os.symlink(f"{staging.mount}/moved", place)
        with pytest.raises(NotADirectoryError, match="the build has replaced a directory"):
            staging.check("lib/site-packages")


def locked_by_uv(it: PipWorkshop, text: str) -> Path:
    """Lock a project with uv; returns its `pyproject.toml`."""
    project = it.folder / "project"
    project.mkdir(exist_ok=True)
    (project / "pyproject.toml").write_text(text)
    index = it.index.url("/simple", host="127.0.0.1")
    subprocess.run(
        [find_uv_bin(), "lock", "--quiet", "--no-config", "--upgrade", "--default-index", index],
        cwd=project,
        env={"PATH": os.environ["PATH"], "UV_CACHE_DIR": str(it.folder / "uv")},
        check=True,
    )
    return project / "pyproject.toml"


@pytest.mark.slow
async def test_the_lock_of_a_project_is_used(it: PipWorkshop) -> None:
    it.index.add_project("helper", "1.5")
    it.index.add_project("windows", "1.0")
    it.index.add_project("checker", "3.0")
    it.index.add_project("extra", "1.0")
    it.index.add_project("demo", "1.0", requires="helper>=1")
    project = locked_by_uv(
        it,
        """
        [project]
        name = "mine"
        version = "1"
        requires-python = ">=3.9"
        dependencies = ["demo", "windows; sys_platform == 'win32'"]
        [project.optional-dependencies]
        more = ["extra"]
        [dependency-groups]
        dev = ["checker"]
        """,
    )
    it.index.add_project("demo", "1.0", "2.0", requires="helper>=1")
    made = await it.make(project=project)
    assert it.versions(made) == {"demo": "1.0", "helper": "1.5", "checker": "3.0"}
    assert made.lock == str(project.with_name("uv.lock"))
    assert not (it.folder / "locks").exists()
    assert await it.make(project=project, refresh=True) == made
    locked_by_uv(it, project.read_text())
    assert it.versions(await it.make(project=project))["demo"] == "2.0"


@pytest.mark.slow
async def test_requirements_with_hashes_are_a_lock(it: PipWorkshop) -> None:
    it.index.add_project("demo", "1.0")
    first = await it.make("demo")
    it.index.add_project("demo", "1.0", "2.0")
    requirements = it.folder / "requirements.txt"
    requirements.write_text(f"# made by a tool\n{Path(first.lock).read_text()}    # via mine\n")
    made = await it.make(requirements=requirements, name="other")
    assert (it.versions(made), made.lock) == ({"demo": "1.0"}, str(requirements))
    assert made.path == first.path
    requirements.write_text("demo")
    made = await it.make(requirements=requirements, name="other")
    assert it.versions(made) == {"demo": "2.0"}


async def test_a_lock_with_other_hashes_installs_nothing(it: PipWorkshop) -> None:
    it.index.add_project("demo", "1.0")
    requirements = it.folder / "requirements.txt"
    requirements.write_text(f"demo==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(PackagesFailedError, match="Hash mismatch"):
        await it.make(requirements=requirements)
    assert it.store.names() == []


def test_the_uv_of_nsms_own_installation_comes_first(tmp_path: Path) -> None:
    (tmp_path / "uv").symlink_to("/bin/true")
    assert find_uv(str(tmp_path)) == os.path.realpath(uv.find_uv_bin())


def test_without_a_uv_of_its_own_nsm_takes_the_one_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other machines there is the module without its program."""

    def missing() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(uv, "find_uv_bin", missing)
    assert find_uv(f".:{tmp_path}") is None
    (tmp_path / "uv").symlink_to("/bin/true")
    assert find_uv(f".:{tmp_path}") == os.path.realpath("/bin/true")
