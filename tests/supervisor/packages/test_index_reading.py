"""The user's indexes, as the configuration of pip, uv and npm names them."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsmd.model.host_rules import AllowList
from nsmd.packages.build_network import BuildNetwork, conda_settings
from nsmd.packages.index_reading import read_indexes
from nsmd.packages.index_values import Indexes, parse_url

PYPI = "https://pypi.org/simple/"


class World:
    """A home and the machine's configuration."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = str(root / "home")
        self.etc = str(root / "etc")
        self.prefix = str(root / "prefix")
        self.write("home/.keep", "")

    def write(self, name: str, text: str) -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def read(self, environ: Mapping[str, str] | None = None) -> Indexes:
        return read_indexes(environ or {}, self.home, prefix=self.prefix, etc=self.etc)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def urls(indexes: Indexes) -> list[str]:
    return [index.url for index in indexes.python]


PIP_PLACES = [
    "etc/xdg/pip/pip.conf",
    "etc/pip.conf",
    "home/.pip/pip.conf",
    "home/.config/pip/pip.conf",
    "prefix/pip.conf",
]


def test_pip_s_files_count_in_pip_s_order(world: World) -> None:
    for number, place in enumerate(PIP_PLACES):
        world.write(place, f"[global]\nindex-url = https://{number}.test/simple\n")
        assert urls(world.read()) == [f"https://{number}.test/simple"]
    chosen = world.write("chosen.conf", "[global]\nindex_url = https://chosen.test/\n")
    assert urls(world.read({"PIP_CONFIG_FILE": chosen})) == ["https://chosen.test/"]
    os.unlink(f"{world.prefix}/pip.conf")
    # The user's own files do not count then.
    world.write("chosen.conf", "[global]\ntimeout = 5\n")
    assert urls(world.read({"PIP_CONFIG_FILE": chosen})) == ["https://1.test/simple"]
    assert urls(world.read({"PIP_CONFIG_FILE": os.devnull})) == [PYPI]
    assert urls(world.read({"PIP_INDEX_URL": "https://v.test/"})) == ["https://v.test/"]
    world.write("elsewhere/pip/pip.conf", "[install]\nindex-url = https://xdg.test/\n")
    elsewhere = {"XDG_CONFIG_HOME": str(world.root / "elsewhere")}
    assert urls(world.read(elsewhere)) == ["https://xdg.test/"]


def test_pip_itself_reads_the_same(world: World) -> None:
    world.write("home/.pip/pip.conf", "[install]\nindex-url = https://old.test/\n")
    world.write(
        "home/.config/pip/pip.conf",
        "[global]\nindex-url = https://new.test/\nextra-index-url =\n  https://a.test/\n"
        "  https://b.test/\nno-index = no\ntimeout =\n",
    )
    environ = {"HOME": world.home, "PATH": os.environ["PATH"], "PIP_RETRIES": "7"}
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "install.index-url='https://old.test/'" in done.stdout.splitlines()
    indexes = world.read(environ)
    # `[install]` of a lower file comes before `[global]` of a higher one.
    assert urls(indexes) == ["https://old.test/", "https://a.test/", "https://b.test/"]
    assert indexes.python_access.retries == 7
    assert indexes.python_access.timeout_s is None


def test_every_setting_of_pip_is_read(world: World) -> None:
    wheels = world.root / "wheels"
    wheels.mkdir()
    pins = world.write("pins.txt", "demo==1\n")
    world.write(
        "home/.config/pip/pip.conf",
        f"""
        [global]
        index-url = https://ada:p%40ss@index.test:8443/simple/
        extra-index-url = http://plain.test/simple
        find-links = {wheels} https://links.test/page.html ~/gone
        trusted-host = plain.test Other.test:8080
        cert = ~/ca.pem
        client-cert = /etc/me.pem
        proxy = http://eve:pw@proxy.test:3128
        timeout = 7
        retries = 2
        constraint = {pins}
        """.replace("\n        ", "\n"),
    )
    indexes = world.read({"NO_PROXY": "a.test, .B.test"})
    first, second = indexes.python
    assert (first.name, first.url) == ("index.test", "https://index.test:8443/simple/")
    assert first.login == ("ada", "p@ss")
    assert (second.url, second.login) == ("http://plain.test/simple", None)
    assert [page.url for page in indexes.link_pages] == ["https://links.test/page.html"]
    assert indexes.find_links == indexes.directories == (str(wheels),)
    assert indexes.constraints == (pins,)
    assert indexes.notes == (f"the local index {world.home}/gone does not exist",)
    access = indexes.python_access
    assert access.certificates == f"{world.home}/ca.pem"
    assert access.client_certificate == "/etc/me.pem"
    assert access.insecure_hosts == ("plain.test", "other.test:8080")
    assert access.proxies == dict.fromkeys(("http", "https"), "http://eve:pw@proxy.test:3128")
    assert access.no_proxy == ("a.test", ".b.test")
    assert (access.timeout_s, access.retries) == (7, 2)
    for secret in ("p@ss", "p%40ss", "pw"):
        assert secret not in repr(indexes)


def test_local_indexes_and_the_directories_that_their_pages_lead_to(world: World) -> None:
    page = '<a href="../../files/demo-1.0.whl">x</a><a href="https://a.test/y">y</a>'
    world.write("mirror/simple/demo/index.html", f'{page}<a href="/etc/passwd/../x">z</a>')
    world.write("mirror/files/demo-1.0.whl", "")
    world.write("mirror/secret/key", "")
    simple = str(world.root / "mirror/simple")
    for text in (f"file://{simple}", simple):
        indexes = world.read({"PIP_EXTRA_INDEX_URL": text})
        assert urls(indexes) == [PYPI, f"file://{simple}"]
        assert indexes.directories == (simple, str(world.root / "mirror/files"))


def test_netrc_has_credentials_for_indexes_and_for_listed_hosts(world: World) -> None:
    world.write(
        "home/.netrc",
        "machine index.test login ada password secret\n"
        "machine other.test login bob password hidden\ndefault login x password y\n",
    )
    indexes = world.read({"PIP_INDEX_URL": "https://index.test/simple"})
    assert indexes.python[0].login == ("ada", "secret")
    assert set(indexes.logins) == {"index.test", "other.test"}
    assert world.read().python[0].login is None
    chosen = world.write("n", "machine pypi.org login eve password pw\n")
    assert world.read({"NETRC": chosen}).python[0].login == ("eve", "pw")
    world.write("home/.netrc", "machine index.test login ada pasword secret\n")
    assert world.read().notes == (f"{world.home}/.netrc is not a valid netrc and was not read",)


UV = """
index-strategy = "unsafe-best-match"
allow-insecure-host = ["plain.test"]
[[index]]
name = "internal-1"
url = "https://internal.test/simple"
[[index]]
url = "https://explicit.test/simple"
explicit = true
[[index]]
name = "flat"
url = "https://flat.test/page"
format = "flat"
[[index]]
url = "https://default.test/simple"
default = true
"""


def test_uv_s_configuration_counts_where_it_names_an_index(world: World) -> None:
    world.write("home/.config/pip/pip.conf", "[global]\nindex-url = https://pip.test/\n")
    world.write("home/.config/uv/uv.toml", 'index-strategy = "unsafe-best-match"\n')
    assert urls(world.read()) == ["https://pip.test/"]
    world.write("home/.config/uv/uv.toml", UV)
    environ = {"UV_INDEX_INTERNAL_1_USERNAME": "ada", "UV_INDEX_INTERNAL_1_PASSWORD": "secret"}
    indexes = world.read(environ)
    assert urls(indexes) == ["https://default.test/simple", "https://internal.test/simple"]
    internal = indexes.python[1]
    assert internal.name == "internal-1"
    assert internal.login == ("ada", "secret")
    assert [page.url for page in indexes.link_pages] == ["https://flat.test/page"]
    assert indexes.index_strategy == "unsafe-best-match"
    assert indexes.python_access.insecure_hosts == ("plain.test",)
    assert urls(world.read({"UV_NO_CONFIG": "1"})) == ["https://pip.test/"]
    variables = {
        "UV_DEFAULT_INDEX": "https://a:b@v.test/",
        "UV_INDEX": "x=https://w.test/ https://x.test/",
    }
    assert urls(world.read({**variables, "UV_NO_CONFIG": "1"})) == [
        *("https://v.test/", "https://w.test/", "https://x.test/")
    ]
    world.write("etc/uv/uv.toml", '[pip]\nindex-url = "https://machine.test/"\n')
    os.unlink(f"{world.home}/.config/uv/uv.toml")
    assert urls(world.read()) == ["https://machine.test/"]


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_npm_s_configuration(world: World) -> None:
    world.write("etc/npmrc", "registry=https://machine.test\nstrict-ssl=false\nproxy=null\n")
    world.write(
        "home/.npmrc",
        f"""; a comment
        registry = "https://registry.test:8443/npm"
        //registry.test:8443/:_authToken=${{TOKEN}}
        @acme:registry=https://acme.test/
        //acme.test/:username=ada
        //acme.test/:_password={encoded("secret")}
        @other:registry = https://acme.test/other ; another
        //acme.test/other/:_auth={encoded("bob:hid:den")}
        cafile=~/ca.pem
        ca[]=first\\nline
        ca[]="second"
        https-proxy=http://proxy.test:8080
        noproxy=a.test,b.test
        fetch-timeout=300000
        fetch-retries=4
        nonsense
        """.replace("\n        ", "\n"),
    )
    indexes = world.read({"TOKEN": "npm_1", "HTTP_PROXY": "http://other.test", "PATH": ""})
    assert [(each.scope, each.url) for each in indexes.npm] == [
        ("", "https://registry.test:8443/npm/"),
        ("@acme", "https://acme.test/"),
        ("@other", "https://acme.test/other/"),
    ]
    assert indexes.npm_settings == {
        "npm_config_registry": "https://registry.test:8443/npm/",
        "npm_config_//registry.test:8443/:_authToken": "npm_1",
        "npm_config_@acme:registry": "https://acme.test/",
        "npm_config_//acme.test/:username": "ada",
        "npm_config_//acme.test/:_password": encoded("secret"),
        "npm_config_@other:registry": "https://acme.test/other/",
        "npm_config_//acme.test/other/:_auth": encoded("bob:hid:den"),
        "npm_config_ca": "first\nline\n\nsecond",
        "npm_config_strict-ssl": "false",
        "npm_config_fetch-timeout": "300000",
        "npm_config_fetch-retries": "4",
    }
    assert "npm_1" not in repr(indexes)
    access = indexes.npm_access
    assert access.certificates == f"{world.home}/ca.pem"
    assert access.proxies == {"http": "http://other.test", "https": "http://proxy.test:8080"}
    assert access.no_proxy == ("a.test", "b.test")
    world.write("home/.npmrc", "registry=https://ada:secret@registry.test/npm\n")
    (registry,) = (indexes := world.read({"PATH": ""})).npm
    assert registry.url == "https://registry.test/npm/"
    login = indexes.npm_settings["npm_config_//registry.test/npm/:_auth"]
    assert login == encoded("ada:secret")
    variable = {"npm_config_registry": "https://v.test/", "NPM_CONFIG_USERCONFIG": "/nowhere"}
    assert [index.url for index in world.read({**variable, "PATH": ""}).npm] == ["https://v.test/"]


@pytest.mark.node
def test_npm_itself_reads_the_same(world: World) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("not here: npm is missing")
    world.write(
        "home/.npmrc", "registry='https://a.test/x'\n@acme:registry=https://${WHO}.test/ # no\n"
    )
    environ = {"HOME": world.home, "PATH": os.environ["PATH"], "WHO": "who"}
    for key, expected in (("registry", None), ("@acme:registry", "https://who.test/")):
        done = subprocess.run(
            [npm, "config", "get", key],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
            cwd=world.root,
        )
        indexes = world.read(environ)
        index = indexes.npm[0 if key == "registry" else 1]
        assert index.url.rstrip("/") == done.stdout.strip().rstrip("/")
        assert expected in (None, index.url)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("home/.config/pip/pip.conf", "index-url = https://secret.test/"),
        ("home/.config/pip/pip.conf", "[global]\nindex-url = secret\n"),
        ("home/.config/pip/pip.conf", "[global]\nindex-url = https://u:secret@/simple\n"),
        ("home/.config/pip/pip.conf", "[global]\nconstraint = secret.txt\n"),
        ("home/.config/uv/uv.toml", "index = ["),
        ("etc/pip.conf", "[global]\nextra-index-url = ftp://secret/\n"),
        ("etc/pip.conf", "[global]\nindex-url = https://secret\x7f.test/\n"),
        ("etc/pip.conf", "[global]\nindex-url = https://secret@0x7f.1/\n"),
        ("etc/pip.conf", "[global]\nindex-url = https://secret@a@b.test/\n"),
        ("etc/pip.conf", f"[global]\nindex-url = https://secret.test/{'a' * 9000}\n"),
    ],
)
def test_no_index_is_left_out_in_silence(world: World, place: str, text: str) -> None:
    world.write(place, text)
    (problem,) = world.read().python_problems
    assert "secret" not in problem


def test_files_that_cannot_be_read(world: World) -> None:
    path = f"{world.home}/.config/pip/pip.conf"
    os.makedirs(os.path.dirname(path))
    os.mkfifo(path)
    assert world.read().python_problems == (f"{path} could not be read: it is not a regular file",)
    os.unlink(path)
    with open(path, "wb") as file:
        file.write(b"[global]\nindex-url = https://\xff.test/\n")
    assert world.read().python_problems == (f"{path} is not in UTF-8 and was not read",)
    with open(path, "wb") as file:
        file.write(b"#" * (1 << 21))
    assert "larger than" in world.read().python_problems[0]


@pytest.mark.parametrize(
    ("hosts", "channel", "named"),
    [
        (["*:*"], "http://169.254.169.254/latest", False),
        (["*"], "https://rebound.test/x", False),
        (["*"], "https://conda.anaconda.org/bioconda", True),
        (["*"], "https://own.test/x", True),
    ],
)
def test_a_channel_of_a_project_is_not_what_the_user_names(
    world: World, hosts: list[str], channel: str, named: bool
) -> None:
    """A pattern for many hosts permits what a project names: at public addresses only."""
    listed = AllowList.of(hosts)
    world.write("home/.condarc", "channel_alias: https://own.test/")
    indexes = read_indexes(
        {}, world.home, etc=world.etc, channels=[channel], permits=listed.permits
    )
    assert [each.url for each in indexes.conda] == [f"{channel}/"]
    settings = conda_settings(indexes, listed)
    assert bool(settings.hosts) is named
    user = BuildNetwork("x", settings, hosts).user
    url = parse_url(channel)[0]
    assert user.named.permits(url.host, url.port) is named


LINES = st.text(st.sampled_from("abc=[]\"'\\;#${}:@/_ \n\r"), max_size=60)


@settings(max_examples=5)
@given(
    pip=st.text(max_size=60) | LINES,
    uv=st.text(max_size=60) | st.just(UV),
    npm=LINES,
    netrc=st.text(max_size=60),
    url=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
)
def test_any_configuration_is_read_or_a_problem(
    tmp_path_factory: pytest.TempPathFactory, pip: str, uv: str, npm: str, netrc: str, url: str
) -> None:
    world = World(tmp_path_factory.mktemp("any"))
    places = {
        "home/.config/pip/pip.conf": f"[global]\n{pip}",
        "home/.config/uv/uv.toml": uv,
        "home/.npmrc": npm,
        "home/.netrc": netrc,
    }
    for place, text in places.items():
        path = world.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(errors="surrogatepass"))
    environ = {"PIP_EXTRA_INDEX_URL": url, "UV_INDEX": url, "npm_config_registry": url, "PATH": ""}
    world.read(environ)
