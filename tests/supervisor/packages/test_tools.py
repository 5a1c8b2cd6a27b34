"""uv is found: the one that nsm brings, else one on PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import uv

from nsmd.packages.python_packages import find_uv


def test_the_uv_of_nsms_own_installation_comes_first(tmp_path: Path) -> None:
    (tmp_path / "uv").symlink_to("/bin/true")
    assert find_uv(str(tmp_path)) == os.path.realpath(uv.find_uv_bin())


def test_without_a_uv_of_its_own_nsm_takes_the_one_on_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On other machines there is the module without its program."""

    def missing() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(uv, "find_uv_bin", missing)
    assert find_uv(f".:{tmp_path}") is None
    (tmp_path / "uv").symlink_to("/bin/true")
    assert find_uv(f".:{tmp_path}") == os.path.realpath("/bin/true")
