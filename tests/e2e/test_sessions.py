"""The main job on real jails, through the control socket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_clients import Task
from e2e_support import descendants, end_holder, supervisor, variables_for, wait_gone
from nsm.wire.errors import BadProjectError, BadRequestError, SessionEndedError, StartFailedError
from processes import ending

if TYPE_CHECKING:
    from e2e_support import Supervisor

CASES = [
    ("python", "x = 41", "print(x + 1)", "42\n"),
    ("bash", "x=41; f() { echo $((x + 1)); }", "f", "42\n"),
    ("node", "let x = 41", "console.log(x + 1)", "42\n"),
]


@pytest.mark.parametrize(("env", "first", "second", "printed"), CASES)
def test_state_persists_in_a_session_and_not_beyond(
    client: nsm.Client, env: str, first: str, second: str, printed: str
) -> None:
    assert client.run(first, env=env, session=f"s-{env}").exit_code == 0
    assert client.run(second, env=env, session=f"s-{env}").stdout == printed
    assert client.run(second, env=env).exit_code != 0
    assert client.run(second, env=env, session=f"other-{env}").exit_code != 0


@pytest.mark.parametrize(("env", "first", "second", "printed"), CASES[:2])
def test_a_reset_gives_a_fresh_interpreter_and_keeps_files(
    client: nsm.Client, env: str, first: str, second: str, printed: str
) -> None:
    keep = {"python": "open('note', 'w').close()", "bash": "touch note"}[env]
    session = f"reset-{env}"
    client.run(first, env=env, session=session)
    client.run(keep, env=env, session=session)
    again = client.run(second, env=env, session=session, reset=True)
    assert again.exit_code != 0
    assert again.interpreter_restarted
    assert "was reset as this call asked" in again.restart_reason
    assert client.run(first, env=env, session=session).interpreter_restarted is False
    assert client.run(second, env=env, session=session).stdout == printed
    assert "note" in [entry.name for entry in client.files(session).list()]


def test_a_reset_without_a_session_is_refused(client: nsm.Client) -> None:
    with pytest.raises(BadRequestError, match="names no session"):
        client.run("1", env="python", reset=True)


def test_a_project_is_seen_and_cannot_be_changed(shared: Supervisor, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)  # under root, jails are another user's
    (tmp_path / "data.txt").write_text("from the host\n")
    with shared.client() as client:
        read = client.run("cat /project/data.txt", env="bash", project=str(tmp_path))
        assert read.stdout == "from the host\n", read
        write = client.run("echo x > /project/data.txt", env="bash", project=str(tmp_path))
        assert write.exit_code != 0
        assert "Read-only" in write.stderr
    assert (tmp_path / "data.txt").read_text() == "from the host\n"


@pytest.mark.parametrize(
    "path", ["/", "/nonexistent", "/etc/passwd", "relative", "/proc/self/root"]
)
def test_a_bad_project_is_refused_with_the_reason(shared: Supervisor, path: str) -> None:
    with shared.client() as client, pytest.raises(BadProjectError) as error:
        client.run("true", env="bash", project=path)
    assert error.value.message


def test_two_clients_at_once_in_many_sessions(shared: Supervisor, client: nsm.Client) -> None:
    """Twenty threads print their own number under load; no byte goes astray."""
    wrong: list[str] = []

    def work(number: int) -> None:
        with shared.client(scope=f"scope-{number % 2}") as client:
            for turn in range(5):
                text = f"{number}-{turn}-" + "x" * 5000
                out = client.run(f"print({text!r})", env="python", session=f"s{number}").stdout
                if out != text + "\n":
                    wrong.append(out)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    rows = client.sessions()
    assert len(rows) == 8
    assert all(row.executions == 5 and row.memory_bytes for row in rows)


def test_a_forked_process_gets_a_connection_of_its_own(shared: Supervisor) -> None:
    program = (
        "import os, nsm\n"
        "with nsm.Client(autostart=False) as client:\n"
        "    client.ping()\n"
        "    parent, child = os.getpid(), os.fork()\n"
        "    for _ in range(20):\n"
        "        out = client.run(f'print({os.getpid()})', env='python').stdout\n"
        "        assert out == f'{os.getpid()}\\n', out\n"
        "    assert os.getpid() != parent or os.waitpid(child, 0)[1] == 0\n"
    )
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, env=shared.variables, timeout=120, check=False)
    assert done.returncode == 0


def test_a_client_that_vanishes_leaves_no_process(shared: Supervisor, client: nsm.Client) -> None:
    code = "print('here', flush=True); import time; time.sleep(25)"
    program = (
        "import nsm, sys\n"
        "with nsm.Client(autostart=False) as client:\n"
        f"    client.run({code!r}, env='python', on_output=lambda *_: print(flush=True))\n"
    )
    with ending(
        subprocess.Popen(
            [sys.executable, "-P", "-c", program], env=shared.variables, stdout=subprocess.PIPE
        )
    ) as vanishing:
        assert vanishing.stdout is not None
        vanishing.stdout.readline()  # its code runs
        (row,) = client.sessions()
        fds = [os.pidfd_open(pid) for pid in descendants(row.pid) | {row.pid}]
        assert len(fds) >= 2
        vanishing.kill()
    wait_gone(fds)
    assert client.sessions() == []


def test_killing_a_session_ends_all_of_it(client: nsm.Client) -> None:
    client.run("setsid sleep 1000 & disown; sleep 1000 & echo started", env="bash", session="k")
    (row,) = client.sessions()
    fds = [os.pidfd_open(pid) for pid in descendants(row.pid) | {row.pid}]
    assert len(fds) >= 4
    assert client.kill(["k"]).killed
    wait_gone(fds)
    again = client.run("jobs", env="bash", session="k")
    assert again.session.created
    assert again.session.replaced is not None
    assert "killed by" in again.session.replaced


@pytest.mark.parametrize("victim", ["agent", "outer"])
def test_a_jail_that_dies_is_told_and_replaced(
    shared: Supervisor, client: nsm.Client, victim: str
) -> None:
    client.run("x = 1", env="python", session="d")
    (row,) = client.sessions()
    pid = row.pid if victim == "agent" else _parent(row.pid)
    running = threading.Event()
    code = "print('running', flush=True); import time; time.sleep(25)"

    def run() -> object:
        with shared.client() as other:
            return other.run(
                code, env="python", session="d", on_output=lambda _stream, _text: running.set()
            )

    call = Task(run)
    assert running.wait(120)
    fds = [os.pidfd_open(p) for p in descendants(row.pid) | {row.pid}]
    os.kill(pid, signal.SIGKILL)
    if victim == "outer":  # the jail lives on without it; ending the session still ends it
        client.kill(["d"])
    answer = call.outcome()
    wait_gone(fds)
    assert isinstance(answer, SessionEndedError), answer
    result = client.run("print('x' in dir())", env="python", session="d")
    assert result.stdout == "False\n"
    assert result.session.replaced is not None


def test_a_supervisor_that_is_killed_leaves_nothing_but_what_is_kept(short_dir: Path) -> None:
    with supervisor(short_dir) as it:
        with it.client() as client:
            client.run("sleep 1000 & setsid sleep 1000 &", env="bash", session="a")
            client.run("1", env="python", session="b")
        below = it.descendants()
        assert len(below) >= 6
        fds = [os.pidfd_open(pid) for pid in below]
        it.kill()
        assert end_holder(short_dir), "nobody would have kept the sessions"
        wait_gone(fds)


def test_a_second_supervisor_goes_away(shared: Supervisor, client: nsm.Client) -> None:
    result = shared.run("nsm-supervisor")
    assert result.returncode == 1
    assert f"running already (pid {shared.pid})" in result.stderr
    assert client.status().pid == shared.pid


FIRST_CALL = """
import nsm
with nsm.Client() as client:
    try:
        client.run("true", env="bash")
    except nsm.NsmError as error:
        print(error.code, error)
    client.shutdown()
"""

HOSTS = [
    (["--ro-bind", "/dev/null", shutil.which("bwrap") or "", "--unshare-pid"], "bubblewrap"),
    (
        ["--unshare-user", "--disable-userns", "--uid", "1000", "--unshare-pid"],
        "outside of that sandbox",
    ),
]


@pytest.mark.parametrize(
    ("host", "says"),
    [
        pytest.param(*HOSTS[0], id="no bwrap"),
        pytest.param(*HOSTS[1], id="no user namespaces", marks=pytest.mark.slow),
    ],
)
def test_a_host_without_jails_says_what_to_do(short_dir: Path, host: list[str], says: str) -> None:
    """The host is a jail of its own, in which the thing is really missing."""
    short_dir.chmod(0o700)
    reader, writer = os.pipe()
    with subprocess.Popen(
        [
            *("bwrap", "--dev-bind", "/", "/", "--proc", "/proc", "--die-with-parent", *host),
            *("--info-fd", str(writer), "--", sys.executable, "-P", "-c", FIRST_CALL),
        ],
        env=variables_for(short_dir),
        pass_fds=[writer],
        stdout=subprocess.PIPE,
        text=True,
    ) as outer:
        os.close(writer)
        with open(reader) as facts:
            inner = os.pidfd_open(json.load(facts)["child-pid"])
        told, _ = outer.communicate(timeout=60)
    wait_gone([inner])  # bwrap itself ends before what it has started
    assert told.startswith("start-failed"), told
    assert says in told


@pytest.mark.slow
def test_a_failing_bwrap_is_quoted(short_dir: Path) -> None:
    tools = short_dir / "bin"
    tools.mkdir(mode=0o755)
    short_dir.chmod(0o755)
    real = "/usr/bin/bwrap"
    fake = tools / "bwrap"
    fake.write_text(
        f'#!/bin/sh\ncase "$1" in --help|--version) exec {real} "$1";; esac\n'
        "echo 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    with supervisor(short_dir, variables={"PATH": f"{tools}:/usr/bin:/bin"}) as it:
        short_dir.chmod(0o700)
        with it.client() as client, pytest.raises(StartFailedError) as error:
            client.run("1", env="bash")
    assert "No permissions to create a new namespace" in str(error.value)


def test_shutdown_ends_everything(short_dir: Path) -> None:
    with supervisor(short_dir) as it:
        with it.client() as client:
            client.run("1", env="python", session="a")
            fds = [os.pidfd_open(pid) for pid in it.descendants()]
            client.shutdown()
        assert it.process.wait(120) == 0
        wait_gone(fds)
        assert not Path(it.socket).exists()
        with pytest.raises(nsm.NotRunningError):
            it.client()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
