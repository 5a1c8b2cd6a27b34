"""`nsm top` at a terminal and without one, against a fake supervisor."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import samples
from fakesession import FakeSession
from fakesupervisor import Exchange, FakeSupervisor
from nsm.cli import main as cli
from nsm.cli.top.board import KEYS
from nsm.cli.top.program import RETRY_S
from nsm.wire.errors import UnknownSessionError
from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from terminal import Emulator

NSM = [sys.executable, "-m", "nsm.cli"]


class Sessions:
    """Sessions of the fake supervisor; handlers of its operations.

    Attributes:
        ended, interrupted: ids, in order.
        looks: counts the requests for rows.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows = [
            samples.session_row(id="s-1", name="alpha", cpu_s=1.0, executions=10),
            samples.session_row(id="s-2", name="beta", env="node", state="running", running_s=3.0),
        ]
        self.ended: list[str] = []
        self.interrupted: list[str] = []
        self.looks = 0
        self.supervisor = FakeSupervisor(
            path,
            sessions=self._sessions,
            boxes=lambda _exchange: {"boxes": []},
            status=lambda _exchange: samples.status(),
            kill=self._kill,
            interrupt=self._interrupt,
            inspect=self._inspect,
        )
        self._lock = threading.Lock()

    def _sessions(self, _exchange: Exchange) -> dict[str, Any]:
        with self._lock:
            self.looks += 1
            for row in self.rows:
                row["cpu_s"] += 0.25 if row["state"] == "running" else 0.0
            return {"sessions": [dict(row) for row in self.rows]}

    def _kill(self, exchange: Exchange) -> dict[str, Any]:
        (target,) = exchange.args["targets"]
        with self._lock:
            self.ended.append(target)
            self.rows = [row for row in self.rows if row["id"] != target]
        return {"killed": [{"id": target, "name": None}], "errors": []}

    def _interrupt(self, exchange: Exchange) -> dict[str, Any]:
        self.interrupted.append(exchange.args["target"])
        return {"interrupted": exchange.args["target"] == "s-2", "session": "s-2"}

    def _inspect(self, exchange: Exchange) -> dict[str, Any]:
        if exchange.args["target"] != "s-1":
            raise UnknownSessionError("No session 's-2'.", hint="See `nsm ps`.")
        return samples.inspection()


class Recorder(Terminal):
    """Keeps what was written as it was."""

    raw = ""

    def take(self, text: str) -> None:
        self.raw += text
        super().take(text)


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    sessions = Sessions(str(tmp_path / "s"))
    with sessions.supervisor:
        yield sessions


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("PATH", "NSM_TEST_RUN")}
    return {**inherited, "HOME": str(tmp_path), "NSM_SOCKET": str(tmp_path / "s")}


@pytest.fixture
def person(sessions: Sessions, variables: dict[str, str]) -> Iterator[Recorder]:
    with Recorder([*NSM, "top", "-d", "0.5", "-s", "name"], variables, rows=12) as person:
        person.see("NAME", "alpha", "beta", KEYS)
        yield person
    assert sessions.looks


def leave(person: Terminal) -> None:
    person.type("q")
    assert person.end() == 0
    assert person.mode_after == person.mode_before
    assert "?1049" not in person.emulator.modes
    assert person.emulator.unknown == []
    assert "Traceback" not in person.text


def see_table(person: Terminal) -> None:
    person.wait(lambda e: "?1049" in e.modes and KEYS in e.text, "the table")


def gone(text: str) -> Any:
    def is_gone(emulator: Emulator) -> bool:
        return text not in emulator.text

    return is_gone


def test_a_filter_and_a_smaller_window(person: Terminal) -> None:
    person.type("/node\r")
    person.see("sorted by name; 1 of 2 having 'node'")
    person.wait(gone("alpha"), "its absence")
    person.type("\x1b")
    person.see("alpha")
    person.resize(7, 30)
    os.kill(person.process.pid, signal.SIGWINCH)
    person.wait(gone("RUNS/S"), "fewer columns")
    person.see("NAME", "alpha", "beta")
    leave(person)


def test_a_supervisor_that_hangs_up_is_not_asked_again_at_once(
    sessions: Sessions, variables: dict[str, str]
) -> None:
    def hang_up(exchange: Exchange) -> dict[str, Any]:
        exchange.hang_up()
        return {}

    handlers = sessions.supervisor.handlers
    status, handlers["status"] = handlers["status"], hang_up
    began = time.monotonic()
    with Terminal([*NSM, "top"], variables) as person:
        person.see("No supervisor: ", "No sessions.")
        person.type("?")
        person.see("choose a session")
        assert len(sessions.supervisor.hellos) <= 2 + (time.monotonic() - began) / RETRY_S
        handlers["status"] = status
        person.type("x ")
        person.see("NAME", "alpha")
        leave(person)


def test_a_signal_leaves_the_terminal_as_it_was_and_no_colour_is_none(
    sessions: Sessions, variables: dict[str, str]
) -> None:
    del sessions
    with Recorder([*NSM, "top"], variables | {"NO_COLOR": "1"}, rows=10) as person:
        person.see("NAME", "beta", KEYS)
        os.kill(person.process.pid, signal.SIGTERM)
        assert person.end() == -signal.SIGTERM
        assert person.mode_after == person.mode_before
        assert "?1049" not in person.emulator.modes
        assert "\x1b[0;32m" not in person.raw


def test_joining_a_session_and_back(tmp_path: Path, variables: dict[str, str]) -> None:
    with FakeSession(str(tmp_path / "s")) as session:
        session.supervisor.handlers["status"] = lambda _exchange: samples.status()
        session.supervisor.handlers["boxes"] = lambda _exchange: {"boxes": []}
        with Terminal([*NSM, "top"], variables) as person:
            person.see("work", KEYS)
            person.type("a")
            person.see_line("work >>>")
            person.type("\x04")
            see_table(person)
            person.type("l")
            person.wait(lambda e: "?1049" not in e.modes, "the transcript")
            session.execute("import math", "hello\n")
            person.see("> import math", "hello")
            person.type("\x03")
            see_table(person)
            leave(person)


# Without a terminal.


def test_tables_for_pipes(
    sessions: Sessions,
    variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NSM_SOCKET", variables["NSM_SOCKET"])
    sessions.rows[1]["project"] = "/home/me/words"
    assert cli.main(["top", "-b", "2", "-d", "0.5", "-m", "beta"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    empty, first, second = said.out.split("nsm 0.1.0, process 4711\n")
    assert empty == ""
    for table in (first, second):
        assert table.startswith("1 session (1 running)")
        assert "alpha" not in table
        header, row = table.strip().splitlines()[-2:]
        assert header.split()[:4] == ["NAME", "ENV", "CLIENT", "STATE"]
        assert row.startswith("beta")
    assert sessions.looks == 3


def test_json_for_programs(
    sessions: Sessions,
    variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del sessions
    monkeypatch.setenv("NSM_SOCKET", variables["NSM_SOCKET"])
    assert cli.main(["top", "--json", "-d", "0.5"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    value = json.loads(line)
    assert set(value) == {"at", "totals", "sessions", "boxes"}
    assert value["totals"]["sessions"] == 2
    beta, alpha = value["sessions"]
    assert set(alpha) == {*samples.session_row(), "cpu_percent", "runs_per_s"}
    assert (alpha["name"], alpha["cpu_percent"], alpha["runs_per_s"]) == ("alpha", 0.0, 0.0)
    assert 0 < beta["cpu_percent"] <= 50


def test_top_refuses_without_terminal_supervisor_or_a_possible_delay(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NSM_SOCKET", variables["NSM_SOCKET"])
    assert cli.main(["top"]) == 2
    assert "needs a terminal" in capsys.readouterr().err
    assert cli.main(["top", "-b", "1"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "no supervisor is running" in said.err
    with pytest.raises(SystemExit):
        cli.main(["top", "-d", "0.1", "-b", "1"])
    assert "--delay is at least 0.5 s" in capsys.readouterr().err
