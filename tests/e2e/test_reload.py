"""The supervisor restarts with what it had, or takes a changed `config.toml`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import Supervisor, supervisor, variables_for, wait_gone
from nsmd.host.processes import children_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from nsm.wire.code import RunResult

pytestmark = [pytest.mark.jail, pytest.mark.slow]


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.slow
def test_a_reload_keeps_pid_sessions_and_descriptors(short_dir: Path) -> None:
    with supervisor(short_dir) as it, it.client() as client:
        client.run("x = 41", env="python", session="a")
        client.run("y=1", env="bash", session="b")
        before = client.status()
        client.reload()
        after = client.status()
        assert (after.pid, after.sessions) == (before.pid, before.sessions) == (it.pid, 2)
        assert after.uptime_s < before.uptime_s + 60
        assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
        assert client.run("echo $((y + 1))", env="bash", session="b").stdout == "2\n"
        had = descriptors(it.pid)
        client.reload()
        assert client.run("print(x + 2)", env="python", session="a").stdout == "43\n"
        assert descriptors(it.pid) <= had + 2  # of what comes and goes
        said = it.run("nsm", "reload")
        assert said.stdout == f"supervisor {it.pid} is {after.version} now, with 2 sessions\n"


def test_running_code_goes_on_over_a_reload_and_its_result_comes_once(short_dir: Path) -> None:
    with supervisor(short_dir) as it, it.client() as client, it.client() as other:
        code = "print('begun', flush=True)\nopen('/workspace/go').read()\nprint('over')"
        client.run("import os; os.mkfifo('/workspace/go')", env="python", session="a")
        begun = threading.Event()
        results: list[RunResult] = []

        def came(_stream: str, _text: str) -> None:
            begun.set()

        def wait() -> None:
            results.append(other.run(code, env="python", session="a", on_output=came, timeout_s=60))

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert begun.wait(120)
        client.reload()
        assert client.status().sessions == 1
        fifo = next(
            f"/proc/{pid}/root/workspace/go"
            for pid in it.descendants() | {row.pid for row in client.sessions()}
            if os.path.exists(f"/proc/{pid}/root/workspace/go")
        )
        with open(fifo, "w", encoding="ascii"):
            pass
        waiting.join(20)
        assert [result.stdout for result in results] == ["begun\nover\n"]


@pytest.mark.slow
def test_a_reload_leaves_no_zombies(short_dir: Path) -> None:
    """The earlier program had started processes for jails of its own and for spares."""
    config = "[defaults]\ntemplates = false\n"
    with supervisor(short_dir, config=config) as it, it.client() as client:
        client.run("x = 41", env="python", session="a")
        starters = [pid for pid in children_of(it.pid) if is_starter(pid)]
        assert starters
        fds = [os.pidfd_open(pid) for pid in starters]
        client.reload()
        assert client.run("print(x + 1)", env="python", session="a").stdout == "42\n"
        client.kill_all()
        wait_gone(fds)
        client.ping()
        assert [pid for pid in starters if os.path.exists(f"/proc/{pid}")] == []


def is_starter(pid: int) -> bool:
    return b"bwrap" in Path(f"/proc/{pid}/cmdline").read_bytes()


# A changed configuration, by SIGHUP and by `nsm reload --config`.


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
