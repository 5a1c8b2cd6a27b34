"""Detection of changes to a flake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsmd.environments.devshell import evaluation
from nsmd.environments.devshell.evaluation import MAX_FILES, FlakeState, read_flake


@pytest.fixture
def flake(tmp_path: Path) -> Path:
    (tmp_path / "flake.nix").write_text("{}")
    (tmp_path / "nix" / "shells").mkdir(parents=True)
    (tmp_path / "src").mkdir()
    return tmp_path


def key(project: Path, known: FlakeState | None = None) -> str:
    state = read_flake(str(project), known)
    assert state is not None
    return state.key


@pytest.mark.parametrize(
    "name",
    ["flake.nix", "flake.lock", "devshell.toml", "shell.nix", "nix/a.nix", "nix/shells/b.nix"],
)
def test_what_a_shell_is_made_from_is_noticed(name: str, flake: Path) -> None:
    first = read_flake(str(flake))
    (flake / name).write_text("one")
    second = read_flake(str(flake), first)
    assert first is not None
    assert second is not None
    assert second.key != first.key
    (flake / name).write_text("two")
    third = key(flake, second)
    assert third not in (first.key, second.key)
    (flake / name).write_text("one")
    assert key(flake, second) == second.key


def test_a_file_of_the_same_size_is_noticed(flake: Path) -> None:
    first = read_flake(str(flake))
    new = flake / "new"
    new.write_text("[]")
    os.utime(new, ns=(0, os.stat(flake / "flake.nix").st_mtime_ns))
    new.replace(flake / "flake.nix")
    assert first is not None
    assert key(flake, first) != first.key


def test_other_files_make_no_difference(flake: Path) -> None:
    first = read_flake(str(flake))
    assert first is not None
    (flake / "README.md").write_text("x")
    (flake / "src" / "x.nix").write_text("x")
    assert key(flake, first) == first.key


def test_it_stays_bounded_and_waits_for_nobody(flake: Path) -> None:
    os.mkfifo(flake / "flake.lock")
    os.mkfifo(flake / "pipe.nix")
    deep = flake / "nix" / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "x.nix").write_text("x")
    (flake / "nix" / "circle").symlink_to(flake)
    for number in range(MAX_FILES + 10):
        (flake / "nix" / f"{number}.nix").write_text("x")
    state = read_flake(str(flake))
    assert state is not None
    assert len(state.signature) < MAX_FILES + 20
    assert not any("/c/" in row[0] for row in state.signature)


def test_it_does_not_walk_everything_nor_read_it(
    flake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2 * evaluation.MAX_DIRECTORIES):
        (flake / "nix" / f"d{number}").mkdir()
    for name in ("a.nix", "b.nix", "c.nix"):
        (flake / name).write_text("x" * 100)
    (flake / "d.nix").symlink_to("nowhere")
    monkeypatch.setattr(evaluation, "MAX_BYTES", 150)
    state = read_flake(str(flake))
    assert state is not None
    assert len(state.signature) < evaluation.MAX_DIRECTORIES + 20
    (flake / "c.nix").write_text("y" * 100)
    assert key(flake) == state.key, "what is beyond the bound is not read"
    (flake / "b.nix").write_text("y" * 100)
    assert key(flake) != state.key
