"""A changed `config.toml` under a running supervisor, by SIGHUP and by `nsm reload --config`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import Supervisor, supervisor, variables_for

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.slow

CONFIG = "[pool]\nmax_spares = 0\n[session]\nmax_sessions = 1\n"


@pytest.fixture
def running() -> Generator[Supervisor]:
    with supervisor(config=CONFIG) as it:
        yield it


def configure(it: Supervisor, text: str) -> None:
    (it.directory / "config" / "nsm" / "config.toml").write_text(text)


def test_new_sessions_have_the_new_settings_and_old_ones_live_on(running: Supervisor) -> None:
    with running.client() as client:
        client.run("x = 1", env="python", session="a")
        with pytest.raises(nsm.NsmError, match="as many as `max_sessions`"):
            client.run("1", env="python", session="b")
        more = "[session]\nmax_sessions = 2\n[defaults]\nprocesses = 99\n"
        more += "[environments.bash]\ndescription = 'Shell of ours'\ntimeout_seconds = 7\n"
        configure(running, more)
        said = running.run("nsm", "reload", "--config")
        assert (said.returncode, said.stderr) == (0, "")
        assert set(said.stdout.splitlines()) == {
            "environments.bash: none -> added",
            "defaults.processes: 256 -> 99  (after `nsm reload`)",
            "session.max_sessions: 1 -> 2",
            "pool.max_spares: 0 -> 16",
        }
        assert client.run("true", env="bash", session="b").timeout_s == 7
        assert client.run("print(x)", env="python", session="a").stdout == "1\n"
        (bash,) = [each for each in client.envs() if each.name == "bash"]
        assert bash.timeout_s == 7


def test_a_mistake_leaves_the_old_in_force(running: Supervisor) -> None:
    configure(running, CONFIG + "[pol]\nx = 1\n")
    said = running.run("nsm", "reload", "--config", "--json")
    assert said.returncode == 1
    (problem,) = json.loads(said.stdout)["problems"]
    assert "pol: unknown key" in problem
    said = running.run("nsm", "reload", "--config")
    assert (said.returncode, said.stdout) == (1, "")
    assert "nothing was changed" in said.stderr
    with running.client() as client:
        client.run("1", env="python", session="a")
        with pytest.raises(nsm.NsmError, match="as many as `max_sessions`"):
            client.run("1", env="python", session="b")


def test_sighup(running: Supervisor) -> None:
    configure(running, CONFIG.replace("1", "5"))
    following = running.log.open()
    following.seek(0, 2)
    running.process.send_signal(signal.SIGHUP)
    # The log is a file: an answer that comes after it is what can be waited for.
    said = running.run("nsm", "reload", "--config")
    assert said.stdout == "nothing has changed\n"
    with following:
        assert "configuration: session.max_sessions: 1 -> 5" in following.read()


def test_a_terminal_that_is_closed_ends_what_it_started() -> None:
    """The kernel says so by SIGHUP, too; a supervisor that nobody sees any more must not stay."""
    ours, theirs = pty.openpty()
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory(prefix="nsm-") as directory, open(reader, "rb") as ready:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nsmd", "--ready-fd", str(writer)],
            env=variables_for(Path(directory)),
            stderr=theirs,
            pass_fds=[writer],
        )
        os.close(writer)
        os.close(theirs)
        try:
            assert ready.readline() == b"\n"
            process.send_signal(signal.SIGHUP)
            with nsm.Client(socket_path=f"{directory}/control.sock", autostart=False) as client:
                assert client.call("config_reload") == {"changes": [], "problems": []}
            os.close(ours)
            process.send_signal(signal.SIGHUP)
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.wait()
