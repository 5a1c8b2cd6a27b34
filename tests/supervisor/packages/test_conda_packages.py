"""Environments of conda packages, made by py-rattler in real jails, from a channel of the test."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from conda_channel import Channel
from nsm.dataclass import replace
from nsmd.model.packages import WantedPackages
from nsmd.packages.conda_packages import PLATFORM, CondaPackages
from nsmd.packages.package_builds import Installed, InstallError, InstallRequest
from package_world import SEARCH_PATH, Workshop

pytest.importorskip("rattler", reason="py-rattler is missing: make installs it")
pytestmark = pytest.mark.jail


class _Handler(SimpleHTTPRequestHandler):
    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Say nothing."""


class CondaWorld(Workshop):
    """A channel that is served, and a workshop that may reach it.

    Attributes:
        url: URL of the channel.
        version: version of its Python.
    """

    def __init__(self, folder: Path, served: Path, channel: Channel, version: str) -> None:
        super().__init__(folder)
        self.channel, self.version = channel, version
        handler = partial(_Handler, directory=str(served))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}/mine"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.list = folder / "environment.yml"

    def close_server(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def write(self, *packages: str, channel: str = "") -> None:
        lines = "".join(f"  - {each}\n" for each in packages)
        text = f"name: x\nchannels:\n  - {channel or self.url}\ndependencies:\n{lines}"
        self.list.write_text(text)

    async def make(
        self, *, hosts: tuple[str, ...] | None = None, path: Path | None = None
    ) -> Installed:
        self.hosts = (self.host,) if hosts is None else hosts
        return await self.build(WantedPackages(conda=str(path or self.list)))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Channel, str]:
    folder = tmp_path_factory.mktemp("channels")
    channel = Channel(folder / "mine")
    return folder, channel, channel.add_python()


@pytest.fixture
def world(served: tuple[Path, Channel, str], tmp_path: Path) -> Iterator[CondaWorld]:
    world = CondaWorld(tmp_path, *served)
    yield world
    with suppress(OSError):
        world.close_server()


async def test_an_environment_is_made_from_an_environment_yml(world: CondaWorld) -> None:
    world.channel.add_module("tiny", "1.2")
    newer = world.channel.add_module("tiny", "2.0")
    world.write("python", "tiny <2")
    made = await world.make()
    details = world.details(made.path)
    assert details.versions == {"python": world.version, "tiny": "1.2"}
    assert details.program == "/env/bin/python"
    assert "tiny" in details.modules
    place = Path(made.path)
    assert (place / "bin/tiny").read_text().startswith("#!/env/bin/python")
    library = next(place.glob("lib/python3*/site-packages"))
    assert list(library.glob("__pycache__/tiny.*.pyc")), "a package without compiled modules"
    lock = Path(made.lock).read_text()
    assert f"{world.url}/noarch/tiny-1.2-0.conda#sha256:" in lock

    world.write("python", "tiny")
    again = await world.make()
    assert world.details(again.path).versions["tiny"] == "2.0"
    assert world.channel.hashes[newer] in Path(again.lock).read_text()


@pytest.mark.slow
async def test_a_lock_gives_the_same_packages_without_network(world: CondaWorld) -> None:
    world.channel.add_module("calm", "1.0")
    world.write("python", "calm")
    first = await world.make()
    world.channel.add_module("calm", "2.0")
    world.close_server()
    shutil.rmtree(first.path)
    again = await world.make()
    assert again == first
    assert world.details(again.path).versions["calm"] == "1.0"


@pytest.mark.slow
async def test_a_lock_of_a_project_is_used_as_it_is(world: CondaWorld) -> None:
    world.channel.add_module("fixed", "1.0")
    world.channel.add_module("fixed", "2.0")
    paths = (f"{PLATFORM}/python-{world.version}-0.conda", "noarch/fixed-1.0-0.conda")
    urls = [(f"{world.url}/{path}", world.channel.hashes[path]) for path in paths]
    lock = world.folder / "pixi.lock"
    wanted = "".join(f"      - conda: {url}\n" for url, _ in urls)
    hashes = "".join(f"- conda: {url}\n  sha256: {sha256}\n" for url, sha256 in urls)
    lock.write_text(
        f"version: 6\nenvironments:\n  default:\n    packages:\n      {PLATFORM}:\n{wanted}"
        f"packages:\n{hashes}"
    )
    made = await world.make(path=lock)
    assert world.details(made.path).versions["fixed"] == "1.0"
    assert made.lock == str(lock)


@pytest.mark.slow
async def test_a_file_that_is_not_the_locked_one_is_refused(world: CondaWorld) -> None:
    path = world.channel.add_module("swapped", "1.0")
    (world.channel.folder / path).write_bytes(b"another")
    world.write("python", "swapped")
    assert "swapped-1.0-0.conda is not what the lock names" in await world.why_not()


@pytest.mark.slow
async def test_a_channel_is_reached_only_if_the_user_names_its_host(world: CondaWorld) -> None:
    world.write("python")
    why = await world.why_not(hosts=())
    assert f"is on {world.host}, which neither ~/.condarc nor `[packages] hosts`" in why
    (world.folder / "home").mkdir()
    (world.folder / "home/.condarc").write_text(f"channel_alias: http://{world.host}\n")
    world.write("python", channel="mine")
    assert world.version in world.details((await world.make(hosts=())).path).version


@pytest.mark.slow
@pytest.mark.parametrize(
    ("packages", "words"),
    [
        (("python", "no-such-thing"), "no-such-thing"),
        (("python >=99",), "python >=99"),
        (("lonely",), "has no Python"),
        (("python", "--hostile"), "is not a package of conda"),
        (("python", "https://example.org/x.conda"), "is not a package of conda"),
    ],
)
async def test_a_conda_list_that_cannot_be_made_says_why(
    world: CondaWorld, packages: tuple[str, ...], words: str
) -> None:
    world.channel.add("lonely", "1.0", {"share/lonely": b"x"})
    world.write(*packages)
    assert words in await world.why_not()


@pytest.mark.slow
async def test_a_hostile_package_changes_nothing_outside(world: CondaWorld) -> None:
    world.channel.add("leaving", "1.0", {"../../../../leaving": b"x"})
    world.channel.add("replacing", "1.0", {}, links={"bin": "/etc"})
    script = b"#!/bin/sh\necho ran > $PREFIX/ran\n"
    world.channel.add("scripted", "1.0", {"bin/.scripted-post-link.sh": script})
    world.write("python", "scripted")
    made = await world.make()
    assert not (Path(made.path) / "ran").exists()
    shutil.rmtree(made.path)
    world.write("python", "replacing")
    made = await world.make()
    assert not (Path(made.path) / "bin").is_symlink()
    shutil.rmtree(made.path)
    world.write("python", "leaving")
    await world.why_not()
    assert not list(world.folder.rglob("leaving"))


async def test_without_py_rattler_it_is_said_what_to_install(
    world: CondaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write("python")
    request = InstallRequest(
        name="science",
        wanted=WantedPackages(conda=str(world.list)),
        refresh=False,
        store=str(world.folder / "envs"),
        lock_directories=(),
        search_path=SEARCH_PATH,
        home=str(world.folder),
    )
    packages = CondaPackages(request, lambda _path: None)

    def find_none(_name: str) -> None:
        """Find nothing."""

    monkeypatch.setattr("importlib.util.find_spec", find_none)
    with pytest.raises(InstallError) as caught:
        packages.find_tool()
    assert "pip install 'nsm-sessions[conda]'" in caught.value.hint
    with pytest.raises(InstallError, match="a Python of its own"):
        CondaPackages(
            replace(request, wanted=replace(request.wanted, interpreter="/usr/bin/python3")),
            lambda _path: None,
        )
