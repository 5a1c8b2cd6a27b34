"""Tools: the provenance of a release, subjects of commits, and the stand-ins' store."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import commit_message
import release
import standin

if TYPE_CHECKING:
    from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_provenance_names_the_commit_the_tools_and_who_built() -> None:
    said = release.provenance("c0ffee", "https://example.org/nsm", "mailto:a@example.org", STARTED)
    source, *inputs = said["buildDefinition"]["resolvedDependencies"]
    assert source == {"uri": "git+https://example.org/nsm", "digest": {"gitCommit": "c0ffee"}}
    pins = hashlib.sha256((ROOT / "tools/constraints.txt").read_bytes()).hexdigest()
    assert {"uri": "tools/constraints.txt", "digest": {"sha256": pins}} in inputs
    assert said["runDetails"]["builder"] == {"id": "mailto:a@example.org"}
    assert said["runDetails"]["metadata"]["startedOn"] == "2026-01-02T03:04:05+00:00"


def test_builds_that_differ_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds = iter([{"a.whl": "1", "a.tar.gz": "2"}, {"a.whl": "3", "a.tar.gz": "2"}])

    def build(directory: Path) -> dict[str, str]:
        return next(builds)

    monkeypatch.setattr(release, "build", build)
    with pytest.raises(release.ReleaseError, match=r"two builds .* differ: a\.whl$"):
        release.build_twice(tmp_path)


# Subjects of commits.


GOOD = "http: send no body in HEAD responses"


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        (GOOD, ""),
        ("tests, types: mend what pyright finds", ""),
        ("Merge branch 'main'", ""),
        ("# a comment\n" + GOOD, ""),
        ("http: " + "x" * 67, "73 characters"),
        ("http: " + "x" * 66, ""),
        ("send no body in HEAD responses", "names no area"),
        ("http: Sent no body.", "ends with a dot"),
        ("http: fixed HEAD", "no imperative"),
        ("http: what answers HEAD has no body", "no imperative"),
    ],
)
def test_subjects(subject: str, said: str) -> None:
    found = commit_message.problem(f"{subject}\n\nThe body may say anything.\n")
    assert said in found
    assert bool(said) is bool(found)


# The stand-ins' store: a directory that nobody else has put there.


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
