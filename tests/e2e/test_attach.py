"""A person and a model in one session: `nsm attach`, `nsm top` and `nsm inspect`."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from e2e_support import end_supervisor, program, supervisor
from realjail import needs_bwrap
from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    import nsm
    from e2e_support import Supervisor

pytestmark = [needs_bwrap, pytest.mark.jail]


@contextmanager
def attached(shared: Supervisor, session: str, prompt: str, *options: str) -> Generator[Terminal]:
    command = [program("nsm"), "attach", session, *options]
    with Terminal(command, shared.variables) as person:
        person.see_line(prompt)
        yield person


def leave(person: Terminal) -> None:
    person.type("\x04")
    assert person.end() == 0
    assert person.mode_after == person.mode_before
    assert person.emulator.unknown == []


def in_background(client: nsm.Client, code: str, env: str, session: str) -> threading.Thread:
    """A model at work."""
    thread = threading.Thread(
        target=client.run, args=(code,), kwargs={"env": env, "session": session}
    )
    thread.start()
    return thread


def test_a_person_and_a_model_in_one_session(shared: Supervisor) -> None:
    with shared.client("model") as model:
        model.run("numbers = [1, 2, 39]\nprint('ready')", env="python", session="both")
        with attached(shared, "both", "both >>>") as person:
            person.see("opened by nsm", "> numbers = [1, 2, 39]\n> print('ready')\n  ready\n")
            person.type("sum(numbers)\r")
            person.see("both >>> sum(numbers)\n42\nboth >>>")
            person.type("def double(n):\rreturn 2 * n\r\r")
            person.see("...     return 2 * n\n")
            person.see_line("both >>>")
            person.type("half typed")
            person.see_line("both >>> half typed")
            assert model.run("double(4)", env="python", session="both").exit_code == 0
            person.see("> double(4)\n  8\n[", "both >>> half typed")
            person.type("\x03")
            person.see_line("both >>>")
            person.type("1 / 0\r")
            person.see("ZeroDivisionError: division by zero\nboth >>>")
            leave(person)
        assert model.run("double(21)", env="python", session="both").displays
        model.kill("both")


def test_a_line_without_end_and_its_interruption(shared: Supervisor) -> None:
    with shared.client("model") as model:
        model.run("import time", env="python", session="both")
        with attached(shared, "both", "both >>>") as person:
            person.type("for n in range(3): print(n, end=' ', flush=True)\r\r")
            person.see("\n0 1 2\nboth >>>")
            person.type("kept = 1; print('on'); time.sleep(60)\r")
            person.see("\non\n")
            person.type("\x03")
            person.see("KeyboardInterrupt\nnsm: interrupted\nboth >>>")
            person.type("kept\r")
            person.see("kept\n1\nboth >>>")
            leave(person)
        model.kill("both")


def test_waiting_behind_a_model_and_interrupting_it(shared: Supervisor) -> None:
    with shared.client("model") as model, shared.client("model") as other:
        other.run("import time", env="python", session="both")
        with attached(shared, "both", "both >>>") as person:
            running = in_background(model, "print('busy'); time.sleep(60)", "python", "both")
            person.see("  busy\n", "nsm's execution 2 is running\nboth >>>")
            person.type("'mine'\r")
            person.see("waiting behind nsm's execution 2")
            person.type("\x03")
            person.see("nsm: interrupted", "is running\nboth >>>")
            person.type("\x03")
            person.see("Ctrl-C again interrupts nsm's execution 2")
            person.type("\x03")
            person.see("! KeyboardInterrupt\n[interrupted; exit code 130;")
            running.join()
            person.type("'mine'\r")
            person.see("'mine'\n'mine'\nboth >>>")
            leave(person)
        other.kill("both")


@pytest.mark.parametrize(
    ("env", "prompt", "typed", "shown"),
    [
        ("bash", "shell $", "for n in 1 2; do\recho n=$n\rdone\r", "n=1\nn=2\nshell $"),
        pytest.param(
            *("node", "shell >", "function f() {\rreturn {a: 1}\r}\rf()\r", "{ a: 1 }\nshell >"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_other_interpreters(
    shared: Supervisor, env: str, prompt: str, typed: str, shown: str
) -> None:
    with shared.client("model") as model:
        model.run("", env=env, session="shell")
        with attached(shared, "shell", prompt) as person:
            person.type(typed)
            person.see(shown)
            leave(person)
        model.kill("shell")


@pytest.mark.parametrize(
    ("env", "prompt", "code", "typed", "completed"),
    [
        ("python", "live >>>", "radius = 2", "rad\t", "live >>> radius"),
        ("node", "live >", "const radius = {inner: 1}", "radius.inn\t", "live > radius.inner"),
    ],
)
def test_completion_from_what_lives(
    shared: Supervisor, env: str, prompt: str, code: str, typed: str, completed: str
) -> None:
    with shared.client("model") as model:
        model.run(code, env=env, session="live")
        with attached(shared, "live", prompt) as person:
            person.type(typed)
            person.see_line(completed)
            person.type("\x03")
            person.see_line(prompt)
            leave(person)
        model.kill("live")


@pytest.mark.parametrize("while_running", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_session_is_killed(shared: Supervisor, while_running: bool) -> None:
    with shared.client("model") as model:
        model.run("import time", env="python", session="both")
        with attached(shared, "both", "both >>>") as person:
            if while_running:
                person.type("print('begun'); time.sleep(60)\r")
                person.see("\nbegun\n")
            model.kill("both")
            assert person.end() == 1
            assert person.text.count("session both has ended: killed") == 1
            assert "Traceback" not in person.text
            assert person.mode_after == person.mode_before


@pytest.mark.slow
def test_the_supervisor_ends(short_dir: Path) -> None:
    with supervisor(short_dir) as own, own.client() as client:
        client.run("", env="python", session="both")
        with attached(own, "both", "both >>>") as person:
            client.shutdown()
            assert person.end() == 1
            assert person.mode_after == person.mode_before
            assert "Traceback" not in person.text


# `nsm top` and `nsm inspect`.


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
