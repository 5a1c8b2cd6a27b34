"""Environments whose agents know less than ours, or that have none: what users see of that."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from artifact_files import write_artifact, write_older, write_run_only
from e2e_support import end_holder, supervisor, wait_gone
from realjail import needs_bwrap, open_directory

if TYPE_CHECKING:
    from collections.abc import Generator

    import nsm
    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, needs_bwrap, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared() -> Generator[Supervisor]:
    """A supervisor that has such environments."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, open_directory() as store:
        sandboxes = Path(path) / "config" / "nsm" / "sandboxes"
        sandboxes.mkdir(parents=True)
        for artifact in (
            write_artifact(store, "whole"),
            write_older(store, "older"),
            write_older(store, "tidy", interpreter="bash", wrapper="trap"),
            write_run_only(store, "once"),
        ):
            (sandboxes / artifact.name).symlink_to(artifact)
        with supervisor(Path(path)) as it:
            yield it


def test_an_older_session_keeps_its_state_until_its_time_limit(client: nsm.Client) -> None:
    client.run("x = 42", env="older", session="old")
    assert client.run("print(x)", env="older", session="old").stdout == "42\n"
    result = client.run("while True: pass", env="older", session="old", timeout_s=0.5)
    assert result.timed_out
    assert result.exit_code == 124
    assert result.interpreter_restarted
    assert "can only be stopped as a whole" in result.restart_reason
    again = client.run("print('x' in globals())", env="older", session="old")
    assert again.stdout == "False\n"
    assert "ran longer than 0.5 s" in str(again.session.replaced)
    client.kill(["old"])


def test_files_of_an_older_session_are_refused_with_what_to_do(shared: Supervisor) -> None:
    with shared.client() as client:
        client.run("x = 42", env="older", session="files")
    done = shared.run("nsm", "cp", "-", "files:x.txt", stdin="hello")
    assert done.returncode != 0
    assert "too old for that" in done.stderr
    assert "build it again" in done.stderr
    with shared.client() as client:
        assert client.run("print(x)", env="older", session="files").stdout == "42\n"
        client.kill(["files"])


def test_an_older_flood_is_shortened_and_the_session_lives(client: nsm.Client) -> None:
    result = client.run("x = 1; print('y' * 30_000_000)", env="older", session="flood")
    assert result.truncated["stdout"].omitted_bytes > 20_000_000
    assert len(result.stdout) < 5_000_000
    assert client.run("print(x)", env="older", session="flood").stdout == "1\n"
    client.kill(["flood"])


def test_a_killed_supervisor_leaves_no_process_of_artifacts_but_what_is_kept() -> None:
    with tempfile.TemporaryDirectory(prefix="nsm-") as path, open_directory() as store:
        sandboxes = Path(path) / "config" / "nsm" / "sandboxes"
        sandboxes.mkdir(parents=True)
        for artifact in (
            write_artifact(store, "whole"),
            write_artifact(store, "cold", template=False),
            write_older(store, "older"),
            write_older(store, "tidy", wrapper="trap"),
        ):
            (sandboxes / artifact.name).symlink_to(artifact)
        with supervisor(Path(path)) as it:
            with it.client() as client:
                for name in ("whole", "cold", "older", "tidy"):
                    assert client.run("print(1)", env=name, session=name).stdout == "1\n"
            left: list[int] = []
            for pid in it.descendants():
                with suppress(ProcessLookupError):  # it has ended by itself
                    left.append(os.pidfd_open(pid))
            assert len(left) >= 8
            it.kill()
            assert end_holder(Path(path)), "nobody would have kept the sessions"
            wait_gone(left)
