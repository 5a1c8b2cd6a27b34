"""Locks of Node packages: read, checked, and written again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nsmd.packages import node_packages
from nsmd.packages.index_reading import NPM
from nsmd.packages.locks import LockError

HASH = "sha512-AAAA"
LEFT = {"version": "1.0.0", "integrity": HASH, "resolved": "https://x.test/left/-/left-1.0.0.tgz"}


def lock(**rows: Any) -> str:
    packages = {
        "": {"dependencies": {"left": "^1"}},
        **{f"node_modules/{k}": v for k, v in rows.items()},
    }
    return json.dumps({"lockfileVersion": 3, "packages": packages})


def test_a_file_at_its_usual_place_is_asked_of_the_users_registry() -> None:
    elsewhere = {**LEFT, "resolved": "https://x.test/files/1"}
    read = node_packages.parse(lock(left=LEFT, other=elsewhere))
    assert read.packages["node_modules/left"]["resolved"] == f"{NPM}left/-/left-1.0.0.tgz"
    assert "resolved" not in read.packages["node_modules/other"]
    files = read.files({"": "http://proxy.test/", "@acme": "http://acme.test/"})
    rows = json.loads(files["package-lock.json"])["packages"]
    assert rows["node_modules/left"]["resolved"] == "http://proxy.test/left/-/left-1.0.0.tgz"
    assert json.loads(files["package.json"])["dependencies"] == {"left": "^1"}


def test_a_lock_is_read_as_it_was_written() -> None:
    resolved = node_packages.resolved(lock(left=LEFT), "sha256:abc")
    assert resolved.root == {"dependencies": {"left": "1.0.0"}}
    assert node_packages.parse(resolved.text("web")) == resolved
    assert "nsm env update web" in resolved.text("web")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"version": "1.0.0"}, "'left' has no hash"),
        ({"version": "1.0.0", "integrity": "md5-AA"}, "'left' has no hash"),
        ({"integrity": HASH}, "'left' has no version"),
        ({**LEFT, "version": "../1"}, "'left' has no version"),
        ({"link": True, "resolved": "packages/left"}, "comes from a directory or from git"),
        ({**LEFT, "resolved": "git+ssh://git@x.test/left.git#1"}, "from a directory or from git"),
        (["left"], "is not an object"),
    ],
)
def test_a_package_that_no_registry_has_is_refused(row: Any, why: str) -> None:
    with pytest.raises(LockError, match=why):
        node_packages.parse(lock(left=row))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it is not a JSON object"),
        ('{"dependencies": {}}', "npm 7 or newer"),
        ('{"packages": {"": {"dependencies": []}}}', "dependencies is not an object"),
        ('{"packages": {"packages/a": {}}}', "workspaces are not supported"),
        ('{"packages": {"node_modules/../../x": {}}}', "workspaces are not supported"),
    ],
)
def test_a_file_that_is_no_lock_is_refused(text: str, why: str) -> None:
    with pytest.raises(LockError, match=why):
        node_packages.parse(text)


def test_no_lock_of_a_project_is_read_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(lock(left=LEFT))
    for name in ("package.json", "package-lock.json"):
        (tmp_path / name).symlink_to("elsewhere")
        with pytest.raises(LockError, match="it is a symbolic link"):
            node_packages.read_project(str(tmp_path / "package-lock.json"))
        (tmp_path / name).unlink()
        (tmp_path / name).write_text(lock(left=LEFT))
    assert node_packages.read_project(str(tmp_path / "package-lock.json")) is not None
