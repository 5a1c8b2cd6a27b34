"""Random programs in random sessions, interrupted, killed and timed out at random.

Whatever happens, each question gets one answer, the answer is its own, and a session that is still
there afterwards works. Hypothesis draws the programs from the conformance cases and the order of
events; `make soak` runs ten thousand executions.
"""

from __future__ import annotations

import faulthandler
import os
import re
import secrets
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType]
)

from e2e_support import descendants, supervisor
from nsm.wire.errors import NsmError, OverloadedError, SessionEndedError, StartFailedError
from nsm.wire.messages import Failure
from soak.pipelined import Pipelined
from soak.programs import Program, programs

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, pytest.mark.node]

EXECUTIONS = int(os.environ.get("SOAK_EXECUTIONS", "1000"))
"""In the long test; `make soak` says ten thousand."""

ENVS = ("python", "bash", "node")
NAMES = ("a", "b", "c")
"""Three sessions of each environment: executions meet each other, and others go on beside them."""

CONFIG = """
[defaults]
interrupt_grace_seconds = 0.2
processes = 64
[session]
max_queued = 12
"""

SHORT_S = 0.25
LONG_S = 3.0
"""Time limits: one that programs which wait for something reach, and one that few reach."""

ANSWER_S = 120.0
"""Time limit for an answer, behind all that is queued before it on a busy machine."""

POOLED = 4
"""Fresh jails that may have lost a process when they were still nobody's."""

MAX_OPEN = 48
"""Questions without an answer at a time; more only wait longer."""

ASKED = st.tuples(
    st.integers(0, 1 << 30),
    st.sampled_from(NAMES),
    st.sampled_from([SHORT_S, SHORT_S, LONG_S]),
    st.booleans(),
)
"""A program, one of its environment's sessions, a time limit, and True if it streams."""

TOKEN = re.compile(r"storm-[0-9a-f]{16}")


@dataclass(slots=True)
class Question:
    """One execution that was asked for.

    Attributes:
        stream: it was to be told its output as it comes.
        touched: something was done to it or to its session that may end it early.
    """

    token: str
    program: Program
    session: tuple[str, str]
    limit_s: float
    stream: bool
    touched: bool = False


@dataclass(slots=True)
class Tally:
    """Totals of a storm; `-s` prints them, and some must not be zero."""

    asked: int = 0
    answered: int = 0
    outcomes: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def executions(self) -> int:
        """Number of executions that were run, or were stopped before they could be."""
        refused = ("overloaded", "session-ended", "start-failed")
        return self.answered - sum(self.outcomes.get(code, 0) for code in refused)

    def count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


class Storm(RuleBasedStateMachine):
    """Random programs in random sessions. One supervisor lives through all examples, as it would
    through a month."""

    shared: ClassVar[Supervisor]
    choices: ClassVar[list[Program]]
    tally: ClassVar[Tally]

    def __init__(self) -> None:
        super().__init__()
        self.client = Pipelined(self.shared.socket)
        self.open: dict[int, Question] = {}
        self.hit = False  # a process was killed, perhaps that of a session nobody has yet

    # What may happen.

    @rule(asked=st.lists(ASKED, min_size=1, max_size=8))
    def ask(self, asked: list[tuple[int, str, float, bool]]) -> None:
        for choice, name, limit_s, stream in asked:
            self._ask(self.choices[choice % len(self.choices)], name, limit_s, stream=stream)

    def _ask(self, program: Program, name: str, limit_s: float, *, stream: bool) -> None:
        token = f"storm-{secrets.token_hex(8)}"
        limit_s = min(limit_s, program.timeout_s)
        session = (program.env, name)
        number = self.client.ask(
            "run",
            {
                "env": program.env,
                "session": "-".join(session),
                "code": program.saying(token),
                "timeout_s": limit_s,
                "stream": stream,
            },
        )
        self.open[number] = Question(token, program, session, limit_s, stream)
        self.tally.asked += 1
        if len(self.open) > MAX_OPEN:
            self.settle(next(iter(self.open)))

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, MAX_OPEN))
    def cancel(self, which: int) -> None:
        number = list(self.open)[which % len(self.open)]
        self.open[number].touched = True
        self.client.cancel(number)

    @rule(env=st.sampled_from(ENVS), name=st.sampled_from(NAMES))
    def interrupt(self, env: str, name: str) -> None:
        self._touch((env, name))
        self.client.answer(self.client.ask("interrupt", {"target": f"{env}-{name}"}), within_s=60)

    @rule(env=st.sampled_from(ENVS), name=st.sampled_from(NAMES))
    def kill(self, env: str, name: str) -> None:
        self._touch((env, name))
        self.client.answer(self.client.ask("kill", {"targets": [f"{env}-{name}"]}), within_s=60)

    @rule(choice=st.integers(0, 1 << 30))
    def kill_a_process(self, choice: int) -> None:
        """An interpreter, an agent, a child of somebody's code, bubblewrap itself."""
        below = sorted(descendants(self.shared.pid))
        if below:
            self.hit = True
            for question in self.open.values():  # whose it is can't be told from outside
                question.touched = True
            with suppress(ProcessLookupError):  # it went by itself
                os.kill(below[choice % len(below)], signal.SIGKILL)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, MAX_OPEN))
    def look(self, which: int) -> None:
        """Wait for one of the answers."""
        self.settle(list(self.open)[which % len(self.open)])

    # What must hold.

    @invariant()
    def the_supervisor_lives(self) -> None:
        assert self.shared.process.poll() is None, self.shared.log.read_text()[-3000:]

    def settle(self, number: int) -> None:
        question = self.open.pop(number)
        answer = self.client.answer(number, within_s=ANSWER_S)
        self.tally.answered += 1
        for name in ("stdout", "stderr"):
            text = self.client.streamed.pop((number, name), "")
            assert question.stream or not text, ("a stream that nobody asked for", question)
            said = set(TOKEN.findall(text))
            assert said <= {question.token}, ("another's stream", question, text[-3000:])
            if said:
                self.tally.count("streamed")
        if isinstance(answer, Failure):
            self._check_error(question, answer.error)
        else:
            self._check_result(question, answer.result)

    def _check_error(self, question: Question, error: NsmError) -> None:
        expected = [SessionEndedError, OverloadedError, *([StartFailedError] if self.hit else [])]
        assert isinstance(error, tuple(expected)), (question, error)
        assert error.message
        self.tally.count(error.code)

    def _check_result(self, question: Question, result: dict[str, Any]) -> None:
        said = f"{result['stdout']}\n{result['stderr']}\n{result['displays']}"
        tokens = set(TOKEN.findall(said))
        assert tokens <= {question.token}, ("another's output", question, result)
        assert result["env"] == question.session[0]
        assert result["session"]["name"] == "-".join(question.session)
        if result["timed_out"]:
            self.tally.count("timed out")
            assert result["exit_code"] == 124, (question, result)
        elif result["interrupted"]:
            self.tally.count("interrupted")
            assert question.touched, ("nobody interrupted it", question, result)
            assert result["exit_code"] == 130, (question, result)
        elif result["interpreter_restarted"]:
            self.tally.count("restarted")
            assert result["restart_reason"], (question, result)
        elif tokens:
            self.tally.count("ran")
        else:
            # What earlier programs did to a session may keep the token from being said; in a new
            # one nothing may but the program itself.
            self.tally.count("silent")
            fresh = result["session"]["created"]
            assert not fresh or self._is_silent(question), (
                "no output of its own",
                question,
                result,
            )

    def _is_silent(self, question: Question) -> bool:
        """Return whether the program prints nothing in a fresh jail either: syntax errors and
        failures of the first line end before the token."""
        args = {
            "env": question.program.env,
            "code": question.program.saying(question.token),
            "timeout_s": question.limit_s,
        }
        for _ in range(POOLED + 1):
            alone = self.client.answer(self.client.ask("run", args), within_s=ANSWER_S)
            if not isinstance(alone, Failure):
                return question.token not in alone.result["stdout"]
        raise AssertionError("no fresh jail runs it")

    def teardown(self) -> None:
        try:
            for number in list(self.open):
                self.settle(number)
            for row in self.client.result("sessions", {})["sessions"]:
                self._check_works(row)
            self.client.result("kill", {"all": True})
        finally:
            self.client.__exit__()

    def _check_works(self, row: dict[str, Any]) -> None:
        """A session that is there answers, and with nothing but the answer. The first to ask may
        find a process that was killed a moment ago; and a program may have spoiled the session
        for others (`del __builtins__`, a DEBUG trap that forbids every command)."""
        for last in (False, True):
            token = f"storm-{secrets.token_hex(8)}"
            code = Program("", row["env"], "", LONG_S).saying(token)
            answer = self.client.answer(
                self.client.ask("run", {"env": row["env"], "session": row["name"], "code": code}),
                within_s=ANSWER_S,
            )
            if isinstance(answer, Failure):
                assert not last, ("does not work any more", row, answer)
                continue
            said = answer.result["stdout"] + answer.result["stderr"]
            assert set(TOKEN.findall(said)) <= {token}, ("another's output", row, answer)
            if token in answer.result["stdout"]:
                self.tally.count("works")
                return
            if last:
                self.tally.count("spoiled")

    def _touch(self, session: tuple[str, str]) -> None:
        for question in self.open.values():
            if question.session == session:
                question.touched = True


@pytest.fixture(scope="module")
def storm() -> Generator[type[Storm]]:
    faulthandler.cancel_dump_traceback_later()  # pytest's; the long one takes its time
    with supervisor(config=CONFIG) as shared:
        Storm.shared = shared
        Storm.choices = programs(ENVS)
        Storm.tally = Tally()
        yield Storm


def run_storm(storm: type[Storm], *, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        storm,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            # Time and other processes have their part in it: an example can't be made smaller by
            # running parts of it again.
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow],
            print_blob=False,
        ),
    )


@pytest.mark.slow
def test_every_answer_is_matched_to_its_question(storm: type[Storm]) -> None:
    tally = storm.tally
    while tally.executions < EXECUTIONS:
        run_storm(storm, examples=10, steps=100)
    print(tally)
    assert tally.asked == tally.answered
    assert tally.executions >= EXECUTIONS
    for what, least in (("ran", EXECUTIONS // 200), ("streamed", 0), ("works", 0)):
        assert tally.outcomes.get(what, 0) > least, "else all of it may have been refusals"
    for what in ("timed out", "interrupted"):
        assert tally.outcomes.get(what, 0) > EXECUTIONS // 200
