"""The supervisor restarts: with what it had, at a person's word; and where it was killed."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import supervisor, wait_gone
from nsmd.host.processes import children_of

if TYPE_CHECKING:
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
