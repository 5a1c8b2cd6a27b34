"""Programs in real sessions: through the clients, the command line, and restarts."""

from __future__ import annotations

import json
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest
import trio

import nsm
from e2e_support import program, supervisor
from nsm.wire.errors import (
    BadRequestError,
    FateUnknownError,
    JobError,
    SessionEndedError,
    UnknownJobError,
    UnknownSessionError,
)
from nsm.wire.jobs import chunks_of
from processes import ending

if TYPE_CHECKING:
    from pathlib import Path

    from e2e_support import Supervisor
    from nsm.wire.jobs import JobOutput

pytestmark = pytest.mark.jail

BASH = ("-e", "bash", "--no-stdin", "--")


def test_a_program_runs_beside_the_code(client: nsm.Client) -> None:
    client.run("open('note', 'w').write('from code')", env="python", session="beside")
    job = client.exec("beside", ["sh", "-c", "cat note; echo oops >&2; exit 3"])
    result = job.collect()
    assert (result.stdout, result.stderr, result.exit_code) == (b"from code", b"oops\n", 3)
    assert result.missing == 0
    assert result.info.user_s + result.info.system_s > 0


def test_a_session_is_made_and_programs_see_each_other(client: nsm.Client) -> None:
    line = "python3 -m http.server 8123 --bind 127.0.0.1 2>&1"
    server = client.exec("made", ["sh", "-c", line], env="bash")
    assert server.started is not None
    assert server.started.created
    fetch = (
        "import urllib.request as r, time\n"
        "for _ in range(500):\n"
        "    try: print(r.urlopen('http://127.0.0.1:8123/').status); break\n"
        "    except OSError: time.sleep(.01)\n"
    )
    assert client.exec("made", ["python3", "-c", fetch]).collect().stdout == b"200\n"
    assert server.stop().stopped
    assert [job.running for job in client.jobs("made")] == [False, False]


def test_errors_say_what_to_do(client: nsm.Client) -> None:
    client.run(":", env="bash", session="errors")
    with pytest.raises(JobError, match="no such program in PATH") as missing:
        client.exec("errors", ["missing"])
    assert missing.value.data["errno"] == "ENOENT"
    with pytest.raises(UnknownJobError, match="no job '9'"):
        client.job("errors", "9")
    with pytest.raises(BadRequestError, match=r"\['sh', '-c', LINE\]"):
        client.exec("errors", "ls -l")
    with pytest.raises(BadRequestError, match="no signal"):
        client.exec("errors", ["sleep", "60"]).signal("NOPE")
    with pytest.raises(UnknownSessionError):
        client.jobs("nobody")
    with pytest.raises(JobError, match="not UTF-8"):
        client.exec("errors", ["echo", "\udcff"])


def test_a_program_may_leave_its_input_unread(shared: Supervisor, client: nsm.Client) -> None:
    line, big = "exec <&-; echo done; exit 3", bytes(3 << 20)

    async def over_async_client() -> bytes:
        async with shared.async_client() as client:
            job = await client.exec("unread", ["sh", "-c", line], stdin=big)
            return (await job.collect()).stdout

    result = client.exec("unread", ["sh", "-c", line], env="bash", stdin=big).collect()
    assert (result.stdout, result.exit_code) == (b"done\n", 3)
    assert trio.run(over_async_client) == b"done\n"
    with pytest.raises(JobError, match=r"has ended|does not read"):
        client.exec("unread", ["true"], stdin=True).write(big)


def test_input_signals_and_a_terminal(client: nsm.Client) -> None:
    big = bytes(range(256)) * 8192
    assert client.exec("io", ["cat"], env="bash", stdin=big).collect().stdout == big
    job = client.exec("io", ["sh", "-c", "stty size; cat"], stdin=True, tty=(5, 77))
    assert job.read(wait_s=20).data == b"5 77\r\n"
    # Until `cat` answers, an interrupt may meet `stty` as it ends, which has not died of it:
    # the shell then goes on, as shells do.
    job.write(b"up\n")
    seen = b""
    while seen != b"up\r\n" * 2:  # the terminal's echo, and what `cat` writes
        seen += job.read(wait_s=20).data
    job.interrupt()
    assert job.wait().exit_code == 130
    job = client.exec("io", ["sleep", "60"])
    assert job.wait(0.05).running
    job.signal("TERM")
    assert job.wait().signal == 15
    job = client.exec("io", ["sleep", "60"], timeout_s=0.1)
    info = job.wait()
    assert (info.timed_out, info.exit_code) == (True, 124)


def test_jobs_end_with_their_session(shared: Supervisor, client: nsm.Client) -> None:
    job = client.exec("ends", ["sleep", "1000"], env="bash")

    def end() -> None:
        with shared.client() as other:
            other.kill(["ends"])

    ends = threading.Timer(0.2, end)
    ends.start()
    with pytest.raises(SessionEndedError):
        job.wait()
    ends.join()


def test_jobs_outlive_the_supervisor(short_dir: Path) -> None:
    """Output that a client has received stays readable, and none comes twice."""
    line = (
        "for i in $(seq 200); do echo $i; echo e$i >&2; sleep .005; done; read x; echo $x; exit 6"
    )
    expected = {
        "stdout": b"".join(f"{i}\n".encode() for i in range(1, 201)) + b"bye\n",
        "stderr": b"".join(f"e{i}\n".encode() for i in range(1, 201)),
    }
    with supervisor(short_dir, keep=True) as first, ending(first.process), first.client() as client:
        job = client.exec("work", ["sh", "-c", line], env="bash", stdin=True)
        seen = {"stdout": b"", "stderr": b""}

        def take(output: JobOutput) -> None:
            for chunk in chunks_of(output):
                assert not chunk.missing
                seen[chunk.stream] += chunk.data

        for _ in range(5):
            take(job.read(wait_s=20))
        first.kill()
        with supervisor(short_dir) as second:
            job.write(b"bye\n")
            while not (output := job.read(wait_s=20)).is_last:
                take(output)
            take(output)
            assert seen == expected
            assert job.info.exit_code == 6
            with second.client() as other:
                again = other.job("work", job.id).collect()
                assert {"stdout": again.stdout, "stderr": again.stderr} == expected
                other.kill_all()


@pytest.mark.slow
def test_a_program_is_not_started_twice(short_dir: Path) -> None:
    with supervisor(short_dir, keep=True) as first, ending(first.process), first.client() as client:
        client.run(":", env="bash", session="work")
        where = {"session": "work", "argv": ["sh", "-c", "echo >> count"], "execution_id": "x"}
        begun = client.call("job_start", where)
        first.kill()
        with supervisor(short_dir) as second, second.client() as other:
            again = other.call("job_start", {**where, "again": True})
            assert again["job"]["id"] == begun["job"]["id"]
            assert other.exec("work", ["wc", "-l", "count"]).collect().stdout == b"1 count\n"
            other.kill_all()
            with pytest.raises(FateUnknownError):
                other.call("job_start", {**where, "env": "bash", "again": True})


def test_the_command_line(shared: Supervisor) -> None:
    done = shared.run("nsm", "exec", "cli", *BASH, "sh", "-c", "echo o; echo e >&2; exit 4")
    assert (done.stdout, done.stderr, done.returncode) == ("o\n", "e\n", 4)
    done = shared.run("nsm", "exec", "cli", "cat", "-n", stdin="1\n2\n")
    assert done.stdout == "     1\t1\n     2\t2\n"
    assert shared.run("nsm", "exec", "cli", "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert (
        shared.run("nsm", "exec", "cli", "--timeout", "0.1", "--", "sleep", "9").returncode == 124
    )
    assert shared.run("nsm", "exec", "cli", "missing").returncode == 127
    assert shared.run("nsm", "exec", "cli", "/etc").returncode == 126
    done = shared.run("nsm", "exec", "cli", "/etc/passwd")
    assert (done.returncode, "not executable" in done.stderr) == (126, True)
    assert shared.run("nsm", "exec", "-w", "/nosuch", "cli", "true").returncode == 125
    assert shared.run("nsm", "exec", "cli").returncode == 2
    assert "put options before" in shared.run("nsm", "exec", "cli", "-w", "/tmp", "pwd").stderr
    done = shared.run(
        "nsm", "exec", "-w", "/tmp", "--var", "A=b", "cli", "sh", "-c", "pwd; echo $A"
    )
    assert done.stdout == "/tmp\nb\n"
    job = shared.run("nsm", "exec", "-d", "cli", "sh", "-c", "echo begun; sleep 60").stdout.strip()
    rows = json.loads(shared.run("nsm", "jobs", "cli", "--json").stdout)
    assert {row["id"]: row["running"] for row in rows}[job] is True
    listed = shared.run("nsm", "jobs", "-r").stdout
    assert "sh -c 'echo begun; sleep 60'" in listed
    assert "kill -9" not in listed
    assert "sh -c 'echo begun; sleep 60'" in shared.run("nsm", "inspect", "cli").stdout
    assert shared.run("nsm", "jobs", "cli", "--stop", job).stdout == f"ended job {job}\n"
    done = shared.run("nsm", "attach", "cli", "--job", job)
    assert (done.stdout, done.returncode) == ("begun\n", 130)
    shared.run("nsm", "kill", "cli")


def test_ctrl_c_interrupts_the_program(shared: Supervisor) -> None:
    line = "trap 'echo interrupted; exit 9' INT; echo ready; while :; do sleep .05; done"
    with ending(
        subprocess.Popen(
            [program("nsm"), "exec", "ctrlc", *BASH, "bash", "-c", line],
            env=shared.variables,
            stdout=subprocess.PIPE,
        )
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(2)
        assert process.stdout.read() == b"interrupted\n"
        assert process.wait(120) == 9
    shared.run("nsm", "kill", "ctrlc")


def test_a_client_that_is_killed_leaves_its_job(shared: Supervisor) -> None:
    with ending(
        subprocess.Popen(
            [program("nsm"), "exec", "left", *BASH, "sh", "-c", "echo ready; sleep 1; echo end"],
            env=shared.variables,
            stdout=subprocess.PIPE,
        )
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
        process.wait()
    with nsm.Client(socket_path=shared.socket, autostart=False) as client:
        rows = [row for row in client.sessions() if row.name == "left"]
        job = client.job(rows[0].id, "1")
        assert job.collect().stdout == b"ready\nend\n"
        client.kill_all()


def test_jobs_are_in_the_transcript(shared: Supervisor, client: nsm.Client) -> None:
    client.exec("told", ["sh", "-c", "echo out; exit 5"], env="bash").wait()
    client.exec("told", ["sleep", "60"]).stop()
    while client.jobs("told")[-1].running:
        pass
    entries: list[object] = []
    client.logs("told", on_entry=entries.append)
    jobs = [each for each in entries if isinstance(each, nsm.JobStart | nsm.JobEnd)]
    first, end, *_, stopped = jobs
    assert isinstance(first, nsm.JobStart)
    assert (first.job, first.client, first.command) == ("1", "nsm", "sh -c 'echo out; exit 5'")
    assert isinstance(end, nsm.JobEnd)
    assert (end.outcome, end.exit_code, end.output_bytes) == ("error", 5, 4)
    assert isinstance(stopped, nsm.JobEnd)
    assert (stopped.job, stopped.command, stopped.outcome) == ("2", "sleep 60", "stopped")
    text = shared.run("nsm", "logs", "told").stdout
    assert "\n> sh -c 'echo out; exit 5'\n[job 1 (sh -c 'echo out; exit 5'): exit code 5" in text
