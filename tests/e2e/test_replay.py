"""Transcripts that are replayed in real jails, by clients and on the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
import trio

import nsm
from e2e_support import program
from nsm.wire.errors import BadRequestError

if TYPE_CHECKING:
    from pathlib import Path

    from e2e_support import Supervisor
    from nsm.client.replays import ReplayedExecution

TIMEOUT_S = 60


def run(client: nsm.Client, *pieces: str, env: str = "python", session: str = "work") -> None:
    for code in pieces:
        client.run(code, env=env, session=session)


def saved(client: nsm.Client, shared: Supervisor, path: Path) -> None:
    """Write the transcript of `work` as `nsm logs --json` does."""
    (row,) = [row for row in client.sessions() if row.name == "work"]
    path.write_text(shared.run("nsm", "logs", row.id, "--json").stdout)


def test_a_replay_says_what_differs(client: nsm.Client) -> None:
    run(client, "x = 20", "print(object())\nx + 1", "1 / 0", "import os; os.urandom(4)")
    found: list[ReplayedExecution] = []
    report = client.replay(client.transcript("work"), on_replayed=found.append)
    assert [each.status for each in found] == ["same", "same", "same", "differs"]
    assert (report.same, report.differs, report.kept, report.agrees) == (3, 1, False, False)
    assert found[3].differences[0].what == "values"
    assert [row.name for row in client.sessions()] == ["work"]


def test_resets_input_and_time_limits_are_replayed(client: nsm.Client) -> None:
    run(client, "x = 1")
    client.run("print('x' in globals())", env="python", session="work", reset=True)
    client.run("print(input())", env="python", session="work", stdin=b"hello\n")
    client.run("import time; time.sleep(60)", env="python", session="work", timeout_s=0.3)
    client.exec("work", ["true"], env="python").wait()
    found: list[ReplayedExecution] = []
    client.replay(client.transcript("work"), on_replayed=found.append)
    assert [each.status for each in found] == ["same", "same", "differs", "same"]
    assert "standard input" in found[2].why


def test_a_script_gets_its_arguments_again(
    client: nsm.Client, shared: Supervisor, tmp_path: Path
) -> None:
    script = tmp_path / "s.py"
    script.write_text("import sys; print(sys.argv[1:])")
    words = ("--session", "scripted", "-e", "python", str(script), "a")
    assert shared.run("nsm", "run", *words).returncode == 0
    report = client.replay(client.transcript("scripted"))
    assert (report.same, report.agrees) == (1, True)


def test_interrupted_code_runs_as_long_as_it_did(client: nsm.Client, shared: Supervisor) -> None:
    run(client, "x = 1")
    with shared.client() as other:

        def interrupt(_stream: str, _text: str) -> None:
            other.interrupt("work")

        code = "import time; print(1, flush=True); time.sleep(60)"
        client.run(code, env="python", session="work", on_output=interrupt)
    found: list[ReplayedExecution] = []
    report = client.replay(client.transcript("work"), on_replayed=found.append)
    assert [each.status for each in found] == ["same", "not-compared"]
    assert report.agrees


def test_until_and_on_trio(client: nsm.Client, shared: Supervisor) -> None:
    run(client, "x = 1", "x += 1", "x += 1")

    async def work() -> None:
        async with nsm.AsyncClient(socket_path=shared.socket) as other:
            transcript = await other.transcript("work")
            report = await other.replay(transcript, until=2, name="again")
            assert (report.same, report.name, report.kept) == (2, "again", True)
            assert (await other.run("x", env="python", session="again")).displays[0][
                "text/plain"
            ] == "2"
            with pytest.raises(BadRequestError, match="a session 'again' already"):
                await other.replay(transcript, name="again")
            with pytest.raises(BadRequestError, match="none to stop after at 0"):
                await other.replay(transcript, until=0)
            with pytest.raises(BadRequestError, match="runs bash"):
                await other.replay(transcript, env="bash")

    trio.run(work)


def test_rules_of_a_live_session_hold_again(client: nsm.Client, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "here.txt").write_text("7")
    client.run(
        "open('/project/here.txt').read(), open('/project/new', 'w').write('1')",
        env="python",
        session="work",
        project=tmp_path,
        project_mode="overlay",
        network="example.org",
    )
    report = client.replay(client.transcript("work"), keep=True)
    assert report.agrees
    found = client.inspect(report.session)
    assert found.session.project == str(tmp_path)
    assert found.network is not None
    assert found.network["allow"] == ["example.org"]
    assert not (tmp_path / "new").exists()


def test_a_file_gets_no_rules_of_its_session(
    client: nsm.Client, shared: Supervisor, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    client.run("1", env="python", session="work", network="full")
    saved(client, shared, tmp_path / "a.jsonl")
    done = shared.run("nsm", "replay", "a.jsonl", "--until", "1", "-s", "again", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["[1] same", "1 the same"])
    found = client.inspect("again")
    assert found.policy is not None
    assert found.policy["network"]["mode"] == "off"
    assert found.session.project == str(tmp_path)
    text = (tmp_path / "a.jsonl").read_text().replace('"env": "python"', '"env": "mine"')
    (tmp_path / "b.jsonl").write_text(text)
    done = shared.run("nsm", "replay", "b.jsonl", cwd=tmp_path)
    assert done.returncode == 125
    assert "A file does not choose an environment" in done.stderr
    done = shared.run("nsm", "replay", "b.jsonl", "-e", "python", cwd=tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0].endswith("1 execution in python")) == (
        0,
        True,
    )


def test_exit_codes_and_json(client: nsm.Client, shared: Supervisor, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    run(client, "print(object())")
    saved(client, shared, tmp_path / "a.jsonl")
    done = shared.run("nsm", "replay", "a.jsonl", "--json", cwd=tmp_path)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["replay", "execution", "end"]
    assert (done.returncode, events[1]["status"], events[2]["agrees"]) == (0, "same", True)
    text = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "a.jsonl").write_text(text.replace("<object", "<\\u001b[2Jobject"))
    done = shared.run("nsm", "replay", "./a.jsonl", cwd=tmp_path)
    assert done.returncode == 1
    assert "- <\\x1b[2Jobject" in done.stdout
    assert "+ <object" in done.stdout
    done = shared.run("nsm", "replay", "nothing", cwd=tmp_path)
    assert done.returncode == 125
    assert "no file of that name" in done.stderr
    (tmp_path / "c").write_text("x")
    done = shared.run("nsm", "replay", "c", cwd=tmp_path)
    assert (done.returncode, "is not a transcript" in done.stderr) == (125, True)
    client.run("1", env="python", session="c", project=tmp_path)
    done = shared.run("nsm", "replay", "c", cwd=tmp_path)
    assert (done.returncode, "is a session and a file" in done.stderr) == (125, True)


@pytest.mark.slow
def test_ctrl_c_ends_a_replay(client: nsm.Client, shared: Supervisor, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    run(client, "print(1)", "import time; time.sleep(1.5); print(2)", "print(3)")
    saved(client, shared, tmp_path / "a.jsonl")
    with subprocess.Popen(
        [program("nsm"), "replay", "a.jsonl"],
        cwd=tmp_path,
        env=shared.variables,
        stdout=subprocess.PIPE,
        text=True,
    ) as going:
        assert going.stdout is not None
        while going.stdout.readline() != "[1] same\n":
            pass
        os.kill(going.pid, signal.SIGINT)
        rest = going.stdout.read()
        assert going.wait(TIMEOUT_S) == 130
    assert "[3]" not in rest
    assert [row.name for row in client.sessions()] == ["work"]


def test_a_notebook(client: nsm.Client, shared: Supervisor) -> None:
    run(client, "print(1)\n2", "1 / 0")
    (row,) = client.sessions()
    done = shared.run("nsm", "logs", row.id, "--ipynb")
    first, second = json.loads(done.stdout)["cells"]
    assert [each["output_type"] for each in first["outputs"]] == ["stream", "execute_result"]
    assert [each["ename"] for each in second["outputs"]] == ["ZeroDivisionError"]
