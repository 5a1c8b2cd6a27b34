"""Path of the socket: the variables one by one, and directories that must not be trusted."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from nsm import paths
from nsm.paths import PathError

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("NSM_SOCKET", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "HOME")
UID = os.getuid()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable set."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_a_tilde_in_an_editors_entry_is_the_home_directory(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("HOME", "/home/ada")
    environment.setenv("NSM_SOCKET", "~/run/c.sock")
    environment.setenv("NSM_SUPERVISOR", "~/bin/nsm-supervisor")
    assert paths.socket_path() == "/home/ada/run/c.sock"
    assert paths.runtime_dir() == "/home/ada/run"
    assert paths.supervisor_command() == ("/home/ada/bin/nsm-supervisor",)


def test_run_user_must_be_ours(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another user id has neither its directory here nor a name in the password database."""
    environment.setattr(os, "getuid", lambda: 54321)
    assert paths.runtime_dir() == "/tmp/nsm-54321"
    with pytest.raises(PathError, match="Set HOME"):
        paths.home()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("relative/x.sock", "relative"),
        ("/run/nsm/", "a directory"),
        ("/" + "x" * 107, "108 bytes"),
        ("/" + "ü" * 54, "109 bytes"),
    ],
)
def test_socket_paths_that_cannot_be(environment: pytest.MonkeyPatch, path: str, why: str) -> None:
    environment.setenv("NSM_SOCKET", path)
    with pytest.raises(PathError, match=why):
        paths.socket_path()
    environment.setenv("NSM_SOCKET", "/" + "x" * 106)
    assert len(paths.socket_path()) == 107


def test_the_runtime_directory_is_made_for_us_alone(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    before = os.umask(0)
    try:
        made = paths.ensure_runtime_dir()
    finally:
        os.umask(before)
    assert made == str(tmp_path / "missing" / "nsm")
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
    assert paths.ensure_runtime_dir() == made  # and taken as it is the next time


def make_link(path: Path) -> None:
    target = path.with_name("target")
    target.mkdir(mode=0o700)
    path.symlink_to(target)


def make_broken_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def make_file(path: Path) -> None:
    path.touch()


def make_open_to_group(path: Path) -> None:
    path.mkdir()
    path.chmod(0o710)


def make_open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_link, "symbolic link"),
        (make_broken_link, "symbolic link"),
        (make_file, "not a directory"),
        (make_open_to_group, "mode 0710"),
        (make_open_to_all, "mode 0777"),
    ],
)
def test_an_unsafe_runtime_directory_is_refused(tmp_path: Path, make: object, why: str) -> None:
    path = tmp_path / "nsm"
    assert callable(make)
    make(path)
    with pytest.raises(PathError, match=why):
        paths.ensure_private_dir(str(path))


def test_a_foreign_runtime_directory_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(PathError, match=f"belongs to user {UID}, not to you"):
        paths.ensure_private_dir(str(tmp_path))


@pytest.mark.parametrize("variable", ["XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"])
def test_another_place_is_named_by_the_variable_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").touch()
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    with pytest.raises(PathError, match=rf"can't be made.*set {variable} to"):
        paths.ensure_private_dir(str(tmp_path / "file" / "nsm" / "setup"))


def test_several_replace_a_file_at_once(tmp_path: Path) -> None:
    """Leave the file of one of them, and nothing else."""
    file = tmp_path / "facts"
    texts = [bytes([number]) * 100_000 for number in range(8)]

    def replace_often(text: bytes) -> None:
        for _ in range(50):
            paths.replace_file(str(file), text)
            assert file.read_bytes() in texts

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(replace_often, texts))
    assert os.listdir(tmp_path) == ["facts"]


def test_a_fifo_in_the_place_of_a_new_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "facts.nsm-new")
    with pytest.raises(OSError, match=r"facts\.nsm-new"):
        paths.replace_file(str(tmp_path / "facts"), b"new")
    assert not (tmp_path / "facts").exists()


def program(folder: Path, name: str = "git") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("")
    (folder / name).chmod(0o755)
    return str(folder / name)


def test_programs_of_the_host_are_not_taken_from_where_code_can_write(tmp_path: Path) -> None:
    project = tmp_path / "project"
    program(project / "node_modules" / ".bin")
    program(project)
    (tmp_path / "linked").symlink_to(project / "node_modules" / ".bin")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "git").symlink_to(project / "git")
    (tmp_path / "folder" / "git").mkdir(parents=True)
    good = program(tmp_path / "good")
    evil = (f"{project}/node_modules/.bin", str(project), ".", "", f"{tmp_path}/linked")
    path = ":".join((*evil, f"{tmp_path}/links", f"{tmp_path}/folder", f"{tmp_path}/good"))
    assert paths.which("git", path, str(project)) == good
    assert paths.which("git", ":".join(evil), str(project)) is None
