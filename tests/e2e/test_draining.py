"""SIGTERM, SIGINT and `nsm drain` against a real supervisor and real jails."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_clients import Task
from e2e_support import END_TIMEOUT_S, supervisor
from nsm.wire.errors import SessionEndedError, ShuttingDownError

if TYPE_CHECKING:
    from e2e_support import Supervisor

UNTIL_IT_IS_THERE = "echo begun; until [ -e /tmp/go ]; do sleep 0.02; done; echo finished"

ENDLESS = {"python": "import time; time.sleep(1000)", "bash": "sleep 1000"}


class Call(Task):
    """A call in a thread of its own, which has begun to run when this is made."""

    def __init__(self, it: Supervisor, code: str, session: str) -> None:
        self._begun = threading.Event()
        super().__init__(lambda: self._call(it, code, session))
        assert self._begun.wait(END_TIMEOUT_S)

    def _call(self, it: Supervisor, code: str, session: str) -> nsm.RunResult:
        with it.client() as client:
            return client.run(
                code,
                env="bash",
                session=session,
                on_output=lambda _stream, _text: self._begun.set(),
            )


def test_on_sigterm_what_runs_finishes_and_is_answered() -> None:
    with supervisor() as it:
        call = Call(it, UNTIL_IT_IS_THERE, "a")
        with it.client() as client:
            it.process.send_signal(signal.SIGTERM)
            while client.status().draining is None:
                pass  # the signal has not come yet
            with pytest.raises(ShuttingDownError, match="not run"):
                client.run("1", env="python")
            client.files("a").write_from("/tmp/go", lambda _size: b"")
        answer = call.outcome()
        assert isinstance(answer, nsm.RunResult), answer
        assert (answer.stdout, answer.exit_code) == ("begun\nfinished\n", 0)
        assert it.process.wait(END_TIMEOUT_S) == 0


@pytest.mark.slow
def test_signals_that_its_starter_has_blocked() -> None:
    """Ray's actors block SIGINT; code is interrupted by it all the same, and keeps its state."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        with supervisor() as it, it.client() as client:
            for env in ("python", "bash"):
                client.run("x=42", env=env, session=env)
                late = client.run(ENDLESS[env], env=env, session=env, timeout_s=0.3)
                assert (late.timed_out, late.interpreter_restarted) == (True, False), late
            assert client.run_in("python", "print(x)").stdout == "42\n"
            assert client.run_in("bash", "echo $x").stdout == "42\n"
            it.process.send_signal(signal.SIGTERM)
            assert it.process.wait(END_TIMEOUT_S) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_running_code_is_interrupted_at_the_deadline_or_ended_at_once(end: signal.Signals) -> None:
    with supervisor(config="[drain]\ntimeout_seconds = 0\n") as it:
        call = Call(it, "echo begun; sleep 1000", "a")
        it.process.send_signal(end)
        answer = call.outcome()
        if end is signal.SIGTERM:
            assert isinstance(answer, nsm.RunResult), answer
            assert (answer.interrupted, answer.stdout) == (True, "begun\n")
        else:
            assert isinstance(answer, SessionEndedError | ShuttingDownError), answer
        assert it.process.wait(END_TIMEOUT_S) == 0


def test_nsm_drain_and_back(emptied: Supervisor) -> None:
    it = emptied
    try:
        call = Call(it, "echo begun; sleep 1000", "a")
        drained = it.run("nsm", "drain", "--timeout", "0")
        assert (drained.returncode, drained.stdout) == (
            0,
            "drained: nothing runs, 1 session kept, 1 execution interrupted\n",
        )
        answer = call.outcome()
        assert isinstance(answer, nsm.RunResult)
        assert answer.interrupted
        refused = it.run("nsm", "run", "-e", "bash", "echo x")
        assert refused.returncode == 125
        assert "nsm drain --cancel" in refused.stderr
        assert "nothing new is taken" in it.run("nsm", "status").stdout
    finally:
        assert it.run("nsm", "drain", "--cancel").returncode == 0
    assert it.run("nsm", "run", "-e", "bash", "-s", "a", "echo x").stdout == "x\n"


def test_a_drain_waits_for_programs_of_a_map_and_begins_no_further_ones(
    emptied: Supervisor,
) -> None:
    it = emptied
    try:
        with it.client() as client, it.client() as other:
            codes = ["print(1)", *["import time; time.sleep(0.1)"] * 100]
            found = client.map(codes, session="map", env="python", at_once=1)
            results = [next(found)]
            assert it.run("nsm", "drain").stdout == "drained: nothing runs, 1 session kept\n"
            assert [row.state for row in other.sessions()] == ["idle"]
            results += found
        refused = [result for result in results if result.error]
        assert {result.exit_code for result in refused} == {125}
        assert "accepts nothing new" in refused[0].error
        assert 10 < len(results) - len(refused) < 40, "those that were sent have run"
        assert len(results) == len(codes)
    finally:
        assert it.run("nsm", "drain", "--cancel").returncode == 0


@pytest.mark.slow
def test_signals_while_it_ends_leave_nothing_behind() -> None:
    with supervisor() as it:
        with it.client() as client:
            for name in ("a", "b", "c"):
                client.run("1", env="bash", session=name)
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP) * 5:
            if it.process.poll() is None:
                it.process.send_signal(number)
        assert it.process.wait(END_TIMEOUT_S) == 0
