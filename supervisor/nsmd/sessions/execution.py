"""One submitted piece of code, from the queue to its answer."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Literal

import trio

from nsm.dataclass import dataclass, replace
from nsm.wire.errors import NsmError
from nsmd.denials.suspicion import looks_suspicious
from nsmd.model.values import (
    ClientIdentity,
    Environment,
    LimitEvent,
    Outcome,
    Output,
    OutputSink,
    RunOutcome,
    RunRequest,
)

if TYPE_CHECKING:
    from nsmd.network.decisions import Decision
    from nsmd.sessions.session import Session


ExecutionOutcome = Literal["ok", "error", "timeout", "interrupted", "lost"]

_KEPT_CODE_CHARS = 500
"""Longer code is dropped: thousands of results are remembered, and code may have megabytes."""


MAX_RESULTS = 1000
MAX_FORGOTTEN = 50_000
"""Ids of executions whose results were dropped: so many that a client which asks again after a
lost connection finds its own."""

MAX_RESULT_BYTES = 32 * 1024 * 1024
"""Total size of the results of finished executions that clients can still ask for."""

_INPUT_LOST = "the client that sent its standard input was gone before the end of that"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Facts that the run service knows about a call, for its result.

    Attributes:
        env: the environment's own name, aliases resolved.
        replaced: how an earlier session of that name ended; None when there was none.
        clamped_from_s: larger limit that the client asked for; else None.
    """

    env: str
    created: bool
    replaced: str | None
    timeout_s: float
    clamped_from_s: float | None
    one_shot: bool
    notes: tuple[str, ...] = ()
    environments: Callable[[ClientIdentity], Sequence[Environment]] = lambda _: ()


class Execution:
    """Handle of one execution. Its session owns it; any number of tasks may wait for it.

    Attributes:
        earlier: another supervisor began it; times count from the take-over.
        told_id: its id, as the agent says, if another supervisor began it.
        submitted_s, sent_s: times of the request and of its sending to the agent, on trio's clock.
        sent_at: Unix time when that supervisor sent it, as the agent says; else None.
        sinks: of those who want the output while the code runs.
        queued_behind: another execution of the session was in front of it.
        outcome: how it ended, in a word, once it has.
        input_ended: its client has sent all of its standard input.
        input_lost: its standard input has ended early, since its client is gone.
    """

    def __init__(
        self,
        execution_id: str,
        request: RunRequest,
        origin: Origin,
        session: Session,
        on_output: OutputSink | None,
        on_finished: Callable[[Execution], None],
        callers: int = 1,
    ) -> None:
        self.id = execution_id
        self.request = request
        self.origin = origin
        self.session = session
        self.limit_events: tuple[LimitEvent, ...] = ()
        self.sinks: tuple[OutputSink, ...] = () if on_output is None else (on_output,)
        self.earlier = False
        self.told_id = execution_id
        self.sent_at: float | None = None
        self.input_ended = self.input_lost = False
        self._callers = callers
        self._on_finished = on_finished
        self.submitted_s = trio.current_time()
        self.sent_s: float | None = None
        self._decided = 0  # decisions about its session's network when it was sent
        self.queued_behind = False
        self._tell: Callable[[RunOutcome | NsmError], None] | None = None
        self._finished: trio.Event | None = None  # made when somebody waits
        self._sent: trio.Event | None = None  # likewise
        self.answer: RunOutcome | NsmError | None = None
        self.outcome: ExecutionOutcome = "lost"

    def __repr__(self) -> str:
        state = "done" if self.done else "running" if self.sent_s is not None else "queued"
        return f"<Execution {self.id} in {self.session.id} {state}>"

    @property
    def done(self) -> bool:
        """True once the answer is there."""
        return self.answer is not None

    def runs_s(self, now: float) -> float:
        """Seconds that it has been with the agent; `now` is on trio's clock."""
        return 0.0 if self.sent_s is None else max(0.0, now - self.sent_s)

    @property
    def answer_bytes(self) -> int:
        """Approximate size of the answer in memory; the code is dropped when the answer comes."""
        if not isinstance(self.answer, RunOutcome):
            return 1000 + len(str(self.answer))
        outcome = self.answer.outcome
        words = len(outcome.restart_reason) + sum(
            len(truncation.file or "") for truncation in outcome.truncated.values()
        )
        displayed = sum(
            len(kind) + len(str(data)) for shown in outcome.displays for kind, data in shown.items()
        )
        return 1000 + len(outcome.stdout) + len(outcome.stderr) + words + displayed

    @property
    def wanted(self) -> bool:
        """True if a caller still waits for the answer."""
        return self._callers > 0

    async def wait(self) -> RunOutcome:
        """Wait for the answer. Cancelling the waiter does not cancel the execution."""
        await self.wait_done()
        if isinstance(self.answer, RunOutcome):
            return self.answer
        assert self.answer is not None
        # A copy for each waiter: a traceback holds the waiter's frames, code included, and the
        # answer is remembered.
        raise copy(self.answer)

    async def wait_done(self) -> None:
        """Return once the answer is there, whatever it is."""
        if self.answer is not None:
            await trio.lowlevel.checkpoint()
            return
        if self._finished is None:
            self._finished = trio.Event()
        await self._finished.wait()

    async def wait_sent(self) -> None:
        """Return once it has been sent to the agent, or the answer is there."""
        if self.sent_s is None and self.answer is None:
            self._sent = self._sent or trio.Event()
            await self._sent.wait()

    def when_answered(self, function: Callable[[RunOutcome | NsmError], None]) -> None:
        """Call a function with the answer instead of waiting; at once if the answer is there. Only
        one.

        The session's task calls it: it must neither wait nor raise.
        """
        if self.answer is not None:
            function(self.answer)
        else:
            self._tell = function

    def interrupt(self) -> None:
        """Ask for an interrupt; the answer then says `interrupted`."""
        self.session.runs.interrupt(self)

    def join(self, on_output: OutputSink | None = None) -> Execution:
        """Add a caller that lost its connection and asks again over another."""
        self._callers += 1
        if on_output is not None and not self.done:
            self.sinks = (*self.sinks, on_output)
            if self.session.runs.running is self:
                self.session.runs.stream()
        return self

    def abandon(self, on_output: OutputSink | None = None) -> None:
        """Remove a caller. Without callers, a one-shot ends, but a named session's execution
        continues; its standard input ends.
        """
        self.sinks = tuple(sink for sink in self.sinks if sink != on_output)
        self._callers -= 1
        if self._callers > 0:
            return
        self.sinks, self._tell = (), None
        self.session.abandoned(self)

    # For the session.

    def note_for_agent(self) -> dict[str, object]:
        """Make the note that the agent remembers, for a later supervisor."""
        origin, client = self.origin, self.request.client
        known: dict[str, object] = {
            "id": self.id,
            "client": client.name,
            "scope": client.scope,
            "timeout_s": origin.timeout_s,
            "sent_at": time.time(),
        }
        if origin.created:
            known["created"] = True
        if origin.replaced is not None:
            known["replaced"] = origin.replaced
        if origin.clamped_from_s is not None:
            known["clamped_from_s"] = origin.clamped_from_s
        if self.request.stdin:
            known["stdin"] = True
        return known

    def note_sent(self) -> None:
        """Note that it goes to the agent now."""
        self.sent_s = trio.current_time()
        self._decided = self.session.network.made
        if self._sent is not None:
            self._sent.set()

    def emit(self, output: Output) -> None:
        """Pass a piece of output to the callers that want it."""
        for sink in self.sinks:
            sink(output)

    def finish(self, answer: Outcome | NsmError) -> None:
        """Give the answer, once; later ones are ignored."""
        if self.answer is not None:
            return
        if isinstance(answer, Outcome):
            self.answer, self.outcome = self._result(answer), word_of(answer)
        else:
            self.answer = answer
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(self.answer)  # first, since somebody waits
        for event in (self._finished, self._sent):
            if event is not None:
                event.set()
        self.sinks = ()
        if len(self.request.code) > _KEPT_CODE_CHARS:
            self.request = replace(self.request, code="")
        self._on_finished(self)

    def _result(self, outcome: Outcome) -> RunOutcome:
        waited = 0.0
        if self.queued_behind:
            waited = (self.sent_s or trio.current_time()) - self.submitted_s
        environment = self.session.spec.environment
        added = (*self.origin.notes, *([_INPUT_LOST] if self.input_lost else ()))
        if added:
            outcome = replace(outcome, notes=(*added, *outcome.notes))
        return RunOutcome(
            outcome=outcome,
            execution_id=self.id,
            env=self.origin.env,
            session_id=self.session.id,
            session_name=self.session.name,
            created=self.origin.created,
            replaced=self.origin.replaced,
            waited_s=waited,
            timeout_s=self.origin.timeout_s,
            clamped_from_s=self.origin.clamped_from_s,
            limit_events=self.limit_events,
            denials=self._denials(outcome),
            longest_s=environment.timeout_s,
            keeps_state=environment.keeps_state,
        )

    def _denials(self, outcome: Outcome) -> tuple[str, ...]:
        policy, network = self.session.policy, self.session.network
        decided = network.made != self._decided
        if policy is None or not (decided or self.limit_events or looks_suspicious(outcome)):
            return ()
        from nsmd.denials.explaining import explain  # noqa: PLC0415  # for few
        from nsmd.denials.wording import Circumstances  # noqa: PLC0415

        circumstances = Circumstances(
            code=self.request.code,
            project=self.session.spec.project,
            network=network.rule,
            refused=_refused(network.refused_since(self._decided)),
            upstream=_upstream(network.decisions_since(self._decided)),
            keeps_state=not self.origin.one_shot,
            environments=self.origin.environments(self.request.client),
            environment=self.session.spec.environment,
            has_input=self.request.stdin,
        )
        return explain(policy, outcome, self.limit_events, circumstances)


def _refused(decisions: Iterable[Decision]) -> list[str]:
    """Hosts that the session was refused, each once, with the reason if the host was not a valid
    name.
    """
    why = {
        "port": " (not on that port)",
        "address": " (no public address)",
        "unreachable": " (allowed, and does not answer)",
        "unresolved": " (allowed, and has no address)",
        "busy": " (allowed, and there is no room)",
    }
    hosts: dict[str, None] = {}
    for decision in decisions:
        if decision.host:
            port = f":{decision.port}" if decision.port else ""
            hosts[f"{decision.host}{port}{why.get(decision.verdict, '')}"] = None
    return list(hosts)


def _upstream(decisions: Iterable[Decision]) -> str:
    """Return why the upstream proxy led nowhere, as it was the last time."""
    details = [each.detail for each in decisions if each.verdict == "upstream"]
    return details[-1] if details else ""


def word_of(outcome: Outcome) -> ExecutionOutcome:
    """Return how an execution ended, in a word."""
    if outcome.timed_out:
        return "timeout"
    if outcome.interrupted:
        return "interrupted"
    return "error" if outcome.exit_code else "ok"


def out_of_time(reason: str) -> Outcome:
    """Make the outcome of an execution whose interpreter or session had to be ended at the time
    limit.
    """
    return Outcome(
        stdout="",
        stderr="",
        exit_code=124,
        timed_out=True,
        interpreter_restarted=True,
        restart_reason=reason,
    )


def interrupted_early() -> Outcome:
    """Make the outcome of an execution that was interrupted while it waited."""
    return Outcome(
        stdout="", stderr="interrupted before it began\n", exit_code=130, interrupted=True
    )


class ExecutionIndex:
    """Executions by id: those under way, and the results of finished ones while there is room."""

    def __init__(self) -> None:
        self._running: dict[str, Execution] = {}
        self._finished: OrderedDict[str, Execution] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._forgot_ids = False
        self._bytes = 0

    def __contains__(self, execution_id: str) -> bool:
        return execution_id in self._running or execution_id in self._finished

    def get(self, execution_id: str) -> Execution | None:
        """The execution of that id, if it is running or remembered."""
        return self._running.get(execution_id) or self._finished.get(execution_id)

    def told_of(self, execution_id: str) -> list[Execution]:
        """Return the executions with that id in sessions that an earlier supervisor began, as their
        agents say.
        """
        known = (*self._running.values(), *self._finished.values())
        return [each for each in known if each.earlier and each.told_id == execution_id]

    def rename(self, execution: Execution, execution_id: str) -> None:
        """Give an execution another id, so that its own is free."""
        for kept in (self._running, self._finished):
            if kept.pop(execution.id, None) is not None:
                execution.id = execution_id
                kept[execution_id] = execution
                return

    def unfinished(self) -> list[Execution]:
        """Executions under way, in the order of their arrival."""
        return list(self._running.values())

    def add(self, execution: Execution) -> None:
        """Note a submitted execution."""
        self._running[execution.id] = execution

    def finished(self, execution: Execution) -> None:
        """Note that an execution has its answer; the oldest results make room for it."""
        del self._running[execution.id]
        self._finished[execution.id] = execution
        self._bytes += execution.answer_bytes
        while self._bytes > MAX_RESULT_BYTES or len(self._finished) > MAX_RESULTS:
            execution_id, oldest = self._finished.popitem(last=False)
            self._bytes -= oldest.answer_bytes
            self._forgotten[execution_id] = None
            if len(self._forgotten) > MAX_FORGOTTEN:
                self._forgotten.popitem(last=False)
                self._forgot_ids = True

    def never_had(self, execution_id: str) -> bool:
        """Return whether no execution had that id; False if that is not known any more."""
        return not (self._forgot_ids or execution_id in self or execution_id in self._forgotten)
