"""Place of the stand-ins' store: a directory that nobody else has put there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import standin

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", ["link", "file"])
def test_files_and_links_of_others_are_left_alone(tmp_path: Path, kind: str) -> None:
    """Anybody can write to /var/tmp."""
    root = tmp_path / "place"
    ours = tmp_path / "ours"
    (ours / "within").mkdir(parents=True)
    (ours / "within").chmod(0o750)
    if kind == "link":
        root.symlink_to(ours)
    else:
        root.write_text("")
    place = standin.Place(root)
    with pytest.raises(standin.StandInError, match="place is no directory"), standin.locked(place):
        pytest.fail("it was taken")
    with pytest.raises(standin.StandInError, match="place is no directory"):
        standin.remove(place)
    assert (ours / "within").stat().st_mode & 0o777 == 0o750


def test_a_store_of_another_user_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = standin.Place(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(standin.StandInError, match="belongs to another user"):
        standin.remove(place)
