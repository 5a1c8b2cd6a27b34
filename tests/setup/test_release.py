"""The provenance of a release, as those who sign and check it read it."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

import release

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
