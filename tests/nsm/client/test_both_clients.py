"""Both clients have the same methods, and type checkers find a mistake in each of them."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING

import pytest

import nsm
from nsm.client import (
    environments,
    host,
    jobs,
    places,
    sandbox,
    session_files,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAIRS = [
    (nsm.Client, nsm.AsyncClient),
    (jobs.Job, jobs.AsyncJob),
    (sandbox.Sandbox, sandbox.AsyncSandbox),
    (session_files.SessionFiles, session_files.AsyncSessionFiles),
    (session_files.ChangeWatch, session_files.AsyncChangeWatch),
    (host.Ports, host.AsyncPorts),
    (host.Secrets, host.AsyncSecrets),
    (host.Bridge, host.AsyncBridge),
    (environments.Builds, environments.AsyncBuilds),
    (host.Boxes, host.AsyncBoxes),
    (
        environments.ProjectEnvironments,
        environments.AsyncProjectEnvironments,
    ),
]

NOT_AWAITED = {"close_in_child", "files", "in_project", "sandbox"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_same_methods_with_the_same_arguments(blocking: type, awaited: type) -> None:
    ours, theirs = public(blocking), public(awaited)
    assert ours - theirs <= {"autostart", "close"}
    assert theirs - ours <= {"aclose", "close_in_child", "wait_lost"}
    for name in ours & theirs:
        one, other = getattr(blocking, name), getattr(awaited, name)
        if not inspect.isfunction(one):
            continue
        assert [*inspect.signature(one).parameters] == [*inspect.signature(other).parameters], name
        assert not inspect.iscoroutinefunction(one)
        assert inspect.iscoroutinefunction(other) == (name not in NOT_AWAITED), name
        assert inspect.getdoc(one), name


# The current directory as the project, and why it may be none.


def test_a_name_that_is_not_utf_8_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(odd)
    monkeypatch.chdir(os.fsdecode(odd))
    assert places.current_project() is None
    assert "is not UTF-8" in places.why_no_project()
    assert "home directory" not in places.why_no_project()
