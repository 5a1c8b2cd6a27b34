"""Set-up of interpreters: code that each runs before any other when it starts."""

from __future__ import annotations

import os

from sandbox.execution import GRACE_S
from sandbox.fields import as_object, is_seconds
from sandbox.framing import FrameError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from sandbox.agent import Agent
    from sandbox.execution import CurrentExecution
    from sandbox.interpreters.base import Interpreter


SETUP_EXCERPT_BYTES = 4096
"""Largest excerpt of a failed step's output, beginning and end together."""

MAX_SETUP_STEPS = 16

VARIABLES_S = 10.0
"""Time limit for sending variables to a running interpreter, which takes less than a millisecond.
"""


class Step:
    """Code that an interpreter runs before any other, each time it starts.

    Args:
        name: for people.
        timeout_s, grace_s: after that it is interrupted like any execution, and then killed.

    Attributes:
        told: its failure was reported; later failures are not.
        preloads: it imports modules that a fork of an image's Python has already.
        late: other code may have run before it, whose state counts.
    """

    late = False

    def __init__(
        self, name: str, code: str, timeout_s: float, grace_s: float, *, preloads: bool = False
    ) -> None:
        self.name = name
        self.code = code
        self.timeout_s = timeout_s
        self.grace_s = grace_s
        self.told = False
        self.preloads = preloads

    @staticmethod
    def all_of(given: Mapping[str, Any]) -> list[Step]:
        """
        Raises:
            ValueError: they are not as in docs/contributing/agent-protocol.md.
        """
        steps: list[Any] | None = given.get("steps")
        timeout_s: Any = given.get("timeout_s")
        grace_s: Any = given.get("grace_s", GRACE_S)
        if type(steps) is not list or len(steps) > MAX_SETUP_STEPS:
            raise ValueError(f"setup needs steps, a list of at most {MAX_SETUP_STEPS}")
        if not is_seconds(timeout_s) or not is_seconds(grace_s):
            raise ValueError("setup needs timeout_s and takes grace_s, seconds")
        found: list[Step] = []
        for step in steps:
            fields = as_object(step) or {}
            name, code = fields.get("name"), fields.get("code")
            if isinstance(name, str) and isinstance(code, str):
                preloads = fields.get("preloads") is True
                times_s = float(timeout_s), float(grace_s)
                found.append(Step(name, code, *times_s, preloads=preloads))
                continue
            raise ValueError("each step of setup needs a name and code, texts")
        return found


class Setups:
    """Runs the steps of set-ups, before the executions that wait for them."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._known = False

    def read(self, message: Mapping[str, Any]) -> tuple[Interpreter, list[Step]] | None:
        """Read the first set-up of a `hello`.

        Raises:
            ValueError: it is not valid.
        """
        given = as_object(message.get("setup"))
        if given is None or self._known:
            return None
        name = given.get("interpreter")
        interpreter = self._agent.interpreters.get(name) if isinstance(name, str) else None
        if interpreter is None:
            raise ValueError(f"setup is for interpreter {name!r:.50}, which is not in this session")
        return interpreter, Step.all_of(given)

    def take(self, interpreter: Interpreter, steps: list[Step]) -> None:
        self._known = True
        interpreter.setup = steps
        if interpreter.pid and not interpreter.has_state and self._agent.running is None:
            interpreter.steps = interpreter.needed(steps)
            self.go_on(interpreter)

    def set_variables(self, variables: Mapping[str, str]) -> None:
        """Have code find them from now on, in interpreters that run as well."""
        new = {name: value for name, value in variables.items() if os.environ.get(name) != value}
        if not new:
            return
        os.environ.update(new)
        for interpreter in self._agent.live_interpreters():
            unused = self._agent.running is None and not interpreter.has_state
            if unused and interpreter.reads_variables_at_start:
                interpreter.start_over()
                continue
            step = Step("network", interpreter.variables_code(new), VARIABLES_S, GRACE_S)
            step.late = True
            interpreter.steps.append(step)
            if self._agent.running is None:
                self.go_on(interpreter)

    def go_on(self, interpreter: Interpreter) -> None:
        """Run the next step of a set-up, or what waited for the last one."""
        if interpreter.steps:
            self._begin_step(interpreter, interpreter.steps[0])
            return
        interpreter.end_setup()
        waiting, self._agent.executions.waiting = self._agent.executions.waiting, None
        if waiting is not None:
            self._agent.executions.execute(waiting)

    def _begin_step(self, interpreter: Interpreter, step: Step) -> None:
        interpreter.begin_step()
        execution = self._agent.executions.begin("", interpreter, step.grace_s)
        execution.step = step
        self._agent.poller.at(
            "stop", execution.started + step.timeout_s, self._agent.stopper.on_timeout
        )
        try:
            interpreter.send_code(execution.number, step.code)
        except (FrameError, OSError) as error:
            self.finish_step(execution, step, 0, f"could not be handed over: {error}")

    def finish_step(
        self, execution: CurrentExecution, step: Step, exit_code: int, why: str = ""
    ) -> None:
        """Go on with the next step, in a fresh interpreter if this one has ended it.

        Args:
            why: it could not be run.
        """
        interpreter = execution.interpreter
        self._agent.stopper.cancel_timers()
        if execution.stopping and interpreter.pid:
            self._agent.stopper.signal_latecomers(execution)
        said = interpreter.take_output()["stderr"].result()[0]
        interpreter.take_displays()
        interpreter.take_notes()
        self._agent.running = None
        if self._agent.live_interpreters() != [interpreter]:
            self._agent.trees.note_orphans(interpreter)
        if interpreter.pid and not interpreter.is_intact():
            self._agent.executions.end_interpreter(
                interpreter, "lost descriptors that belong to nsm"
            )
        if not interpreter.pid:
            why = f"is left out from now on: {interpreter.lost}"
        elif execution.timed_out:
            why = f"was interrupted after {step.timeout_s:g} s"
        elif execution.interrupted:
            why = "was interrupted"
        elif exit_code != 0 and said.strip():  # a hook's last command may well be a test
            why = f"failed with exit code {exit_code}"
        if why:
            interpreter.complain(step, why, said)
        if not step.late:
            interpreter.has_state = False
            interpreter.lost = ""
        if interpreter.pid:
            del interpreter.steps[0]
        else:
            # It would end the next one as well.
            interpreter.setup = [each for each in interpreter.setup if each is not step]
            try:
                interpreter.start()
            except OSError as error:
                interpreter.end_setup()
                waiting, self._agent.executions.waiting = self._agent.executions.waiting, None
                if waiting is not None:
                    self._agent.executions.end_input()
                    self._agent.fail(f"cannot start {interpreter.program}: {error}", waiting["id"])
                return
        self.go_on(interpreter)
