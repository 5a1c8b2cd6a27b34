"""`nsm uninstall`, in a home directory as people have them."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from nsm.setup import record

if TYPE_CHECKING:
    from pathlib import Path

    from cli_bench import Nsm

VARIABLES = ("CODEX_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
CONFIG = '[hosts.big]\naddress = "ssh://me@big.example.org"\n'


@pytest.fixture(autouse=True)
def _home(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home directory with nothing in it, at which no variable points."""
    assert path  # whose variable is taken away again
    for name in (*VARIABLES, "NSM_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))


def test_everything_that_nsm_made_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nsm: Nsm
) -> None:
    (tmp_path / "run/nsm/hosts").mkdir(parents=True, mode=0o700)
    (tmp_path / "run/nsm").chmod(0o700)
    (tmp_path / ".config/nsm").mkdir(parents=True)
    (tmp_path / ".config/nsm/config.toml").write_text(CONFIG)
    (tmp_path / ".config/other").write_text("other")
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex/config.toml").write_text("a = 1\n")
    packages = tmp_path / ".local/share/nsm/envs/x"
    packages.mkdir(parents=True)
    (packages / "file").write_text("x")
    packages.chmod(0o500)
    (tmp_path / ".local/state/nsm/work/work").mkdir(parents=True, mode=0)
    assert nsm("setup", "codex", "--yes").code == 0
    before = sorted(tmp_path.rglob("*"))
    said = nsm("uninstall")
    assert said.code == 2  # nobody is there to be asked
    assert f"- Codex: take nsm out of {tmp_path}/.codex/config.toml\n" in said.out
    assert f"- remove {tmp_path}/.local/share/nsm and all that is in it\n" in said.out
    assert sorted(tmp_path.rglob("*")) == before
    said = nsm("uninstall", "--yes")
    assert said.code == 0
    assert "ssh -t -l me -- big.example.org .local/share/nsm/host/bin/nsm uninstall" in said.out
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {".config/other", ".codex/config.toml"}
    assert (tmp_path / ".codex/config.toml").read_text() == "a = 1\n"
    assert not list(tmp_path.rglob("nsm*"))


def test_a_directory_that_nsm_socket_names_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nsm: Nsm
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NSM_SOCKET", str(tmp_path / "nsm/control.sock"))
    (tmp_path / "nsm").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home/.config").mkdir(parents=True)
    (tmp_path / "home/.config/nsm").symlink_to(tmp_path / "elsewhere")
    said = nsm("uninstall", "--yes")
    assert (said.code, "is a link, and stays" in said.err) == (1, True)
    assert (tmp_path / "nsm").exists()
    assert (tmp_path / "elsewhere").exists()


def test_a_file_of_several_agents_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nsm: Nsm
) -> None:
    assert nsm("setup", "codex", "cursor", "--yes").code == 0
    shutil.rmtree(tmp_path / ".local/state/nsm")  # with the records
    said = nsm("uninstall").out
    files = [line.rpartition(" ")[2] for line in said.splitlines() if "SKILL.md" in line]
    assert files
    assert sorted(set(files)) == sorted(files)


def test_a_directory_of_another_user_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nsm: Nsm
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "nsm").mkdir(mode=0o700)

    def locked(_waits: object) -> nullcontext[None]:
        return nullcontext()

    monkeypatch.setattr(record, "locked", locked)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    said = nsm("uninstall", "--yes")
    assert (said.code, f"{tmp_path}/nsm belongs to another user, and stays" in said.err) == (
        1,
        True,
    )
    assert (tmp_path / "nsm").exists()


def test_records_of_boxes_stay_until_these_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nsm: Nsm
) -> None:
    for name in (*VARIABLES, "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    record = tmp_path / "nsm/boxes/0123.sock"
    record.parent.mkdir(parents=True)
    record.touch()
    said = nsm("uninstall", "--yes")
    assert (said.code, "a box runs, or was killed" in said.err) == (1, True)
    assert record.exists()
