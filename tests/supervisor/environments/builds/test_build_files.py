"""The file that outlives the supervisor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nsmd.environments import saved_records
from nsmd.environments.builds.build_files import SavedBuild, load_builds

ROW = SavedBuild(
    key="a1", reference="github:me/envs#x", added=True, path="/nix/store/x", link="a1-1"
)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"version": 9, "environments": []}'])
def test_a_broken_one_is_set_aside(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "environments.json"
    path.write_bytes(data)
    assert load_builds(str(path)) == {}
    assert (tmp_path / "environments.json.broken").read_bytes() == data


@pytest.mark.parametrize(
    "row",
    [
        None,
        {},
        {"key": "", "reference": "x"},
        {"key": "a", "reference": 7},
        {"key": "../a", "reference": "x"},
        {"key": "a", "reference": "x", "link": "../../etc"},
        {"key": "a", "reference": "x", "added": 1},
    ],
)
def test_a_broken_row_is_left_out(tmp_path: Path, row: object) -> None:
    path = tmp_path / "environments.json"
    good: dict[str, Any] = {"key": "b", "reference": "y", "built_s": 7, "from_the_future": {}}
    path.write_text(json.dumps({"version": 1, "environments": [row, good]}))
    assert load_builds(str(path)) == {"b": SavedBuild(key="b", reference="y", built_s=7.0)}


def test_a_full_disk_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "environments.json"
    saved_records.save(str(path), "environments", [ROW])
    (tmp_path / "environments.json.nsm-new").mkdir()
    with pytest.raises(OSError, match="directory"):
        saved_records.save(str(path), "environments", [])
    assert load_builds(str(path)) == {"a1": ROW}
