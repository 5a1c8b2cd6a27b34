"""Artifacts, built for real, in the sessions of a real supervisor."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import end_holder, supervisor, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import standin

pytestmark = [pytest.mark.jail, pytest.mark.slow]

STATE = {
    "python": ("import yaml; x = yaml.safe_load('[4, 2]')", "print(*x, sep='')"),
    "cold": ("x = 42", "print(x)"),
    "bash": ("x=42; cd /tmp", 'printf "%s\\n" "$x"'),
    "node": ("var x = 42", "console.log(x)"),
}
"""By environment: code that sets a variable, and code that prints 42 where it is set."""


@pytest.fixture
def directory(place: standin.Place, built: Callable[[str], Path]) -> Generator[Path]:
    """A supervisor's directory with an environment of each kind; `cold` has no template."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        sandboxes = Path(path, "config/nsm/sandboxes")
        sandboxes.mkdir(parents=True)
        for name in ("bash", "python", "node"):
            if name != "node" or "nodejs" not in place.missing():
                (sandboxes / name).symlink_to(built(f"presets.{name}"))
        without_template(built("test-sandbox"), sandboxes / "cold", "cold")
        yield Path(path)


def without_template(artifact: Path, directory: Path, name: str) -> None:
    """The same artifact by another name, and without a template: each session has its own jail."""
    (directory / "bin").mkdir(parents=True)
    for wrapper in ("run", "session-run"):
        (directory / "bin" / wrapper).symlink_to(artifact / "bin" / wrapper)
    told = json.loads((artifact / "metadata.json").read_text())
    told["name"] = name
    del told["template"]
    (directory / "metadata.json").write_text(json.dumps(told))


def test_sessions_run_what_the_artifact_names_and_keep_their_state_apart(
    directory: Path, built: Callable[[str], Path]
) -> None:
    told = json.loads((built("presets.python") / "metadata.json").read_text())
    with supervisor(directory) as it, it.client() as client:
        for env in (directory / "config/nsm/sandboxes").iterdir():
            keep, show = STATE[env.name]
            assert client.run(keep, env=env.name, session=f"{env.name}-1").exit_code == 0
            assert client.run(show, env=env.name, session=f"{env.name}-1").stdout == "42\n"
            for session in (f"{env.name}-2", None):
                assert "42" not in client.run(show, env=env.name, session=session).stdout
        # Not the host's presets of those names, though they are there.
        program = client.run("import sys; print(sys.executable)", env="python")
        assert program.stdout == told["program"] + "\n"
        assert "/store/" in client.run("type -p bc; type -p bash", env="bash").stdout
        assert "No module named 'yaml'" in client.run("import yaml", env="cold").stderr
        rows = {row.name: row for row in client.envs() if row.available}
        assert (rows["python"].program, rows["python"].cold_start) == (told["program"], None)
        assert rows["cold"].cold_start is not None


def test_sessions_outlive_the_supervisor_and_end_with_the_holder_of_their_sockets(
    directory: Path,
) -> None:
    """By a signal that the supervisor cannot hear: nobody is there who could end them."""
    environments = ("python", "cold")
    with supervisor(directory) as first:
        with first.client() as client:
            for env in environments:
                assert client.run("x = 41", env=env, session=env).exit_code == 0
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        with supervisor(directory, keep=True) as it:
            with it.client() as client:
                for env in environments:
                    assert client.run("print(x + 1)", env=env, session=env).stdout == "42\n"
            pidfds = [os.pidfd_open(pid) for pid in it.descendants()]
            it.process.send_signal(signal.SIGKILL)
            it.process.wait()
            assert end_holder(directory), "nobody would have kept the sessions"
            wait_gone(pidfds)
