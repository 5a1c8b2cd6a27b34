"""Runs cases against a target and keeps what came of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from conformance import judge
from conformance.cases import Case, Language, Step
from conformance.targets import LostAnswerError, Session, Target

PROBE_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Outcome of a case.

    Attributes:
        problems: what was expected and seen; empty unless it failed.
        note: why it is not applicable; empty if it is.
    """

    problems: Sequence[str] = ()
    note: str = ""


def run_case(case: Case, target: Target) -> Report:
    """Run one case in a session of its own."""
    if note := target.lacks(case):
        return Report(note=note)
    try:
        with target.session(case) as session:
            if note := missing_module(case, session):
                return Report(note=note)
            return Report(problems=_Run(case, session).problems())
    except LostAnswerError as error:
        return Report(problems=[str(error)])


def missing_module(case: Case, session: Session) -> str:
    """Explain why the case cannot apply to this Python; empty if it does."""
    for name in case.modules:
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
        answer = session.run(Step(code=code), "python")
        if answer.exit_code:
            return f"has no module {name}"
    return ""


def start(
    cases: Iterable[Case], target: Target, pool: ThreadPoolExecutor
) -> dict[str, Future[Report]]:
    """Run cases in a pool of threads; the futures have the cases' ids for keys."""
    return {case.id: pool.submit(run_case, case, target) for case in cases}


class _Run:
    """One case on its way: which state every interpreter of the session has to have."""

    def __init__(self, case: Case, session: Session) -> None:
        self._case = case
        self._session = session
        self._state: dict[Language, str] = {}
        self._unused = {
            step.language or case.language for step in case.steps if step.probe != "off"
        }

    def problems(self) -> list[str]:
        """Run the steps; those after one that went wrong say nothing and are left out."""
        for number, step in enumerate(self._case.steps, 1):
            found = self._step(step, step.language or self._case.language)
            if found:
                return [f"step {number}: {problem}" for problem in found]
        return []

    def _step(self, step: Step, language: Language) -> list[str]:
        if language in self._unused:
            self._unused.remove(language)
            if found := self._set_state(language):
                return found
        answer = self._session.run(step, language)
        found = judge.problems(step, answer)
        untold = answer.restarted is None and step.restarted is not False
        if answer.ended or answer.restarted or untold:
            self._state.pop(language, None)
        if step.probe != "off":
            # Also after a wrong answer: whether the next one is right says more about the fault.
            found += self._set_state(language) or self._probe(step, language)
        return found

    def _set_state(self, language: Language) -> list[str]:
        """Make the state that probes look for, unless it is there."""
        if language in self._state:
            return []
        state = secrets.token_hex(8)
        setting = Step(code=judge.setting(language, state), restarted="either")
        try:
            found = judge.problems(setting, self._session.run(setting, language))
        except LostAnswerError as error:
            found = [str(error)]
        self._state[language] = state
        return [f"the next execution, which sets state: {problem}" for problem in found]

    def _probe(self, step: Step, language: Language) -> list[str]:
        token = secrets.token_hex(16)
        code = judge.probe(language, token)
        probe = Step(code=code, timeout_s=PROBE_TIMEOUT_S, restarted="either")
        try:
            answer = self._session.run(probe, language)
        except LostAnswerError as error:
            return [f"the next execution: {error}"]
        return judge.probe_problems(step, answer, f"{token} {self._state[language]}\n")
