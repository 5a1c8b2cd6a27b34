"""`nsm uninstall`, in a home directory as people have them."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from nsm.cli import main as cli
from nsm.setup import record

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = '[hosts.big]\naddress = "ssh://me@big.example.org"\n'


def test_everything_that_nsm_made_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("CODEX_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "NSM_SOCKET"):
        monkeypatch.delenv(name, raising=False)
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
    assert cli.main(["setup", "codex", "--yes"]) == 0
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    assert cli.main(["uninstall"]) == 2  # nobody is there to be asked
    said = capsys.readouterr()
    assert f"- Codex: take nsm out of {tmp_path}/.codex/config.toml\n" in said.out
    assert f"- remove {tmp_path}/.local/share/nsm and all that is in it\n" in said.out
    assert sorted(tmp_path.rglob("*")) == before
    assert cli.main(["uninstall", "--yes"]) == 0
    said = capsys.readouterr()
    assert "ssh -t -l me -- big.example.org .local/share/nsm/host/bin/nsm uninstall" in said.out
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {".config/other", ".codex/config.toml"}
    assert (tmp_path / ".codex/config.toml").read_text() == "a = 1\n"
    assert not list(tmp_path.rglob("nsm*"))


def test_a_directory_that_nsm_socket_names_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NSM_SOCKET", str(tmp_path / "nsm/control.sock"))
    for name in ("CODEX_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "nsm").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home/.config").mkdir(parents=True)
    (tmp_path / "home/.config/nsm").symlink_to(tmp_path / "elsewhere")
    assert cli.main(["uninstall", "--yes"]) == 1
    assert "is a link, and stays" in capsys.readouterr().err
    assert (tmp_path / "nsm").exists()
    assert (tmp_path / "elsewhere").exists()


def test_a_file_of_several_agents_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CODEX_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "NSM_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["setup", "codex", "cursor", "--yes"]) == 0
    shutil.rmtree(tmp_path / ".local/state/nsm")  # with the records
    capsys.readouterr()
    assert cli.main(["uninstall"]) == 2
    said = capsys.readouterr().out
    files = [line.rpartition(" ")[2] for line in said.splitlines() if "SKILL.md" in line]
    assert files
    assert sorted(set(files)) == sorted(files)


def test_a_directory_of_another_user_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("CODEX_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "NSM_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "nsm").mkdir(mode=0o700)

    def locked(_waits: object) -> nullcontext[None]:
        return nullcontext()

    monkeypatch.setattr(record, "locked", locked)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cli.main(["uninstall", "--yes"]) == 1
    assert f"{tmp_path}/nsm belongs to another user, and stays" in capsys.readouterr().err
    assert (tmp_path / "nsm").exists()


def test_records_of_boxes_stay_until_these_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = tmp_path / "nsm/boxes/0123.sock"
    record.parent.mkdir(parents=True)
    record.touch()
    assert cli.main(["uninstall", "--yes"]) == 1
    assert "a box runs, or was killed" in capsys.readouterr().err
    assert record.exists()
