"""Builds from indexes with TLS, credentials and redirects, in real jails."""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from certificates import TestAuthority
from nsm.wire.errors import PackagesFailedError
from nsmd.model.packages import WantedPackages
from package_world import Workshop, sdist
from packageindex import HTML, JSON, IndexHandler, IndexServer, index_server, wheel

pytestmark = pytest.mark.jail

LOGIN = "ada:hunter2hunter2"
SECRETS = (b"hunter2", base64.b64encode(LOGIN.encode()).rstrip(b"="))
"""The password, and how it looks in a header."""


class World(Workshop):
    """A user with an index that has TLS and a login."""

    def __init__(self, folder: Path, authority: TestAuthority, index: IndexServer) -> None:
        index.host = "127.0.0.1"
        index.login = LOGIN
        super().__init__(
            folder,
            PIP_INDEX_URL=f"https://{LOGIN}@127.0.0.1:{index.port}/simple",
            PIP_CERT=str(authority.bundle),
            PIP_CONFIG_FILE=os.devnull,  # this machine may have a file of its own
            UV_HTTP_RETRIES="0",
        )
        self.authority = authority
        self.index = index

    def netrc(self, text: str) -> None:
        (self.folder / "home").mkdir(exist_ok=True)
        (self.folder / "home/.netrc").write_text(text)

    async def make(self, *pip: str, npm: tuple[str, ...] = (), allow_builds: bool = False) -> Path:
        wanted = WantedPackages(pip=pip, npm=npm, allow_builds=allow_builds)
        try:
            made = await self.build(wanted, refresh=True)
        finally:
            print(self.log.read_text())
        for path in (self.folder / "envs", self.folder / "locks"):
            for file in (each for each in path.rglob("*") if each.is_file()):
                assert not [secret for secret in SECRETS if secret in file.read_bytes()], file
        assert not [secret for secret in SECRETS if secret in self.log.read_bytes()]
        return Path(made.path)

    async def why_not(self, *packages: Any, **options: Any) -> str:
        with pytest.raises(PackagesFailedError) as caught:
            await self.make(*packages, **options)
        said = f"{caught.value} {caught.value.hint}"
        assert not [secret for secret in SECRETS if secret in said.encode()]
        return said


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TestAuthority:
    return TestAuthority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: TestAuthority) -> str:
    return str(authority.certificate("localhost", "index.test", "other.test"))


@pytest.fixture
def world(authority: TestAuthority, certificate: str, tmp_path: Path) -> Iterator[World]:
    with index_server(certificate) as index:
        yield World(tmp_path, authority, index)


@pytest.fixture
def other(certificate: str) -> Iterator[IndexServer]:
    """Return a server that no configuration names by itself."""
    with index_server(certificate) as server:
        server.host = "127.0.0.1"
        yield server


def elsewhere(other: IndexServer) -> str:
    """Return a page with a link to a file on another server."""
    return other.add_wheel("demo", "1.0").replace('"/files', f'"{other.url("/files")}')


def module(made: Path, name: str) -> str:
    (path,) = made.glob(f"lib/python3*/site-packages/{name}.py")
    return path.read_text()


async def test_packages_come_from_an_index_with_tls_and_a_login(world: World) -> None:
    world.index.add_project("leaf", "1.0", "1.5")
    world.index.add_project("demo", "1.0", "2.0", requires="leaf<1.5")
    made = await world.make("demo")
    assert "'2.0'" in module(made, "demo")
    assert "'1.0'" in module(made, "leaf")
    # The metadata was enough to choose, so the other versions did not come.
    assert not [
        each for each in world.index.asked if each.path.endswith("demo-1.0-py3-none-any.whl")
    ]


async def test_a_file_on_another_host_needs_that_host_to_be_listed(
    world: World, other: IndexServer
) -> None:
    """An index as PyPI has it, but with the files elsewhere, without metadata beside them."""
    name, data, _ = wheel("demo", "1.0")
    other.add(f"/blobs/{name}", "application/octet-stream", data)
    hashes: dict[str, str] = {}
    file = {"filename": name, "url": f"/get/{name}?sign=abcdef", "hashes": hashes}
    page = {"meta": {"api-version": "1.0"}, "name": "demo", "files": [file]}
    world.index.add("/simple/demo/", JSON, json.dumps(page))
    place = other.url(f"/blobs/{name}")
    world.index.handlers[f"/get/{name}?sign=abcdef"] = lambda h: h.redirect(place)
    why = await world.why_not("demo")
    assert f"127.0.0.1:{other.port} was asked for, which neither" in why
    assert "name that host there" in why
    assert not other.asked
    world.hosts = (f"127.0.0.1:{other.port}",)
    assert "'1.0'" in module(await world.make("demo"), "demo")
    assert not [each for each in other.asked if "authorization" in each.headers]


@pytest.mark.slow
async def test_a_login_in_netrc_is_for_its_host_alone(world: World, other: IndexServer) -> None:
    other.login = "bob:secret"
    world.index.add("/simple/demo/", HTML, elsewhere(other))
    world.variables["PIP_INDEX_URL"] = world.index.url("/simple", "localhost")
    world.hosts = (f"127.0.0.1:{other.port}",)
    user, _, password = LOGIN.partition(":")
    world.netrc(
        f"machine localhost login {user} password {password}\n"
        "machine 127.0.0.1 login bob password secret\n"
    )
    await world.make("demo")
    sent = {each.headers.get("authorization") for each in other.asked}
    assert sent <= {None, f"Basic {base64.b64encode(b'bob:secret').decode()}"}


@pytest.mark.slow
async def test_a_login_in_netrc_is_not_sent_without_tls(world: World) -> None:
    with index_server(None) as plain:
        plain.host = "localhost"
        plain.login = "bob:secret"
        world.index.add("/simple/demo/", HTML, elsewhere(plain))
        world.hosts = (f"localhost:{plain.port}",)
        world.netrc("machine localhost login bob password secret\n")
        assert "localhost is not asked with http://" in await world.why_not("demo")
        assert not plain.asked
        # The user may say so.
        plain.add_project("demo", "1.0")
        world.variables["PIP_INDEX_URL"] = plain.url("/simple")
        assert "'1.0'" in module(await world.make("demo"), "demo")


async def test_a_private_address_has_to_be_named(world: World, other: IndexServer) -> None:
    world.index.add("/simple/demo/", HTML, elsewhere(other))
    world.hosts = ("*:*",)
    why = await world.why_not("demo")
    assert "127.0.0.1 is not reached: 127.0.0.1 is loopback" in why
    assert not other.asked


@pytest.mark.slow
async def test_certificates_are_checked_unless_the_user_says_otherwise(
    world: World, tmp_path: Path
) -> None:
    world.index.add_project("demo", "1.0")
    certificate = world.variables.pop("PIP_CERT")
    assert "SSL_CERT_FILE" in await world.why_not("demo")
    world.variables["PIP_CERT"] = str(tmp_path / "none")
    assert "none cannot be used: No such file" in await world.why_not("demo")
    world.variables["PIP_CERT"] = certificate
    await world.make("demo")
    with index_server(str(world.authority.certificate("elsewhere.test"))) as stranger:
        stranger.add_project("demo", "1.0")
        world.variables["PIP_INDEX_URL"] = stranger.url("/simple", "localhost")
        world.store.collect((), dry_run=False)
        await world.why_not("demo")
        assert not stranger.asked
        world.variables["PIP_TRUSTED_HOST"] = f"localhost:{stranger.port}"
        await world.make("demo")


@pytest.mark.parametrize("status", [401, pytest.param(403, marks=pytest.mark.slow)])
async def test_no_other_index_stands_in_for_one_that_refuses(
    world: World, other: IndexServer, status: int
) -> None:
    world.variables["PIP_EXTRA_INDEX_URL"] = world.variables["PIP_INDEX_URL"]
    world.variables["PIP_INDEX_URL"] = other.url("/simple")
    world.index.add_project("demo", "1.0")
    other.add_project("demo", "9.0")
    other.add_project("leaf", "1.0")
    world.index.handlers["/simple/demo/"] = lambda h: h.answer(status, HTML, b"")
    why = await world.why_not("demo")
    assert f"127.0.0.1 answers {status}, so packages might come from another one" in why
    assert "TRACE" not in (world.folder / "log").read_text()
    del world.index.handlers["/simple/demo/"]
    assert "'9.0'" in module(await world.make("demo", "leaf"), "demo")


@pytest.mark.slow
async def test_half_of_a_package_is_none(world: World) -> None:
    """Once it is in the cache, the first attempt leaves files of it that uv takes for all of it."""
    world.index.add_project("demo", "1.0", more={"demo-1.0.data/unknown/x": b""})
    assert "Unknown wheel data type" in await world.why_not("demo")
    assert "Unknown wheel data type" in await world.why_not("demo")


PROBE = """
def probe():
    import socket, glob
    found = []
    for port in {ports}:
        with socket.create_connection(("127.0.0.1", 3128)) as proxy:
            proxy.sendall(b"CONNECT 127.0.0.1:%d HTTP/1.0\\r\\n\\r\\n" % port)
            found.append(int(proxy.recv(100).split()[1]))
    seen = str(dict(os.environ))
    for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/run/nsm/**", recursive=True):
        try:
            seen += open(path, errors="replace").read()
        except OSError:
            continue
    return found + [word for word in ("hunter2", "topsecret") if word in seen]
"""


async def test_code_that_builds_reaches_the_index_and_sees_no_login(
    world: World, other: IndexServer
) -> None:
    file, data = sdist("demo", "1.0", PROBE.format(ports=[world.index.port, other.port]))
    world.index.add(f"/files/{file}", "application/gzip", data)
    world.index.add("/simple/demo/", HTML, f'<html><a href="/files/{file}">{file}</a></html>')
    assert "your password for it" in await world.why_not("demo", allow_builds=True)
    world.index.login = ""
    world.netrc("machine 192.0.2.1 login eve password topsecret\n")
    world.hosts = ("192.0.2.1",)
    world.variables["PIP_INDEX_URL"] = world.index.url("/simple")
    made = await world.make("demo", allow_builds=True)
    assert module(made, "demo") == "found = [200, 403]"
    url = world.index.url("/simple/AbCdEfGhIjKlMnOpQrStUvWxYz0123/")
    world.variables["PIP_INDEX_URL"] = url
    assert "seems to have a token" in await world.why_not("demo", allow_builds=True)


@contextlib.contextmanager
def user_proxy(status: int) -> Generator[tuple[int, list[str]]]:
    """Run a proxy that notes what it is asked for; returns its port, and these."""
    asked: list[str] = []

    def connect(handler: IndexHandler) -> None:
        asked.append(f"{handler.path} {handler.headers.get('Proxy-Authorization')}")
        if status != 200:
            handler.answer(status, HTML, b"hunter2")
            return
        import socket
        import threading

        server = socket.create_connection(("127.0.0.1", int(handler.path.rpartition(":")[2])))
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")

        def copy(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        back = threading.Thread(target=copy, args=(server, handler.connection))
        back.start()
        copy(handler.connection, server)
        back.join()
        server.close()
        handler.close_connection = True

    with (
        index_server(None) as server,
        patch.object(IndexHandler, "do_CONNECT", connect, create=True),
    ):
        yield server.port, asked


@pytest.mark.slow
async def test_the_user_s_own_proxy_leads_to_indexes_and_listed_hosts(
    world: World, other: IndexServer
) -> None:
    # Only the proxy knows that name, and leads it here.
    world.index.host = "index.test"
    world.variables["PIP_INDEX_URL"] = f"https://{LOGIN}@index.test:{world.index.port}/simple"
    world.index.add_project("demo", "1.0")
    other.host = "other.test"
    world.index.add("/simple/other/", HTML, elsewhere(other).replace("demo", "other"))
    with user_proxy(200) as (port, asked):
        world.variables["HTTPS_PROXY"] = f"http://eve:pw@127.0.0.1:{port}"
        await world.make("demo")
        world.hosts = ("*:*",)
        assert "behind the upstream proxy nsm cannot tell" in await world.why_not("other")
        login = base64.b64encode(b"eve:pw").decode()
        assert set(asked) == {f"index.test:{world.index.port} Basic {login}"}


@pytest.mark.slow
async def test_the_user_s_own_proxy_is_excepted_or_refuses(world: World) -> None:
    world.index.add_project("demo", "1.0")
    with user_proxy(407) as (port, asked):
        world.variables["HTTPS_PROXY"] = f"http://127.0.0.1:{port}"
        world.variables["PIP_INDEX_URL"] = f"https://{LOGIN}@index.test:{world.index.port}/simple"
        told = await world.why_not("demo")
        assert f"The upstream proxy 127.0.0.1:{port} (of" in told
        assert "asks for a login (407)" in told
        assert asked
        asked.clear()
        world.variables["NO_PROXY"] = "index.test"
        assert "index.test is allowed, but has no address" in await world.why_not("demo")
        assert not asked


SCRIPT = (
    "const fs = require('fs'); const seen = [JSON.stringify(process.env)];"
    "for (const each of fs.readdirSync('/proc').filter((name) => /^[0-9]+$/.test(name))) {"
    "try { seen.push(fs.readFileSync('/proc/' + each + '/environ', 'utf8')) } catch {} }"
    "fs.writeFileSync('found', String(seen.join().includes('hunter' + 2)))"
)


@pytest.mark.slow
@pytest.mark.node
async def test_npm_logs_in_and_the_scripts_of_packages_see_nothing(
    world: World, other: IndexServer
) -> None:
    world.index.add_npm("left", "1.0.0", manifest={"scripts": {"install": f'node -e "{SCRIPT}"'}})
    other.token = "token-hunter2"
    other.add_npm("@acme/right", "2.0.0")
    place, place2 = (each.url("/npm/").removeprefix("https:") for each in (world.index, other))
    login = base64.b64encode(LOGIN.encode()).decode()
    (world.folder / "home").mkdir()
    (world.folder / "home/.npmrc").write_text(
        f"registry=https:{place}\n{place}:_auth={login}\n@acme:registry=https:{place2}\n"
        f"{place2}:_authToken=${{npm_config_TOKEN}}\ncafile={world.authority.bundle}\n"
        "proxy=http://127.0.0.1:1\n"
    )
    world.variables["npm_config_TOKEN"] = "token-hunter2"
    world.variables["npm_config_noproxy"] = "127.0.0.1"
    made = await world.make(npm=("left", "@acme/right"), allow_builds=True)
    assert (made / "node_modules/left/found").read_text() == "false"
    assert (made / "node_modules/@acme/right/index.js").exists()
    lock = made / "package-lock.json"
    assert str(other.port) not in lock.read_text()
