"""Tests of the Nix layer are skipped if there is no Nix, and CI does not accept that."""

from __future__ import annotations

from pathlib import Path

import pytest

import bootstrap
from nix.conftest import why_no_nix
from rungates import ALLOWED_REASON

MISSING = "no nix, jq, tree, file, bc, gawk"


@pytest.fixture(autouse=True)
def nothing_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("may_install", "failed", "then"),
    [
        (True, "", "; `make test` brings it"),
        (True, '["nix-bin"]', ", and set-up could not install nix-bin"),
        (
            False,
            "",
            ", and set-up may not install it (Debian: apt-get install nix-bin jq tree file",
        ),
    ],
)
def test_no_nix_is_said_and_accepted_nowhere(
    nothing_on_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    may_install: bool,
    failed: str,
    then: str,
) -> None:
    monkeypatch.setattr(bootstrap, "may_install_test_packages", lambda: may_install)
    if failed:
        (nothing_on_path / bootstrap.NOT_INSTALLED).write_text(failed)
    reason = why_no_nix()
    assert reason is not None
    assert reason.startswith(MISSING + then)
    assert not reason.startswith(ALLOWED_REASON)
