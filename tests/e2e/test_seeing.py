"""`nsm top` and `nsm inspect` of real sessions."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from e2e_support import end_supervisor, program, supervisor
from realjail import needs_bwrap
from terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from e2e_support import Supervisor

pytestmark = [needs_bwrap, pytest.mark.jail]


def test_inspect_shows_processes_and_executions(shared: Supervisor) -> None:
    with shared.client("model") as client:
        client.run("sleep 600 & echo $!", env="bash", session="seen")
        client.run("false", env="bash", session="seen")
        said = shared.run("nsm", "inspect", "model/seen", "--json")
        found = json.loads(said.stdout)
        first, *others = found["processes"]
        assert (first["pid"], first["inside"]) == (found["session"]["pid"], 1)
        (sleeping,) = [each for each in others if each["name"] == "sleep"]
        assert (sleeping["command"], sleeping["state"]) == ("sleep 600", "S")
        assert 1 < sleeping["inside"] < sleeping["pid"]
        assert found["session"]["processes"] == len(found["processes"])
        assert [(run["outcome"], run["exit_code"], run["code"]) for run in found["executions"]] == [
            ("ok", 0, "sleep 600 & echo $!"),
            ("error", 1, "false"),
        ]
        assert found["start"]["kind"] == found["policy"]["kind"]
        assert found["contradictions"] == []
        text = shared.run("nsm", "inspect", "model/seen").stdout
        assert "sleep 600" in text
        assert "error 1  false" in text
        client.kill("seen")
        said = shared.run("nsm", "inspect", found["session"]["id"])
        assert "ago, after" in said.stdout
        assert "killed by nsm" in said.stdout
        assert "error 1  false" in said.stdout


def test_a_busy_session_is_seen_and_interrupted(shared: Supervisor) -> None:
    with shared.client("model") as client, shared.client("model") as other:
        busy = threading.Thread(
            target=client.run,
            args=("import time; time.sleep(600)",),
            kwargs={"env": "python", "session": "busy"},
        )
        busy.start()
        command = [program("nsm"), "top", "-d", "0.5", "-m", "model"]
        with Terminal(command, shared.variables, columns=120, rows=20) as person:
            person.see("NAME", "busy", "running")
            person.type("i")
            person.see("What ran in busy was interrupted.")
            busy.join()
            person.see("(0 running)")
            person.see("busy", "idle")
            person.type("ky")
            person.see("Session busy was ended.")
            person.type("q")
            assert person.end() == 0
            assert person.emulator.unknown == []
        assert "busy" not in [row.name for row in other.sessions()]


@pytest.mark.slow
def test_the_table_goes_on_with_the_next_supervisor(short_dir: Path) -> None:
    """`nsm top` starts that supervisor: the sessions were kept for whoever asks for them."""
    with supervisor(short_dir, keep=True) as first, first.client() as client:
        client.run("n = 1", env="bash", session="lasting")
        command = [program("nsm"), "top", "-d", "0.5"]
        with Terminal(command, first.variables, columns=120, rows=12) as person:
            person.see(f"process {first.pid}", "lasting")
            first.kill()
            try:
                person.wait(
                    lambda e: f"process {first.pid}" not in e.text and " process " in e.text,
                    "another supervisor",
                )
                person.type("i")
                person.see("lasting", "Nothing was running in lasting.")
                said = first.run("nsm", "inspect", "lasting").stdout
                assert "by a new supervisor 1 time, as it was" in said
                person.type("q")
                assert person.end() == 0
                assert person.mode_after == person.mode_before
            finally:
                end_supervisor(first.socket)
