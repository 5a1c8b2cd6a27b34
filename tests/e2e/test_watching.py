"""Metrics, percentiles and events of a real supervisor, also of one that takes another's place."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from e2e_support import program, supervisor
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
