"""Lists and locks that projects have themselves, of pip, uv, npm and conda, and hostile ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from nsmd.jail.interpreters import FoundInterpreter
from nsmd.model.packages import WantedPackages
from nsmd.packages import conda_packages, locks, node_packages, requirements
from nsmd.packages.conda_packages import PLATFORM, CondaLock, CondaWanted
from nsmd.packages.conda_packages import read as read_conda
from nsmd.packages.index_reading import NPM
from nsmd.packages.locks import MAX_LOCK_BYTES, LockError
from nsmd.packages.requirements import ProjectLock, read_project_lock
from nsmd.packages.text_files import YamlError, parse_yaml


def test_a_pipe_does_not_keep_a_build_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(
        requirements.RequirementsError, match="pipe cannot be used: it is not a regular file"
    ):
        requirements.read(WantedPackages(requirements=str(pipe)))
    with pytest.raises(locks.LockError, match="not a regular file"):
        locks.read(str(pipe), locks.parse)


def test_a_list_shows_nothing_of_a_secret(tmp_path: Path) -> None:
    """Code in a session may have written the list, and gets to read why there are no packages."""
    (tmp_path / "secret").write_text("TOKEN = secret\n")
    (tmp_path / "link").symlink_to("secret")
    with pytest.raises(requirements.RequirementsError, match="it is a symbolic link"):
        requirements.read(WantedPackages(requirements=str(tmp_path / "link")))
    (tmp_path / "list").write_text("-r secret\n")
    with pytest.raises(requirements.RequirementsError, match="secret: line 1: it") as refused:
        requirements.read(WantedPackages(requirements=str(tmp_path / "list")))
    assert "TOKEN" not in str(refused.value)


@pytest.mark.parametrize("included", ["../token", "sub/../../token", "{top}/token"])
def test_a_list_includes_no_file_from_elsewhere(tmp_path: Path, included: str) -> None:
    """A token would be taken for the name of a package, and asked for at the index."""
    (tmp_path / "token").write_text("abc123\n")
    (tmp_path / "project/sub").mkdir(parents=True)
    file = tmp_path / "project/list.txt"
    file.write_text(f"-r {included.format(top=tmp_path)}\n")
    with pytest.raises(requirements.RequirementsError, match=r"line 1: .* outside of .*/project:"):
        requirements.read(WantedPackages(requirements=str(file)))


def test_a_list_includes_no_file_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/token").write_text("abc123\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/sub").symlink_to("../private")
    file = tmp_path / "project/list.txt"
    file.write_text("-r sub/token\n")
    with pytest.raises(requirements.RequirementsError, match="symbolic link, or behind one"):
        requirements.read(WantedPackages(requirements=str(file)))


def test_lists_include_one_another_below_one_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "list.txt").write_text("a\n-r sub/more.txt\n")
    (tmp_path / "sub/more.txt").write_text("b\n-r ../last.txt\n")
    (tmp_path / "last.txt").write_text("c\n")
    of_all = WantedPackages(requirements=str(tmp_path / "list.txt"))
    assert requirements.read(of_all) == ["a", "b", "c"]
    inner = str(tmp_path / "sub/more.txt")
    of_copy = WantedPackages(requirements=inner, included_below=str(tmp_path))
    assert requirements.read(of_copy) == ["b", "c"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("project = 3", "project is not a table"),
        ("project.dependencies = 'six'", "project.dependencies is not a list"),
        ("project.dependencies = [1]", "1 is not a requirement"),
        ("project = ", "is not valid TOML"),
        (f"project = {'[' * 100_000}", "is not valid TOML"),
        ("[tool]", "names no package"),
    ],
)
def test_a_project_without_dependencies(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    with pytest.raises(requirements.RequirementsError, match=why):
        requirements.read(WantedPackages(project=str(file)))


@pytest.mark.parametrize("line", [f"six==1.16.0 --hash=sha256:{'0' * 64}", "six --hash=sha512:0"])
def test_no_hash_is_dropped(tmp_path: Path, line: str) -> None:
    """Resolving would install another file than the one that somebody has agreed to."""
    file = tmp_path / "requirements.txt"
    file.write_text(f"humanize\n{line}\n")
    with pytest.raises(requirements.RequirementsError, match="line 2 has a hash; then each line"):
        requirements.read(WantedPackages(requirements=str(file)))


def test_extras_and_groups_of_a_project_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[project]\ndependencies = ["a"]\n[project.optional-dependencies]\nFast_IO = ["b>=1"]\n'
        '[dependency-groups]\ntest = ["c"]\nall = [{include-group = "test"}]\n'
    )

    def chosen(*extras: str, groups: tuple[str, ...] = ()) -> list[str]:
        return requirements.read(WantedPackages(project=str(file), extras=extras, groups=groups))

    assert chosen() == ["a"]
    assert chosen("fast-io", groups=("test",)) == ["a", "b>=1", "c"]
    with pytest.raises(requirements.RequirementsError, match="has no slow; it has fast-io"):
        chosen("slow")
    with pytest.raises(requirements.RequirementsError, match="is not a requirement"):
        chosen(groups=("all",))


HASH = "sha256:" + "a" * 64
INDEX = 'source = { registry = "https://pypi.org/simple" }'
FILES = f'wheels = [{{ url = "https://example.org/x.whl", hash = "{HASH}" }}]'


def python(version: str = "3.11.2") -> FoundInterpreter:
    numbers = tuple(int(number) for number in version.split("."))
    return FoundInterpreter(program="/usr/bin/python3", version=numbers, prefixes=())


def package(name: str, version: str = "1.0", more: str = "", source: str = INDEX) -> str:
    return f'[[package]]\nname = "{name}"\nversion = "{version}"\n{source}\n{FILES}\n{more}\n'


def uv_lock(*packages: str, root: str = "", head: str = "version = 1") -> str:
    mine = '[[package]]\nname = "mine"\nsource = { virtual = "." }'
    return "\n".join([head, *packages, mine, root])


class Project:
    """A project with files, and what nsm reads there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("pyproject.toml", "")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def read(
        self, version: str = "3.11.2", extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()
    ) -> ProjectLock:
        path = str(self.folder / "pyproject.toml")
        wanted = WantedPackages(project=path, extras=extras, groups=groups)
        lock = read_project_lock(wanted, python(version))
        assert lock is not None
        return lock

    def pins(
        self, version: str = "3.11.2", extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()
    ) -> dict[str, str]:
        return {pin.name: pin.version for pin in self.read(version, extras, groups).lock.pins}

    def why_not(self, extras: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> str:
        with pytest.raises(LockError) as caught:
            self.read(extras=extras, groups=groups)
        return str(caught.value)


@pytest.fixture
def it(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_lock_of_uv_has_what_uv_would_sync(it: Project) -> None:
    it.write(
        "uv.lock",
        uv_lock(
            package("a", more='dependencies = [{ name = "b", extra = ["fast"] }]'),
            package("b", more='[package.optional-dependencies]\nfast = [{ name = "c" }]'),
            package("c", "1.0", more="resolution-markers = [\"python_version < '3.12'\"]"),
            package("c", "2.0", more="resolution-markers = [\"python_version >= '3.12'\"]"),
            package("win"),
            package("tests"),
            package("docs"),
            root="""dependencies = [
                { name = "a" }, { name = "win", marker = "sys_platform == 'win32'" }
            ]
            [package.dev-dependencies]
            dev = [{ name = "tests" }]
            docs = [{ name = "docs" }]
            """,
        ),
    )
    assert it.pins() == {"a": "1.0", "b": "1.0", "c": "1.0", "tests": "1.0"}
    assert it.pins("3.12.0")["c"] == "2.0"
    assert it.read().lock.pins[0].hashes == ("a" * 64,)
    assert it.read().path == str(it.folder / "uv.lock")
    it.write("pyproject.toml", '[tool.uv]\ndefault-groups = ["docs"]')
    assert it.pins() == {"a": "1.0", "b": "1.0", "c": "1.0", "docs": "1.0"}
    it.write("pyproject.toml", '[tool.uv]\ndefault-groups = "all"')
    assert {"docs", "tests"} <= it.pins().keys()


def test_members_of_a_workspace_are_followed_and_left_out(it: Project) -> None:
    source = 'source = { editable = "libs/one" }'
    member = package("one", more='dependencies = [{ name = "a" }]', source=source)
    it.write("uv.lock", uv_lock(package("a"), member, root='dependencies = [{ name = "one" }]'))
    assert it.pins() == {"a": "1.0"}
    assert it.read().left_out == ("one",)
    it.write("uv.lock", f'version = 1\n[manifest]\nmembers = ["one"]\n{package("a")}{member}')
    assert it.pins() == {"a": "1.0"}


def test_extras_and_groups_of_a_lock_of_uv_can_be_chosen(it: Project) -> None:
    packages = map(package, ("a", "b", "dev", "docs", "helper"))
    root = (
        'dependencies = [{ name = "a" }]\n[package.optional-dependencies]\n'
        'Fast_IO = [{ name = "b", marker = "extra == \'fast-io\'" }]\n'
        '[package.dev-dependencies]\ndev = [{ name = "dev" }]\ndocs = [{ name = "docs" }]\n'
    )
    it.write("uv.lock", uv_lock(*packages, root=root))
    assert list(it.pins()) == ["a", "dev"]
    assert list(it.pins(extras=("fast.io",))) == ["a", "b", "dev"]
    assert list(it.pins(groups=("docs",))) == ["a", "dev", "docs"]
    assert "no extra slow; it has fast-io" in it.why_not(extras=("slow",))
    assert "no group test; it has dev, docs" in it.why_not(groups=("test",))


A = package("a")
OF_A = 'dependencies = [{ name = "a" }]'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "format None"),
        ("version = 2", "format 2"),
        (uv_lock(A, root=OF_A, head='version = 1\nrequires-python = ">=3.12"'), "--python"),
        ("version = 1", "no package for the project itself"),
        (uv_lock(), "no packages for this Python"),
        (uv_lock(root=OF_A), "0 packages a"),
        (uv_lock(A, package("a", "2.0"), root=OF_A), "2 packages a"),
        (uv_lock(A.replace(HASH, "md5:0"), root=OF_A), "no plain version and hashes for a"),
        (uv_lock(A.replace(f'hash = "{HASH}"', "size = 1"), root=OF_A), "no hash for a"),
        (uv_lock(package("a", "1; rm -rf"), root=OF_A), "no plain version and hashes for a"),
        (uv_lock(package("a", "1 --index-url=x"), root=OF_A), "no plain version"),
        (uv_lock(package("--pre"), root='dependencies = [{ name = "--pre" }]'), "no plain"),
        (
            uv_lock(root='dependencies = [{ name = "a", marker = "os.system(1)" }]'),
            "not an environment marker",
        ),
        (uv_lock(root="dependencies = [{ name = 7 }]"), "without a name"),
        ("version = 1\n[[package]]\nname = 7", "without a name"),
        ("version = " + "[" * 100_000, "not valid TOML"),
        ("version = 1" + "0" * 100_000, "not valid TOML"),
        ("x = {" * 100_000, "not valid TOML"),
        ('version = 1\npackage = "a"', "no package for the project itself"),
        ('version = 1\nmanifest = 7\npackage = [1, "a", []]', "no package for the project itself"),
    ]
    + [
        (uv_lock(package("a", source=f"source = {{ {source} }}"), root=OF_A), "from elsewhere")
        for source in (
            'git = "ssh://git@github.com/me/a"',
            'url = "https://example.org/a.whl"',
            'url = "file:///etc/passwd"',
            'path = "../../a.whl"',
        )
    ],
)
def test_a_lock_that_nobody_should_install_is_refused(it: Project, text: str, why: str) -> None:
    it.write("uv.lock", text)
    assert why in it.why_not()


def test_a_file_that_is_no_lock_is_refused(it: Project) -> None:
    path = it.folder / "uv.lock"
    os.mkfifo(path)
    assert "not a regular file" in it.why_not()
    path.unlink()
    path.mkdir()
    assert "not a regular file" in it.why_not()
    path.rmdir()
    path.write_bytes(b"\xff")
    assert "not UTF-8" in it.why_not()
    with path.open("wb") as file:
        file.truncate(MAX_LOCK_BYTES + 1)
    assert "larger than" in it.why_not()
    path.unlink()
    path.symlink_to(it.folder / "gone")
    assert "symbolic link" in it.why_not()


SHA512 = "sha512-AAAA"
LEFT = {"version": "1.0.0", "integrity": SHA512, "resolved": "https://x.test/left/-/left-1.0.0.tgz"}


def lock(**rows: Any) -> str:
    packages = {
        "": {"dependencies": {"left": "^1"}},
        **{f"node_modules/{k}": v for k, v in rows.items()},
    }
    return json.dumps({"lockfileVersion": 3, "packages": packages})


def test_a_file_at_its_usual_place_is_asked_of_the_users_registry() -> None:
    elsewhere = {**LEFT, "resolved": "https://x.test/files/1"}
    read = node_packages.parse(lock(left=LEFT, other=elsewhere))
    assert read.packages["node_modules/left"]["resolved"] == f"{NPM}left/-/left-1.0.0.tgz"
    assert "resolved" not in read.packages["node_modules/other"]
    files = read.files({"": "http://proxy.test/", "@acme": "http://acme.test/"})
    rows = json.loads(files["package-lock.json"])["packages"]
    assert rows["node_modules/left"]["resolved"] == "http://proxy.test/left/-/left-1.0.0.tgz"
    assert json.loads(files["package.json"])["dependencies"] == {"left": "^1"}


def test_a_lock_is_read_as_it_was_written() -> None:
    resolved = node_packages.resolved(lock(left=LEFT), "sha256:abc")
    assert resolved.root == {"dependencies": {"left": "1.0.0"}}
    assert node_packages.parse(resolved.text("web")) == resolved
    assert "nsm env update web" in resolved.text("web")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"version": "1.0.0"}, "'left' has no hash"),
        ({"version": "1.0.0", "integrity": "md5-AA"}, "'left' has no hash"),
        ({"integrity": SHA512}, "'left' has no version"),
        ({**LEFT, "version": "../1"}, "'left' has no version"),
        ({"link": True, "resolved": "packages/left"}, "comes from a directory or from git"),
        ({**LEFT, "resolved": "git+ssh://git@x.test/left.git#1"}, "from a directory or from git"),
        (["left"], "is not an object"),
    ],
)
def test_a_package_that_no_registry_has_is_refused(row: Any, why: str) -> None:
    with pytest.raises(LockError, match=why):
        node_packages.parse(lock(left=row))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is not a JSON object"),
        ('{"dependencies": {}}', "npm 7 or newer"),
        ('{"packages": {"": {"dependencies": []}}}', "dependencies is not an object"),
        ('{"packages": {"packages/a": {}}}', "workspaces are not supported"),
        ('{"packages": {"node_modules/../../x": {}}}', "workspaces are not supported"),
    ],
)
def test_a_file_that_is_no_lock_of_npm_is_refused(text: str, why: str) -> None:
    with pytest.raises(LockError, match=why):
        node_packages.parse(text)


def test_no_lock_of_a_project_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(lock(left=LEFT))
    for name in ("package.json", "package-lock.json"):
        (tmp_path / name).symlink_to("elsewhere")
        with pytest.raises(LockError, match="it is a symbolic link"):
            node_packages.read_project(str(tmp_path / "package-lock.json"))
        (tmp_path / name).unlink()
        (tmp_path / name).write_text(lock(left=LEFT))
    assert node_packages.read_project(str(tmp_path / "package-lock.json")) is not None


BASE = "https://conda.anaconda.org/conda-forge"
URL = f"{BASE}/{PLATFORM}/numpy-2.1.0-py312_0.conda"
CONDA_HASH = "ab" * 32


def conda_file(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def why_not_conda(folder: Path, name: str, text: str) -> str:
    with pytest.raises(LockError) as caught:
        read_conda(conda_file(folder, name, text))
    return str(caught.value)


def test_an_environment_yml_is_read(tmp_path: Path) -> None:
    text = (
        "name: science  # comment\nchannels:\n- conda-forge\n- nodefaults\ndependencies:\n"
        "- python=3.10\n- numpy>=1.20,<3\n- bioconda::samtools=1.19\n- 'scipy 1.*'\n- pip\n"
        '- "libblas=*=*openblas"\nprefix: /home/me/envs/science\n'
    )
    specs = ("python=3.10", "numpy>=1.20,<3", "bioconda::samtools=1.19", "scipy 1.*", "pip")
    assert read_conda(conda_file(tmp_path, "environment.yml", text)) == CondaWanted(
        channels=("conda-forge", "nodefaults", "bioconda"), specs=(*specs, "libblas=*=*openblas")
    )


def test_a_pixi_toml_is_read(tmp_path: Path) -> None:
    text = (
        '[workspace]\nchannels = ["conda-forge", {channel = "pytorch", priority = 1}]\n'
        '[dependencies]\npython = "3.12.*"\nnumpy = ">=2,<3"\nzlib = "*"\nexact = "1.2"\n'
        'mkl = {version = ">=1", build = "x*", channel = "pytorch"}\n'
        '[target.linux.dependencies]\nzlib = "1.3.*"\n[pypi-dependencies]\nme = {path = "."}\n'
    )
    assert read_conda(conda_file(tmp_path, "pixi.toml", text)) == CondaWanted(
        channels=("conda-forge", "pytorch"),
        specs=(
            *("python 3.12.*", "numpy >=2,<3", "zlib 1.3.*", "exact 1.2"),
            'pytorch::mkl >=1[build="x*"]',
        ),
    )
    assert "PyPI" in why_not_conda(tmp_path, "pixi.toml", text + 'requests = "*"\n')


def test_a_pixi_lock_is_read(tmp_path: Path) -> None:
    text = (
        "version: 6\nenvironments:\n  default:\n    channels:\n    - url: https://x.y/\n"
        f"    packages:\n      {PLATFORM}:\n      - conda: {URL}\n      - pypi: ./\n"
        f"      osx-arm64:\n      - conda: {BASE}/osx-arm64/numpy-2.1.0-py312_0.conda\n"
        f"packages:\n- conda: {URL}\n  sha256: {CONDA_HASH}\n- pypi: ./\n  name: me\n"
    )
    found = read_conda(conda_file(tmp_path, "pixi.lock", text))
    assert isinstance(found, CondaLock)
    assert found.body == f"{URL}#sha256:{CONDA_HASH}\n"
    assert found.left_out == ("./",)
    (tmp_path / "pixi.toml").write_text("hostile")
    assert read_conda(str(tmp_path / "pixi.toml")) == found, "the lock says all"
    assert "no hash" in why_not_conda(tmp_path, "pixi.lock", text.replace("sha256", "md5"))
    other = text.replace("pypi: ./", "pypi: https://files.example/requests-2.whl")
    assert "packages of PyPI, too (requests-2.whl)" in why_not_conda(tmp_path, "pixi.lock", other)


def test_a_lock_of_conda_lock_is_read(tmp_path: Path) -> None:
    row = (
        "- name: numpy\n  version: 2.1.0\n  manager: conda\n  platform: {platform}\n  url: {url}\n"
        "  hash:\n    md5: abc\n    sha256: {hash}\n  category: {category}\n"
    )
    mine = row.format(platform=PLATFORM, url=URL, hash=CONDA_HASH, category="main")
    other = row.format(platform="win-64", url="https://x/win-64/a-1-0.conda", hash="x", category="")
    docs = row.format(platform=PLATFORM, url="https://x", hash="x", category="docs")
    text = f"version: 1\nmetadata: {{}}\npackage:\n{mine}{other}{docs}"
    found = read_conda(conda_file(tmp_path, "conda-lock.yml", text))
    assert isinstance(found, CondaLock)
    assert found.body == f"{URL}#sha256:{CONDA_HASH}\n"
    pip = text.replace("manager: conda", "manager: pip")
    assert "packages of PyPI, too (numpy)" in why_not_conda(tmp_path, "conda-lock.yml", pip)
    assert "format" in why_not_conda(tmp_path, "conda-lock.yml", text.replace("version: 1\n", ""))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///etc/linux-64/a-1-0.conda", "not the URL"),
        (f"{BASE}/../x/noarch/a-1-0.conda", "not the URL"),
        (f"{BASE}/noarch/a-1-0.conda?x", "not the URL"),
        (f"{BASE}/noarch/a-1-0.exe", "not the URL"),
        (f"{BASE}/win-64/a-1-0.conda", f"this machine is {PLATFORM}"),
    ],
)
def test_other_urls_are_refused(url: str, words: str) -> None:
    with pytest.raises(LockError, match=words):
        conda_packages.pin(url, CONDA_HASH)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [x]\nb: [*a, *a]", "anchor in line 1"),
        ("<<: {a: b}\n<<: {c: d}", "twice"),
        ("[" * 100_000, "nested more than"),
        ("- " * 100_000 + "x", "nested more than"),
        ("a: b\n---\nc: d", "2 YAML documents"),
        ("", "0 YAML documents"),
        ("a: [b", "not valid YAML in line"),
        ("a: \x00", "not valid YAML"),
        ("? [a]\n: b", "not text"),
        ("{a: b, a: c}", "twice"),
        ("%YAML 9.9\n---\na", "not valid YAML"),
    ],
)
def test_hostile_yaml_is_refused(text: str, words: str) -> None:
    with pytest.raises(YamlError, match=words):
        parse_yaml(text)
