"""Locks that projects have themselves, whoever wrote them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsmd.jail.interpreters import FoundInterpreter
from nsmd.model.packages import WantedPackages
from nsmd.packages.locks import MAX_LOCK_BYTES, LockError
from nsmd.packages.requirements import ProjectLock, read_project_lock

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


def test_dependencies_may_form_a_ring(it: Project) -> None:
    ring = [
        package("a", more='dependencies = [{ name = "b" }]'),
        package("b", more='dependencies = [{ name = "a" }]'),
    ]
    it.write("uv.lock", uv_lock(*ring, root='dependencies = [{ name = "a" }]'))
    assert it.pins() == {"a": "1.0", "b": "1.0"}


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
    assert "no regular file" in it.why_not()
    path.unlink()
    path.mkdir()
    assert "no regular file" in it.why_not()
    path.rmdir()
    path.write_bytes(b"\xff")
    assert "not UTF-8" in it.why_not()
    with path.open("wb") as file:
        file.truncate(MAX_LOCK_BYTES + 1)
    assert "larger than" in it.why_not()
    path.unlink()
    path.symlink_to(it.folder / "gone")
    assert "symbolic link" in it.why_not()


def test_a_lock_of_poetry_is_refused_with_what_to_do(it: Project) -> None:
    it.write("poetry.lock", "")
    with pytest.raises(LockError, match=r"poetry.lock cannot be used: .*`poetry export"):
        it.read()
