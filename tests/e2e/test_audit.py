"""The audit of a real supervisor: who ran what over either face, also across a restart."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from e2e_support import Supervisor, supervisor

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = (
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "editor", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": "run", "arguments": {"env": "bash", "code": "exit 3", "session": "b"}},
    },
)


def lines(it: Supervisor, *arguments: str) -> list[dict[str, Any]]:
    said = it.run("nsm", "audit", "--json", *arguments)
    assert said.stderr == ""
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_the_audit_says_who_ran_what(short_dir: Path) -> None:
    with supervisor(short_dir) as it:
        said = it.run("nsm", "run", "-e", "python", "-s", "a", "print(6 * 7)")
        assert said.stdout == "42\n"
        said = it.run("nsm-mcp", stdin="".join(json.dumps(m) + "\n" for m in MESSAGES))
        assert '"exit_code":3' in said.stdout
        with it.client() as client:
            client.exec("job", ["sh", "-c", "exit 5"], env="bash").wait()
        assert it.run("nsm", "kill", "a").returncode == 0
    told = lines(it)
    assert oct(os.stat(short_dir / "state/nsm/audit.jsonl").st_mode) == "0o100600"
    ran = {line["name"]: line for line in told if line["event"] == "execution"}
    assert (ran["a"]["client"], ran["a"]["outcome"]) == ("nsm", "ok")
    assert ran["a"]["code_sha256"] == hashlib.sha256(b"print(6 * 7)").hexdigest()
    assert (ran["b"]["client"], ran["b"]["outcome"], ran["b"]["exit_code"]) == (
        "editor",
        "error",
        3,
    )
    assert {line["uid"] for line in ran.values()} == {os.getuid()}
    assert ran["b"]["pid"] not in {os.getpid(), ran["a"]["pid"]}
    ended = {line["name"]: line["reason"] for line in told if line["event"] == "session_ended"}
    shutting = "the supervisor is shutting down"
    assert ended == {"a": "killed by nsm", "b": shutting, "job": shutting}
    jobs = {line["event"]: line for line in told if line["event"].startswith("job_")}
    assert jobs["job_started"]["client"] == "nsm"
    assert jobs["job_started"]["code_bytes"] == len("sh -c 'exit 5'")
    assert (jobs["job_ended"]["outcome"], jobs["job_ended"]["exit_code"]) == ("error", 5)
    assert "print" not in json.dumps(told)
    assert (told[0]["event"], told[-1]["event"]) == ("supervisor_started", "session_ended")


@pytest.mark.slow
def test_a_supervisor_that_is_killed_and_the_next_one() -> None:
    with supervisor() as first:
        with first.client() as client:
            client.run("x = 1", env="python", session="a")
            client.run("x += 1", env="python", session="a")
        first.kill()
        with supervisor(first.directory, keep=True) as second:
            with second.client() as client:
                result = client.run("print(x)", env="python", session="a")
                assert result.stdout == "2\n", result.stderr
            second.process.send_signal(signal.SIGINT)
            second.process.wait()
            told = lines(second, "--session", "a")
    taken_up = [line["event"] for line in told].index("session_taken_up")
    assert told[taken_up]["restarts"] == 1
    # The last quarter of a second of the first one may be lost, also the end of an execution whose
    # start is there; it is not made up.
    events = {line["event"] for line in told[:taken_up]}
    assert events <= {"session_started", "execution_started", "execution"}
    (printed,) = [
        line
        for line in told[taken_up:]
        if line["event"] == "execution" and not line.get("taken_up")
    ]
    assert printed["code_sha256"] == hashlib.sha256(b"print(x)").hexdigest()
    assert "session_started" not in [line["event"] for line in told[taken_up:]]
    assert told[-1]["event"] == "session_ended"
