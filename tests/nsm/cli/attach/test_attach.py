"""`nsm attach` at a terminal, with a session whose every event is scripted."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fakesession import PATIENCE_S, FakeSession, Own, nothing
from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NSM = [sys.executable, "-m", "nsm.cli"]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[FakeSession]:
    with FakeSession(str(tmp_path / "s")) as session:
        yield session


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in ("PATH", "NSM_TEST_RUN")}
    return {**inherited, "HOME": str(tmp_path), "NSM_SOCKET": str(tmp_path / "s")}


@pytest.fixture
def person(session: FakeSession, variables: dict[str, str]) -> Iterator[Terminal]:
    """Somebody who has attached."""
    with attached(variables) as person:
        yield person


def attached(variables: dict[str, str], ending: str = ">>>", **window: int) -> Terminal:
    person = Terminal([*NSM, "attach", "work"], variables, **window)
    try:
        person.see_line(f"work {ending}")
    except BaseException as error:
        person.__exit__(type(error), error, error.__traceback__)
        raise
    return person


def test_node_is_asked_in_its_session(tmp_path: Path, variables: dict[str, str]) -> None:
    """And what its jail suggests for the next line is not typed."""
    with FakeSession(str(tmp_path / "s"), interpreter="node", env="node") as session:
        session.on_check = lambda _code: ("incomplete", "evil()\n")
        with attached(variables, ">") as person:
            person.type("if (x) {\r")
            person.see("work > if (x) {\n   ...")
            person.type("y\x1b\r")
            person.see("   ...     y\nwork >")
        assert session.checked == ["if (x) {"]
        assert session.ran == ["if (x) {\n    y"]


def test_pasted_lines_wait_for_enter(session: FakeSession, person: Terminal) -> None:
    person.paste("if x:\r\n    a\r\n\r\n\tb\r\n")
    person.see("work >>> if x:\n     ...     a\n     ...\n     ...     b\n     ...")
    assert session.ran == []
    person.type("\r")
    person.wait(lambda e: e.current_line == "work >>>", "a new prompt")
    assert session.ran == ["if x:\n    a\n\n\tb\n"]


def test_a_model_cannot_drive_the_terminal(session: FakeSession, person: Terminal) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\x9b1;1H\x1b[6n\x1b]52;c;eA==\x07\u202eabc\x1b[31mred\n"
    session.execute(f"# {evil}", evil)
    shown = r"\x1b]0;title\x07\x1b[2J\x9b1;1H\x1b[6n\x1b]52;c;eA==\x07\u202eabc"
    person.see("> # " + shown[:40], "  " + shown[:40], "work >>>")

    def run(own: Own) -> dict[str, Any]:
        own.start()
        own.output(evil)
        own.finish()
        return {"stdout": evil, "displays": [{"text/plain": evil}]}

    session.on_run = run
    session.matches = ["x\x1b[2J", "xylophone"]
    person.type("x\t")
    person.see_line("work >>> xylophone")
    person.type("\r")
    person.see("xylophone\n" + shown[:40], shown[:40], "work >>>")
    assert person.emulator.unknown == []


def test_a_second_ctrl_c_stops_waiting(session: FakeSession, person: Terminal) -> None:
    go_on = threading.Event()

    def run(own: Own) -> dict[str, Any]:
        own.start()
        own.output("working\n")
        own.wait_for_interrupt()
        assert go_on.wait(PATIENCE_S)
        own.output("still here\n")
        own.finish()
        return {"stdout": "working\nstill here\n"}

    session.on_run = run
    person.type("long\r")
    person.see("working")
    person.type("\x03")
    person.see("asked to stop; Ctrl-C again stops waiting for it")
    person.type("\x03")
    person.see("no longer waiting; it goes on", "nsm attach's execution 1 is running\nwork >>>")
    go_on.set()
    person.see("  still here\n[0.25 s]\nwork >>>")


def test_a_shell_is_not_ended_by_habit(tmp_path: Path, variables: dict[str, str]) -> None:
    with (
        FakeSession(str(tmp_path / "s"), interpreter="bash", env="bash") as session,
        attached(variables, ending="$") as person,
    ):
        person.type("exit\r")
        person.see("Ctrl-D leaves; Enter again runs `exit`", "work $ exit")
        assert session.ran == []
        person.type("\r")
        person.see("work $ exit\nwork $")
        assert session.ran == ["exit"]


def test_completion_and_history(
    session: FakeSession, person: Terminal, variables: dict[str, str], tmp_path: Path
) -> None:
    session.matches = ["alpha", "alphabet", "beta"]
    person.type("be\t")
    person.see_line("work >>> beta")
    person.type("\r")
    person.see("work >>> beta\nwork >>>")
    person.type("al\t")
    person.see("alphabet")
    person.type("\t\t\r")  # chosen; Enter takes it
    person.see_line("work >>> alphabet")
    person.type("\r")
    person.see_line("work >>>")
    assert session.ran == ["beta", "alphabet"]
    session.busy = True
    person.type("al\t")
    person.see("no completions now")
    person.type("\x03\x04")
    assert person.end() == 0
    kept = tmp_path / ".local/state/nsm/history-python"
    assert kept.stat().st_mode & 0o777 == 0o600
    with attached(variables) as again:
        again.type("\x1b[A\x1b[A")
        again.see_line("work >>> beta")
        again.type("\x03")
        again.see_line("work >>>")
        again.type("\x12phab")
        again.see("work >>> alphabet\n", "phab")
        again.type("\r\r")
        again.see("work >>> alphabet\nwork >>>")
    assert session.ran[2:] == ["alphabet"]


def test_another_supervisor_takes_its_place(session: FakeSession, person: Terminal) -> None:
    later = FakeSession(session.path, started_at=2e9)
    sent: list[dict[str, Any]] = []

    def run(own: Own) -> dict[str, Any]:
        own.start()
        own.output("one\n")
        person.see("work >>> slow()\none")
        session.supervisor.stop_listening()
        later.__enter__()
        sent.append(own.exchange.args)
        session.supervisor.close()
        return {}

    def run_again(own: Own) -> dict[str, Any]:
        sent.append(own.exchange.args)
        own.start()
        own.output("three\n")
        own.finish()
        return {"stdout": "one\ntwo\nthree\n"}

    session.on_run, later.on_run = run, run_again
    try:
        person.type("slow()\r")
        person.see("nsm: the supervisor was replaced", "two\nthree\nwork >>>")
        assert person.text.count("three") == 1
        assert sent[1] == {**sent[0], "again": True}
        later.on_run = nothing
        person.type("5\r")
        person.see("work >>> 5\nwork >>>")
        person.type("\x04")
        assert person.end() == 0
    finally:
        later.__exit__(None, None, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_leave_the_terminal_as_it_was(person: Terminal, number: signal.Signals) -> None:
    person.type("half")
    person.see_line("work >>> half")
    person.process.send_signal(number)
    assert person.end() == -number
    assert person.mode_after == person.mode_before
    assert "?2004" not in person.emulator.modes
    assert "Traceback" not in person.text


def test_a_window_that_is_closed(session: FakeSession, person: Terminal) -> None:
    execution = session.start("x")
    person.see("is running")
    person.vanish()
    session.output(execution, "anybody there?\n")
    assert person.process.wait(PATIENCE_S) == -signal.SIGHUP


def test_no_such_session(session: FakeSession, variables: dict[str, str]) -> None:
    with Terminal([*NSM, "attach", "nothing"], variables) as person:
        assert person.end() == 1
        assert "there is no such session\n`nsm ps` lists them." in person.text
        assert person.mode_after == person.mode_before


def test_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    from nsm.cli.main import main

    assert main(["attach", "work"]) == 2
    assert "nsm run" in capfd.readouterr().err
