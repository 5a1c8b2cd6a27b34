"""Executions of one session: one at a time, in order of arrival.

The queue sends each to the agent with its time limit, its output to the callers that want it, and
its answer to those that wait. The session decides when the next one may start.
"""

from __future__ import annotations

import base64
import math
import os.path
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError, InternalError, NsmError, UnknownOperationError
from nsmd.agent_link.frames import ErrorFrame, InputFrame, Noted, OutputFrame, ResultFrame
from nsmd.host.event_loop import Timer
from nsmd.host.paths import is_within
from nsmd.model.limits import longest_setup_s
from nsmd.model.values import Outcome, Output, ProjectMount
from nsmd.sessions.agent_session import ANSWER_MARGIN_S, Lateness
from nsmd.sessions.execution import Execution, interrupted_early, out_of_time

if TYPE_CHECKING:
    from nsmd.sessions.session import Session

RETURN_S = 20.0
"""Time for a client to come back to its code after the supervisor was replaced. A client tries
again for less."""

RESUME_S = 300.0
"""Time for a client on another machine to come back after it lost the connection. It tries again
for as long (`nsm.startup.start.KEPT_S`)."""


class ExecutionQueue:
    """Executions of one session.

    Attributes:
        waiting: executions that wait, in order of arrival.
        count: number of executions sent to the agent.
        checkpoints: earlier states that undo can go back to, as the agent said last.
    """

    # Slots, as in the session: there may be a thousand.
    __slots__ = (
        "_agent_id",
        "_agent_keeps_time",
        "_answered_before",
        "_lateness",
        "_margin_s",
        "_overdue",
        "_returns",
        "_session",
        "_streamed",
        "_told_restart",
        "checkpoints",
        "count",
        "running",
        "waiting",
    )

    def __init__(self, session: Session) -> None:
        self._session = session
        self.waiting: list[Execution] = []
        self.running: Execution | None = None
        self.count = 0
        self.checkpoints = 0
        self._agent_id = ""  # id of the running execution
        self._streamed = False
        self._told_restart = ""  # why state was lost, according to the last result
        # Results that an earlier supervisor may have received, by the agent's ids.
        self._answered_before: dict[str, Execution] | None = None
        self._returns: Timer | None = None  # made for code that has standard input
        self._overdue = Timer(session.timers, self._no_answer)
        self._lateness = Lateness()
        self._agent_keeps_time = False
        self._margin_s = 0.0  # that an answer may take beyond the time limit

    def __repr__(self) -> str:
        return f"<ExecutionQueue of {self._session.id}: {self.running}, {len(self.waiting)} queued>"

    # For clients.

    def add(self, execution: Execution) -> None:
        """Add an execution behind all others."""
        if self.waiting or self.running is not None:
            execution.queued_behind = True
        self.waiting.append(execution)

    def interrupt(self, execution: Execution | None = None) -> bool:
        """Interrupt one execution, or the running one; return whether there was one."""
        session = self._session
        if execution is not None and execution in self.waiting:
            self.waiting.remove(execution)
            self._finish(execution, interrupted_early(), ran=False)
            if execution.origin.one_shot:
                session.end("one-shot interrupted before it began")
            return True
        running = self.running
        if running is None or (execution is not None and execution is not running):
            return False
        if not session.offers("interrupt"):
            session.end(
                "its execution was interrupted, and its agent can only be stopped as a whole"
            )
            return True
        session.events.publish("execution_interrupted", session=session.id, subject=running)
        session.post({"type": "interrupt", "id": self._agent_id})
        self._watch(self._session.limits.grace_s + ANSWER_MARGIN_S)
        return True

    def find(self, execution_id: str) -> Execution | None:
        """Find an execution that runs or waits."""
        for execution in (self.running, *self.waiting):
            if execution is not None and execution_id in (execution.id, execution.told_id):
                return execution
        return None

    async def write_input(
        self, execution_id: str, offset: int, data: bytes, *, eof: bool
    ) -> tuple[int, bool]:
        """Give code standard input; returns when there was room for it, or the code has ended.

        The agent leaves out what it has already, by the offset: whoever is not sure whether input
        arrived sends it again.

        Args:
            offset: bytes of input before this.

        Returns:
            The offset of what comes next, and whether more is taken.
        """
        execution, requests = self.find(execution_id), self._session.requests
        if execution is None:
            return offset, False
        if not execution.request.stdin:
            raise BadRequestError(
                f"Execution {execution_id[:200]!r} has no standard input.",
                hint="Run the code with `stdin`.",
            )
        await execution.wait_sent()
        if execution is not self.running:
            return offset, False
        frame: dict[str, Any] = {
            "type": "input",
            "id": requests.new_id(),
            "execution": self._agent_id,
            "offset": offset,
            "data": base64.b64encode(data).decode(),
            "eof": eof,
        }
        # There is an answer once the code has ended, which has a time limit.
        answer = await requests.ask("execute.stdin", frame, (InputFrame,), math.inf)
        assert isinstance(answer, InputFrame), "nothing else was asked for"
        execution.input_ended = execution.input_ended or eof
        return answer.offset, answer.open

    def abandoned(self, execution: Execution) -> None:
        """End a one-shot whose client is gone, or the input of other code; later, if the client may
        come back.
        """
        if not execution.request.client.resumes:
            self._give_up(execution)
        else:
            Timer(self._session.timers, lambda: self._give_up(execution)).arm(RESUME_S)

    def _give_up(self, execution: Execution) -> None:
        if execution.wanted or execution.done:
            return
        if execution.origin.one_shot:
            self._session.end("its client disconnected")
        else:
            self.end_input(execution)

    def end_input(self, execution: Execution) -> None:
        """End the standard input of code that no client waits for any more."""
        if execution.request.stdin and not execution.input_ended and not execution.wanted:
            execution.input_lost = True
            if execution is self.running:
                ended = {"id": f"input of {self._agent_id}", "execution": self._agent_id}
                self._session.post({"type": "input", **ended, "eof": True})

    def stream(self) -> None:
        """Ask the agent to stream the running execution's output from now on."""
        if self.running is not None and not self._streamed and self._session.offers("stream.late"):
            self._streamed = True
            self._session.transcript.stream()
            self._session.post({"type": "stream", "id": self._agent_id})

    # For the session.

    def agent_ready(self, capabilities: frozenset[str]) -> None:
        """Note what its agent can do."""
        session = self._session
        self._agent_keeps_time = "execute.timeout" in capabilities
        if self._agent_keeps_time:
            grace_s = session.limits.grace_s
            setup_s = longest_setup_s(session.spec.environment, grace_s)
            self._margin_s = grace_s + ANSWER_MARGIN_S + setup_s

    def send_next(self) -> None:
        """Send the first waiting execution to the agent."""
        session = self._session
        execution = self.running = self.waiting.pop(0)
        self.count += 1
        session.active_s = self._session.timers.now()
        self._agent_id = f"{self.count}.{execution.id}"
        self._streamed = bool(execution.sinks) or session.transcript.followers > 0
        session.transcript.begin(execution.id, execution.request, streamed=self._streamed)
        execution.note_sent()
        self._session.events.publish("execution_started", session=session.id, subject=execution)
        if (confinement := session.confinement) is not None:
            confinement.begun()
        given = {
            "stdin": execution.request.stdin and "standard input",
            "argv": len(execution.request.argv) > 1 and "arguments",
        }
        lacks = [
            what for kind, what in given.items() if what and not session.offers(f"execute.{kind}")
        ]
        if lacks:
            self._answered(
                UnknownOperationError(
                    f"The session's agent is too old to give code {lacks[0]}; it was not run.",
                    hint="End the session and start another; if Nix has built its environment for "
                    "an older nsm, build it again first.",
                )
            )
            return
        frame: dict[str, object] = {
            "type": "execute",
            "id": self._agent_id,
            "interpreter": self._session.spec.environment.interpreter,
            "code": execution.request.code,
            "timeout_s": execution.origin.timeout_s,
            "grace_s": self._session.limits.grace_s,
            "stream": self._streamed,
        }
        if execution.origin.one_shot and session.offers("execute.one_shot"):
            frame["one_shot"] = True
        if execution.request.reset:
            frame["reset"] = True
        if execution.request.argv:
            frame["argv"] = _arguments_in(execution.request.argv, session.spec.project)
        if execution.request.undo:
            frame["undo"] = execution.request.undo
        if execution.request.stdin and not execution.input_lost:
            frame["stdin"] = True
        if session.offers("notes"):
            known = {} if confinement is None else confinement.execution_note()
            frame["note"] = execution.note_for_agent() | known
        if (chars := execution.request.reply_chars) is not None:
            # For agents that count bytes only: a character has at most four.
            frame |= {"reply_chars": chars, "reply_bytes": 4 * chars}
        session.post(frame)
        self._watch(execution.origin.timeout_s + self._margin_s)

    def take_up(
        self, under_way: Iterable[Noted], handle: Callable[[Noted], Execution]
    ) -> Mapping[str, object]:
        """Continue the execution that a session's agent ran for an earlier supervisor.

        Returns:
            The note of the execution that may still run.
        """
        note: Mapping[str, object] = {}
        # In the order in which they began; only the last one may still run.
        for noted in sorted(under_way, key=lambda each: (each.runs, _number(each.id))):
            execution = handle(noted)
            if self.running is not None:
                self._answered_before = (self._answered_before or {}) | {
                    self._agent_id: self.running
                }
            self.running, self._agent_id, note = execution, noted.id, noted.note
        return note

    def go_on(self, execution: Execution, note: Mapping[str, object]) -> None:
        """Treat an execution as if it had just been sent: only the agent knows how long
        it has run.
        """
        request = execution.request
        self._streamed = False
        self._session.transcript.begin(
            execution.id, request, streamed=False, sent_at=execution.sent_at
        )
        execution.note_sent()
        if (confinement := self._session.confinement) is not None:
            confinement.resume_execution(note)
        if request.stdin:
            self._returns = Timer(self._session.timers, lambda: self.end_input(execution))
            self._returns.arm(RETURN_S)
        self._watch(execution.origin.timeout_s + self._margin_s)

    def fail(self, error: NsmError) -> None:
        """Answer all executions with the error; nothing more will run."""
        running, self.running = self.running, None
        for execution in (self._answered_before or {}).values():
            execution.finish(error)
        if running is not None:
            self._finish(running, error)
        while self.waiting:
            self._finish(self.waiting.pop(0), error, ran=False)

    def close(self) -> None:
        """Stop the timers."""
        self._overdue.close()
        if self._returns is not None:
            self._returns.close()

    # For frames of the agent.

    def output(self, frame: OutputFrame) -> None:
        """Take output of the running execution; other output is ignored."""
        if self.running is not None and frame.id == self._agent_id:
            output = Output(stream=frame.stream, text=frame.text)
            self._session.transcript.output(output)
            self.running.emit(output)

    def result(self, frame: ResultFrame) -> None:
        """Take the result of the running execution, or of one that an earlier supervisor sent."""
        if self.running is not None and frame.id == self._agent_id:
            self._answered(frame.outcome)
        elif self._answered_before:
            execution = self._answered_before.pop(frame.id, None)
            if execution is not None:
                execution.finish(frame.outcome)

    def refused(self, frame: ErrorFrame) -> bool:
        """Return whether the agent refused the running execution."""
        if self.running is None or frame.id != self._agent_id:
            return False
        self._answered(InternalError(f"The agent refused the code: {frame.message}"))
        return True

    def _answered(self, answer: Outcome | NsmError) -> None:
        session = self._session
        execution, self.running, self._agent_id = self.running, None, ""
        self._overdue.disarm()
        session.active_s = session.timers.now()
        if execution is not None:
            if (confinement := session.confinement) is not None:
                outcome = answer if isinstance(answer, Outcome) else None
                execution.limit_events = confinement.ended(outcome)
            if isinstance(answer, Outcome):
                self.checkpoints = answer.checkpoints
                answer = self._without_repetition(execution, answer)
                if session.jail is not None and (remarks := session.jail.remarks()):
                    answer = replace(answer, notes=(*answer.notes, *remarks))
            self._finish(execution, answer)
        session.answered(execution)

    def _without_repetition(self, execution: Execution, outcome: Outcome) -> Outcome:
        """The outcome, without a restart that the result before reported already.

        The agent reports a restart twice: with the execution that ended the interpreter, and with
        the first one of the new interpreter.
        """
        told, self._told_restart = self._told_restart, ""
        if not outcome.interpreter_restarted:
            return outcome
        if outcome.restart_reason == told != "":
            return replace(outcome, interpreter_restarted=False, restart_reason="")
        # Nobody reads the answer of a cancelled call, or of one whose client is gone.
        if not outcome.interrupted and execution.wanted:
            self._told_restart = outcome.restart_reason
        return outcome

    # Time limits.

    def _watch(self, seconds: float) -> None:
        """End the session if the running execution has no answer by then.

        The agent enforces the time limit itself. This is for an agent that was starved or taken
        over, and for older agents that know no limit.
        """
        self._lateness.begin()
        self._overdue.arm(seconds)

    def _no_answer(self) -> None:
        execution = self.running
        if execution is None or self._agent_keeps_time:
            if self._lateness.is_final(self._session.jail):
                self._session.end("its agent did not answer in time")
            else:
                self._overdue.arm(ANSWER_MARGIN_S)
            return
        what = f"its code ran longer than {execution.origin.timeout_s:g} s, and its agent"
        reason = f"{what} can only be stopped as a whole"
        self.running, self._agent_id = None, ""
        self._finish(execution, out_of_time(reason))
        self._session.end(reason)

    def _finish(
        self, execution: Execution, answer: Outcome | NsmError, *, ran: bool = True
    ) -> None:
        session, request = self._session, execution.request
        execution.finish(answer)  # first, since somebody waits
        if ran:
            session.transcript.finish(answer)
        else:
            session.transcript.never_ran(execution.id, request, answer)
        session.events.publish("execution_finished", session=session.id, subject=execution)


def _arguments_in(argv: Sequence[str], project: ProjectMount | None) -> list[str]:
    """The same arguments, with the script's path as code sees it: its name, if it does not."""
    file, *arguments = argv
    if project is not None and is_within(file, project.path):
        inside = os.path.relpath(file, project.path)
        return [os.path.join(project.mount_point, inside), *arguments]
    return [os.path.basename(file), *arguments]


def _number(agent_id: str) -> int:
    """Read the number of an execution within its session from its id at the agent."""
    number = agent_id.partition(".")[0]
    return int(number) if number.isdecimal() and len(number) < 20 else 0
