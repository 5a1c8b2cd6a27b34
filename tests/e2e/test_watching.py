"""Metrics, percentiles, events and audit of a real supervisor, also of one after another."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from e2e_clients import Mcp
from e2e_support import Supervisor, program, supervisor
from processes import ending

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.jail

TIMEOUT_S = 100.0
"""Time for what takes a second on a machine that is not starved."""


def scrape(place: socket.socket, host: str) -> str:
    """The page, asked for as Prometheus does."""
    with place:
        place.sendall(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = b""
        while data := place.recv(65536):
            answer += data
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK\r\n"), head
    return body


def value(text: str, series: str) -> float:
    (found,) = re.findall(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_same_is_told_everywhere(short_dir: Path) -> None:
    port = free_port()
    with supervisor(short_dir, config=f"[metrics]\nport = {port}\n") as it:
        with it.client() as client:
            client.run("1", env="python", session="a")
            assert client.run("exit 3", env="bash").exit_code == 3
        unix = socket.socket(socket.AF_UNIX)
        unix.connect(os.path.join(os.path.dirname(it.socket), "metrics.sock"))
        texts = [
            scrape(unix, "localhost"),
            scrape(socket.create_connection(("127.0.0.1", port)), f"127.0.0.1:{port}"),
            it.run(program("nsm"), "status", "metrics").stdout,
        ]
        for text in texts:
            assert value(text, 'nsm_executions_total{env="python",outcome="ok"}') == 1
            assert value(text, 'nsm_executions_total{env="bash",outcome="error"}') == 1
            assert value(text, 'nsm_sessions{env="python",state="idle"}') == 1
            assert value(text, "nsm_templates") >= 1
            assert value(text, "process_open_fds") > 10
        stats = json.loads(it.run(program("nsm"), "status", "times", "--json").stdout)
        assert {each["env"]: each["latency"]["total"] for each in stats["environments"]} == (
            {"python": 1, "bash": 1}
        )
        assert {start["kind"] for start in stats["starts"]} == {"forked"}


def test_events_go_on_at_the_next_supervisor(short_dir: Path) -> None:
    with supervisor(short_dir) as first:
        with first.client() as client:
            client.run("1", env="python", session="a")
        command = [program("nsm"), "events", "-f", "--json"]
        following = subprocess.Popen(
            command,
            env=first.variables | {"NSM_AUTOSTART": "0"},  # the test starts the next one
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        late = threading.Timer(TIMEOUT_S, following.kill)  # a missed event fails the test
        late.start()
        with ExitStack() as stack:
            stack.enter_context(ending(following))
            stack.callback(late.cancel)
            assert following.stdout is not None
            assert following.stderr is not None
            lines = (json.loads(line) for line in following.stdout)
            assert next(told for told in lines if told["kind"] == "execution_finished")
            first.kill()
            with supervisor(short_dir, keep=True):
                told = list(itertools.takewhile(lambda each: each["kind"] != "restarted", lines))
                assert "session_taken_up" in {each["kind"] for each in told}
                following.send_signal(signal.SIGINT)
                assert following.wait() == 0
            assert following.stderr.read() == (
                "nsm: the supervisor was replaced; these are the events of its successor\n"
            )


# The audit: who ran what over either face.


def lines(it: Supervisor, *arguments: str) -> list[dict[str, Any]]:
    said = it.run("nsm", "audit", "--json", *arguments)
    assert said.stderr == ""
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_the_audit_says_who_ran_what(short_dir: Path) -> None:
    with supervisor(short_dir) as it:
        said = it.run("nsm", "run", "-e", "python", "-s", "a", "print(6 * 7)")
        assert said.stdout == "42\n"
        with ExitStack() as stack:
            mcp = Mcp(it, stack, name="editor")
            mcp.run("exit 3", 1, session="b", env="bash")
            assert "exit code 3" in mcp.text()
            mcp.end()
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
