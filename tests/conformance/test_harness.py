"""Wrong answers make a case fail."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from conformance.campaign import run_case
from conformance.cases import Case, Language, Step, load_all
from conformance.judge import Answer, problems
from conformance.targets import LostAnswerError, Session

RIGHT = Answer(
    exit_code=0, displays=[], truncated={}, timed_out=False, interrupted=False, restarted=False
)


@pytest.mark.parametrize(
    ("step", "answer", "says"),
    [
        (Step(code=""), replace(RIGHT, stdout="x"), "stdout is 'x', expected ''"),
        (Step(code=""), replace(RIGHT, exit_code=1), "exit code 1, expected 0"),
        (Step(code=""), replace(RIGHT, timed_out=True), "timed_out is True"),
        (Step(code="", interrupted=True), RIGHT, "interrupted is False"),
        (Step(code="", restarted=True), replace(RIGHT, restarted=True), "no reason is given"),
        (Step(code="", stdout=None, stdout_has=("a",)), RIGHT, "has no 'a'"),
        (Step(code="", stdout=None, stdout_like=("^a$",)), RIGHT, "does not match"),
        (Step(code="", displays=({"text/plain": "1"},)), RIGHT, "0 displays"),
        (Step(code="", truncated=("stdout",)), RIGHT, "is not truncated"),
        (Step(code="", refused=True), RIGHT, "was not refused"),
        (Step(code=""), Answer(refused="no"), "refused: no"),
        (Step(code=""), Answer(ended="gone"), "session ended: gone"),
        (Step(code="", stdout="a"), Answer(text="b", stdout="b"), "expected 'a'"),
    ],
)
def test_a_wrong_answer_is_told(step: Step, answer: Answer, says: str) -> None:
    assert any(says in problem for problem in problems(step, answer))


class Liar:
    """A target whose session has one fault."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._said = [""]
        self._state = ""

    def lacks(self, case: Case) -> str:
        return ""

    @contextmanager
    def session(self, case: Case) -> Generator[Session]:
        yield self

    def run(self, step: Step, language: Language) -> Answer:
        right = ""
        if "nsm_state}" in step.code:
            right = step.code.partition("f'")[2].partition(" ")[0] + f" {self._state}\n"
        elif "nsm_state" in step.code:
            self._state = step.code.split("'")[1]
        self._said.append(right)
        if self._fault == "stale":
            return replace(RIGHT, stdout=self._said[-2])
        if self._fault == "forgetful" and right:
            return replace(RIGHT, stdout=right.split()[0] + " other\n")
        if self._fault == "silent" and right:
            raise LostAnswerError("no answer in time")
        if self._fault == "restarting" and right:
            return replace(RIGHT, stdout=right, restarted=True, reason="r")
        return replace(RIGHT, stdout=right)


@pytest.mark.parametrize("fault", ["stale", "forgetful", "silent", "restarting"])
def test_the_probe_finds_what_the_answer_itself_hides(fault: str) -> None:
    case = load_all()[0]
    case = replace(case, language="python", steps=(Step(code="pass"),))
    assert not run_case(case, Liar("none")).problems
    assert "the next execution" in run_case(case, Liar(fault)).problems[0]
