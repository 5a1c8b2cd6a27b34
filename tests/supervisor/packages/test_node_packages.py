"""Environments of Node packages that the installer makes, in real jails, from a local registry."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsm.wire.errors import PackagesFailedError
from nsmd.model.packages import WantedPackages
from nsmd.packages.package_builds import Installed
from package_world import Workshop
from packageindex import IndexServer, index_server

pytestmark = [pytest.mark.jail, pytest.mark.node]

if shutil.which("npm") is None:
    pytest.skip("not here: npm is missing", allow_module_level=True)


class NpmWorkshop(Workshop):
    """A workshop, and the registry of its user."""

    def __init__(self, folder: Path, index: IndexServer) -> None:
        index.host = "127.0.0.1"
        super().__init__(folder, npm_config_registry=index.url("/npm/"))
        self.index = index

    async def make(self, *npm: str, name: str = "web", refresh: bool = False, **more: Any) -> Path:
        return Path((await self.install(*npm, name=name, refresh=refresh, **more)).path)

    async def install(
        self, *npm: str, name: str = "web", refresh: bool = False, **more: Any
    ) -> Installed:
        return await self.build(WantedPackages(npm=npm, **more), name, refresh=refresh)

    def versions(self, made: Path) -> dict[str, str]:
        return self.details(made).versions

    def lock(self) -> dict[str, Any]:
        text = (self.folder / "locks/web.package-lock.json").read_text()
        lock: dict[str, Any] = json.loads(text)
        return lock


@pytest.fixture
def it(tmp_path: Path) -> Iterator[NpmWorkshop]:
    with index_server(None) as index:
        yield NpmWorkshop(tmp_path, index)


@pytest.mark.slow
async def test_an_environment_is_made_locked_and_shares_its_files(it: NpmWorkshop) -> None:
    it.index.add_npm("left", "1.0.0", "1.2.0", manifest={"dependencies": {"@acme/right": "^2"}})
    it.index.add_npm("@acme/right", "2.0.0", manifest={"bin": {"right": "index.js"}})
    made = await it.make("left@^1")
    assert it.versions(made) == {"left": "1.2.0", "@acme/right": "2.0.0"}
    details = it.details(made)
    assert (details.interpreter, details.modules) == ("node", ("left",))
    assert os.readlink(made / "node_modules/.bin/right") == "../@acme/right/index.js"
    lock = it.lock()
    assert lock["packages"][""] == {"dependencies": {"left": "1.2.0"}}
    assert lock["packages"]["node_modules/left"]["integrity"].startswith("sha512-")
    assert "127.0.0.1" not in json.dumps(lock), "another machine may have a mirror"
    assert "installing" in it.phases
    it.index.add_npm("more", "1.0.0")
    other = await it.make("more", "left", name="other")
    file = "node_modules/left/index.js"
    assert (made / file).samefile(other / file)
    assert not (made / "node_modules/left/package.json").samefile(other / "package.json")


@pytest.mark.slow
async def test_a_lock_decides_the_versions_until_an_update(it: NpmWorkshop) -> None:
    it.index.add_npm("left", "1.0.0")
    first = await it.make("left")
    it.index.add_npm("left", "1.0.0", "2.0.0")
    asked = len(it.index.asked)
    assert await it.make("left") == first
    assert len(it.index.asked) == asked, "nothing is asked for what is there"
    it.store.collect((), dry_run=False)
    assert it.versions(await it.make("left")) == {"left": "1.0.0"}
    assert it.versions(await it.make("left", refresh=True)) == {"left": "2.0.0"}
    assert it.lock()["packages"]["node_modules/left"]["version"] == "2.0.0"


SCRIPT = (
    "require('fs').writeFileSync('found.json', JSON.stringify(['{home}', '/var', '/root/.ssh', "
    "'{home}/.ssh'].filter((each) => require('fs').existsSync(each))))"
)


@pytest.mark.slow
async def test_scripts_run_only_if_allowed_and_see_nothing(it: NpmWorkshop) -> None:
    (it.folder / "home/.ssh").mkdir(parents=True)
    script = SCRIPT.format(home=it.folder / "home")
    it.index.add_npm("left", "1.0.0", manifest={"scripts": {"postinstall": f'node -e "{script}"'}})
    made = await it.make("left")
    assert not (made / "node_modules/left/found.json").exists()
    built = await it.make("left", allow_builds=True)
    assert built != made
    assert (built / "node_modules/left/found.json").read_text() == "[]"


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> Any:
    found = tarfile.TarInfo(f"package/{name}")
    found.type, found.linkname, found.mode = kind, target, mode
    return found, b"" if kind != tarfile.REGTYPE else b"x"


@pytest.mark.slow
async def test_hostile_files_of_a_package_do_no_harm(it: NpmWorkshop) -> None:
    more = [
        entry("outside", tarfile.SYMTYPE, "/etc/passwd"),
        entry("hard", tarfile.LNKTYPE, "/etc/passwd"),
        entry("pipe", tarfile.FIFOTYPE),
        entry("setuid", mode=0o4755),
        entry("../../../escaped"),
        entry("odd \n\x1b[31mname"),
        entry("environment.json"),
    ]
    it.index.add_npm("left", "1.0.0", more=more, manifest={"bin": {"../../escaped": "setuid"}})
    made = await it.make("left")
    assert it.versions(made) == {"left": "1.0.0"}
    found = [Path(folder, name) for folder, _, names in os.walk(made) for name in names]
    for path in found:
        assert path.resolve().is_relative_to(made)
        assert stat.S_ISREG(path.stat().st_mode)
        assert not path.stat().st_mode & stat.S_ISUID
    assert {path.parent.name for path in it.folder.rglob("escaped")} <= {".bin"}
    assert await it.make("left", name="again") == made


@pytest.mark.slow
async def test_without_network_the_cache_is_used_or_the_reason_told(tmp_path: Path) -> None:
    with index_server(None) as index:
        it = NpmWorkshop(tmp_path, index)
        index.add_npm("left", "1.0.0")
        first = await it.make("left")
    assert await it.make("left") == first, "what is there needs no registry"
    it.store.collect((), dry_run=False)
    assert await it.make("left") == first, "a lock and the cache suffice"
    it.store.collect((), dry_run=False)
    assert "127.0.0.1" in await it.why_not("other")


@pytest.mark.slow
async def test_the_lock_of_a_project_is_installed_as_it_is(it: NpmWorkshop) -> None:
    it.index.add_npm("left", "1.0.0", "2.0.0")
    await it.make("left@^1")
    project = it.folder / "project"
    project.mkdir()
    lock = it.lock()
    lock["packages"][""] = {"devDependencies": {"left": "^1"}}
    row = lock["packages"]["node_modules/left"]
    row["resolved"] = "https://registry.example.test/npm/left/-/left-1.0.0.tgz"
    file = project / "package-lock.json"
    file.write_text(json.dumps(lock))
    (project / "package.json").write_text('{"devDependencies": {"left": "^1"}}')
    done = await it.install(name="mine", package_lock=str(file), refresh=True)
    assert it.versions(Path(done.path)) == {"left": "1.0.0"}
    assert done.lock == str(file)
    assert not (it.folder / "locks/mine.package-lock.json").exists()
    (project / "package.json").write_text('{"devDependencies": {"left": "^2"}}')
    with pytest.raises(PackagesFailedError, match="in sync"):
        await it.install(name="mine", package_lock=str(file))
    file.unlink()
    with pytest.raises(PackagesFailedError, match=r"package-lock\.json is not there"):
        await it.install(name="mine", package_lock=str(file))


async def test_a_host_without_node_or_npm_says_what_to_install(it: NpmWorkshop) -> None:
    it.search_path = str(it.folder)
    assert "There is no Node for it: no node on PATH" in await it.why_not("left")
