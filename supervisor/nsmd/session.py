"""A session: one task that owns one jail and the executions that run in it.

What happens when is `nsmd.lifecycle`'s table; this module carries its effects out. Executions run
one at a time in arrival order. Nothing here polls: the task sleeps until the agent speaks, the jail
ends, a timer fires or somebody submits.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol, assert_never

import trio

from nsm.wire.errors import (
    InternalError,
    NsmError,
    OverloadedError,
    SessionEndedError,
)
from nsmd import journald
from nsmd.agentframes import (
    AgentFrame,
    CheckedFrame,
    CompletionsFrame,
    ErrorFrame,
    FileClosedFrame,
    FileDataFrame,
    FileErrorFrame,
    FileFrame,
    ListeningFrame,
    Noted,
    OtherFrame,
    OutputFrame,
    ReadyFrame,
    ResultFrame,
    ResumedFrame,
    StatusFrame,
)
from nsmd.agentlink import AgentLink, AgentLinkError
from nsmd.cgroups import Confinement, Keeper
from nsmd.conversation import Conversation, Earlier, StartLimiter
from nsmd.disuse import ANSWER_MARGIN_S, Disuse
from nsmd.events import Events
from nsmd.execution import Execution, interrupted_early, out_of_time
from nsmd.jail import Jail, Launcher, ProjectCopy
from nsmd.lifecycle import Effect, Event, State, advance
from nsmd.policy import Policy
from nsmd.proxy import Gateway, SessionNetwork
from nsmd.requests import Requests
from nsmd.timer import Timer, Timers
from nsmd.transcripts import TranscriptStore
from nsmd.values import JailSpec, Outcome, Output, SessionLimits, Tenancy

log = logging.getLogger(__name__)

ENDING_REASON_UNKNOWN = "it ended"


class SessionWatcher(Protocol):
    """What the registry or the pool wants to be told."""

    def session_ready(self, session: Session) -> None:
        """It can run code from now on."""

    def session_ended(self, session: Session) -> None:
        """Nothing of the session is left."""

    def session_changed(self, session: Session) -> None:
        """What a later supervisor would have to know of it is another."""

    def session_resumed(self, session: Session, resumed: ResumedFrame) -> None:
        """The agent of one that was taken up has said what it was in the middle of."""

    @property
    def leaving(self) -> bool:
        """Whether sessions are left to the next supervisor: nothing ends for want of its client."""
        ...

    def execution_resumed(self, session: Session, noted: Noted) -> Execution:
        """The handle of an execution that an earlier supervisor was given."""
        ...


class Session:
    """See the module. Made by the pool, run by a nursery of the registry."""

    # A thousand of them: no dictionary each, and what few of them need is made when it is needed.
    __slots__ = (
        "__weakref__",
        "_agent_id",
        "_answered_before",
        "_conversation",
        "_disuse",
        "_earlier",
        "_events",
        "_failure",
        "_limits",
        "_link",
        "_over",
        "_overdue",
        "_queue",
        "_running",
        "_streamed",
        "_transcripts",
        "_watcher",
        "active_s",
        "born_s",
        "created_s",
        "end_reason",
        "executions",
        "id",
        "lost",
        "network",
        "ready_s",
        "requests",
        "spec",
        "state",
        "taken_up",
        "tenancy",
        "transcript",
    )

    def __init__(
        self,
        session_id: str,
        spec: JailSpec,
        *,
        launcher: Launcher,
        limits: SessionLimits,
        watcher: SessionWatcher,
        start_limiter: StartLimiter,
        transcripts: TranscriptStore,
        timers: Timers,
        gateway: Gateway,
        nursery: trio.Nursery,
        keeper: Keeper | None = None,
        events: Events | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self._events = events or Events()
        self._earlier = earlier
        # Results that an earlier supervisor may have had, by the agent's ids.
        self._answered_before: dict[str, Execution] | None = None
        self.id = session_id
        self.spec = spec
        self.state = State.STARTING
        self.tenancy: Tenancy | None = None
        self.executions = 0
        self.born_s = self.created_s = self.active_s = trio.current_time()
        self.ready_s: float | None = None
        # How many supervisors it has outlived.
        self.taken_up = earlier.taken_up if earlier is not None else 0
        self.end_reason = ""
        self.lost = False  # its jail or agent ended it, or it never came to be
        self._limits = limits
        self._watcher = watcher
        self._queue: list[Execution] = []
        self._running: Execution | None = None
        self._failure: NsmError | None = None
        self._link: AgentLink | None = None
        self._overdue = Timer(timers, self._no_answer)
        self._disuse = Disuse(timers, self)
        self._agent_id = ""
        self._streamed = False
        self._over: trio.Event | None = None
        self.requests = Requests(self.post)
        self.network = SessionNetwork(
            session_id,
            earlier.network if earlier is not None else spec.network,
            gateway=gateway,
            requests=self.requests,
            nursery=nursery,
            listener=earlier.listener if earlier is not None else None,
            changed=self._changed,
        )
        self._transcripts = transcripts
        self.transcript = transcripts.open(session_id, spec.environment, None)
        self._conversation = Conversation(
            session_id,
            spec,
            self,
            launcher=launcher,
            limits=limits,
            starts=start_limiter,
            nursery=nursery,
            keeper=keeper,
            earlier=earlier,
        )

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.state.value} pid={self.pid}>"

    @property
    def pid(self) -> int:
        """Of its jail's PID 1 on the host; 0 before there is one."""
        return self._conversation.pid

    @property
    def jail(self) -> Jail | None:
        """What it lives in; None before there is one, and after."""
        return self._conversation.jail

    @property
    def link(self) -> AgentLink | None:
        """To its agent, while that can take work."""
        return self._link

    @property
    def policy(self) -> Policy | None:
        """Its rules as it began; None before it has a jail."""
        return self._conversation.policy

    @property
    def confinement(self) -> Confinement | None:
        """Its limits as they are kept; None before it has a jail."""
        return self._conversation.confinement

    @property
    def project_copy(self) -> ProjectCopy | None:
        """What it has changed in a project that is copied on write; None for any other."""
        return self._conversation.project_copy

    @property
    def name(self) -> str | None:
        """Its name in its scope; None for a one-shot or a spare."""
        return self.tenancy.name if self.tenancy else None

    @property
    def running(self) -> Execution | None:
        """What runs in it now."""
        return self._running

    @property
    def queued(self) -> int:
        """How many executions wait behind that."""
        return len(self._queue)

    @property
    def live(self) -> bool:
        """Whether it can still take work."""
        return self.state is not State.ENDING and self.state is not State.ENDED

    # What others ask for. All of it is synchronous: the session's task does the rest.

    def claim(self, tenancy: Tenancy) -> None:
        """Give a spare to somebody; its idle time and lifetime begin now."""
        assert self.tenancy is None, "a session is claimed once"
        self.tenancy = tenancy
        earlier = self._earlier
        self.transcript = self._transcripts.open(self.id, self.spec.environment, tenancy)
        self.created_s = self.active_s = trio.current_time()
        if earlier is not None:
            self.created_s = earlier.created_s
            self.transcript.opened_earlier(self.active_s - self.created_s)
        self._disuse.claimed(tenancy, self.active_s - self.created_s)
        if self.state is State.IDLE:
            self._disuse.begin()
        self._events.publish("session_claimed", session=self.id, subject=self)

    def submit(self, execution: Execution) -> None:
        """Queue an execution.

        Raises:
            OverloadedError: `max_queued` executions wait already.
            SessionEndedError: the session is over.
        """
        if not self.live:
            raise self.ended_error()
        if len(self._queue) >= self._limits.max_queued:
            raise OverloadedError(
                f"Session {self._label()} has {len(self._queue)} executions waiting already.",
                hint="Wait for some to finish, or use another session name.",
            )
        if self._queue or self._running is not None:
            execution.note_queued_behind()
        self._queue.append(execution)
        self._feed(Event.SUBMITTED)

    def interrupt(self, execution: Execution | None = None) -> bool:
        """Interrupt one execution, or whatever runs.

        Returns:
            Whether there was something to interrupt.
        """
        if execution is not None and execution in self._queue:
            self._queue.remove(execution)
            self._never_ran(execution, interrupted_early())
            if execution.origin.one_shot:
                self.end("one-shot interrupted before it began")
            return True
        running = self._running
        if running is None or (execution is not None and execution is not running):
            return False
        if not self._offers("interrupt"):
            self.end("its execution was interrupted, and its agent can only be stopped as a whole")
            return True
        self._events.publish("execution_interrupted", session=self.id, subject=running)
        self.post({"type": "interrupt", "id": self._agent_id})
        self._watch(self._limits.grace_s + ANSWER_MARGIN_S)
        return True

    def follow(self) -> None:
        """Somebody reads the transcript as it grows: from now on output comes as it is printed."""
        self.transcript.followers += 1
        self._stream_now()

    def stream(self, execution: Execution) -> None:
        """Somebody wants the output of an execution as it is printed, from now on."""
        if execution is self._running:
            self._stream_now()

    def _stream_now(self) -> None:
        if self._running is not None and not self._streamed and self._offers("stream.late"):
            self._streamed = True
            self.transcript.stream()
            self.post({"type": "stream", "id": self._agent_id})

    def unfollow(self) -> None:
        """Who called `follow` has read enough."""
        self.transcript.followers -= 1

    def abandoned(self) -> None:
        """The client of a one-shot is gone."""
        if not self._watcher.leaving:
            self.end("its client disconnected")

    def note_activity(self) -> None:
        """The session is in use, also where nothing runs: its idle time begins anew."""
        self.active_s = trio.current_time()
        self._disuse.used()
        if self.state is State.IDLE:
            self._disuse.begin()

    def distrust(self, what: str) -> NsmError:
        """End the session because its agent lies; returns the error that says so."""
        self.agent_lost(f"its agent broke the protocol ({what})")
        return self.ended_error()

    def end(self, reason: str) -> None:
        """End the session; the first reason given is kept. Idempotent."""
        if self.state in (State.ENDING, State.ENDED):
            return
        self.end_reason = reason
        self._feed(Event.END)

    def end_if_unused(self, reason: str) -> None:
        """End it if nothing runs in it, not in the background either, which its agent is asked;
        nothing where it cannot tell."""
        if self.state is State.IDLE and self._offers("status"):
            self._disuse.doubt(reason)

    async def wait_ended(self) -> None:
        """Wait until nothing of the session is left."""
        if self.state is not State.ENDED:
            self._over = self._over or trio.Event()
            await self._over.wait()

    # The task, and what it says (`Listener`).

    async def run(self) -> None:
        """Own the jail from launch to its last process; returns when the session is over."""
        journald.about(session=self.id, client="")
        try:
            await self._conversation.run()
        except Exception:  # a fault of ours costs this session and not a thousand others
            log.exception("session %s failed", self.id)
            self.end("an error inside the supervisor")
        finally:
            # Cancelled (shutdown) or crashed: whoever waits gets an answer all the same.
            self.end("the supervisor is shutting down")
            self._feed(Event.GONE)

    def agent_ready(self, link: AgentLink) -> None:
        """See `Listener`."""
        self._link = link
        self.requests.open(link.capabilities)
        self.network.opened(link)
        self.ready_s = trio.current_time()
        self._feed(Event.READY)
        self._events.publish("session_ready", session=self.id, subject=self)
        self._watcher.session_ready(self)
        if self._queue:
            self._feed(Event.SUBMITTED)

    def agent_resumed(self, link: AgentLink, resumed: ResumedFrame) -> None:
        """See `Listener`."""
        assert self._earlier is not None, "only what was taken up is resumed"
        self._link = link
        self.requests.open(link.capabilities, era=self.taken_up)
        self.executions = self._earlier.executions if resumed.count is None else resumed.count
        for file_id in resumed.files:  # whose readers and writers are gone
            self.post({"type": "file_close", "id": file_id, "keep": False})
        note: Mapping[str, object] = {}
        # In the order in which they began; the last one may run.
        for noted in sorted(resumed.executions, key=lambda each: (each.runs, _number(each.id))):
            execution = self._watcher.execution_resumed(self, noted)
            if self._running is not None:
                self._answered_before = (self._answered_before or {}) | {
                    self._agent_id: self._running
                }
            self._running, self._agent_id, note = execution, noted.id, noted.note
        self.network.opened(link)
        if self._running is None:
            self._feed(Event.READY)
        else:
            self._feed(Event.RESUMED)
            self._resume(self._running, note)
        self._watcher.session_resumed(self, resumed)
        self._events.publish("session_taken_up", session=self.id, subject=self)
        if self._queue and self._running is None:
            self._feed(Event.SUBMITTED)

    def _resume(self, execution: Execution, note: Mapping[str, object]) -> None:
        """Treat one as if it had just been sent: how long it has run, only the agent knows."""
        request = execution.request
        self._streamed = False
        self.transcript.begin(
            execution.id,
            request.client.name,
            request.code,
            streamed=False,
            sent_at=execution.sent_at,
        )
        execution.note_sent()
        if (confinement := self._conversation.confinement) is not None:
            confinement.go_on(note)
        self._watch(self._patience_s(execution))

    def agent_gone(self) -> None:
        """See `Listener`."""
        self._link = None
        self.network.closed()

    def agent_lost(self, reason: str, failure: NsmError | None = None) -> None:
        """See `Listener`; what is known already is kept."""
        if self.state in (State.ENDING, State.ENDED):
            return
        self.end_reason, self._failure, self.lost = reason, failure, True
        self._feed(Event.LOST)

    def post(self, frame: Mapping[str, object], /) -> None:
        """Send a frame to the agent; nothing where it is gone."""
        if self._link is None:
            return  # it is ending, which whoever waits for an answer is told
        try:
            self._link.post(frame)
        except AgentLinkError as error:
            self.agent_lost(f"its agent {error}")

    def agent_said(self, frame: AgentFrame) -> None:
        """See `Listener`."""
        match frame:
            case OutputFrame():
                if self._running is not None and frame.id == self._agent_id:
                    output = Output(stream=frame.stream, text=frame.text)
                    self.transcript.output(output)
                    self._running.emit(output)
            case ResultFrame():
                if self._running is not None and frame.id == self._agent_id:
                    self._answered(frame.outcome)
                elif self._answered_before:
                    self._answer_before(frame)
            case ErrorFrame():
                if self._running is not None and frame.id == self._agent_id:
                    self._answered(InternalError(f"The agent refused the code: {frame.message}"))
                elif not self.requests.refused(frame):
                    log.warning("session %s: agent says %.200r", self.id, frame.message)
            case StatusFrame():
                self._disuse.told(frame, idle=self.state is State.IDLE)
            case (
                FileFrame()
                | FileDataFrame()
                | FileClosedFrame()
                | FileErrorFrame()
                | CompletionsFrame()
                | CheckedFrame()
                | ListeningFrame()
            ):
                self.requests.take(frame)
            case ReadyFrame() | ResumedFrame() | OtherFrame():
                pass
            case _:
                assert_never(frame)

    def _answer_before(self, frame: ResultFrame) -> None:
        execution = (self._answered_before or {}).pop(frame.id, None)
        if execution is not None:
            execution.finish(frame.outcome)

    def _changed(self) -> None:
        self._watcher.session_changed(self)

    def _answered(self, answer: Outcome | NsmError) -> None:
        execution, self._running, self._agent_id = self._running, None, ""
        self._overdue.disarm()
        self.active_s = trio.current_time()
        if execution is not None:
            if (confinement := self._conversation.confinement) is not None:
                outcome = answer if isinstance(answer, Outcome) else None
                execution.limit_events = confinement.ended(outcome)
            execution.finish(answer)  # first: somebody waits
            self.transcript.finish(answer)
            self._finished(execution)
            if execution.origin.one_shot and not self._watcher.leaving:
                self.end("one-shot finished")
                return
        self._feed(Event.ANSWERED_MORE if self._queue else Event.ANSWERED)

    # What `Disuse` says.

    def idle_expired(self) -> None:
        """See `Used`."""
        self._feed(Event.IDLE_EXPIRED)

    def still_active(self) -> None:
        """See `Used`."""
        self._feed(Event.STILL_ACTIVE)

    # The table's effects.

    def _feed(self, event: Event) -> None:
        self.state, effects = advance(self.state, event)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Effect.SEND_NEXT:
                self._send_next()
            case Effect.ARM_IDLE:
                self._disuse.begin()
            case Effect.DISARM_IDLE:
                self._disuse.stop()
            case Effect.ASK_ACTIVITY:
                self._disuse.ask(can_tell=self._offers("status"))
            case Effect.KILL:
                self._conversation.end()
            case Effect.FAIL_ALL:
                self._fail_all()
            case Effect.REPORT:
                self._report()
            case _:
                assert_never(effect)

    def _send_next(self) -> None:
        execution = self._running = self._queue.pop(0)
        self.executions += 1
        self.active_s = trio.current_time()
        self._agent_id = f"{self.executions}.{execution.id}"
        self._streamed = execution.streams or self.transcript.followers > 0
        self.transcript.begin(
            execution.id,
            execution.request.client.name,
            execution.request.code,
            streamed=self._streamed,
        )
        execution.note_sent()
        self._events.publish("execution_started", session=self.id, subject=execution)
        if (confinement := self._conversation.confinement) is not None:
            confinement.begun()
        frame: dict[str, object] = {
            "type": "execute",
            "id": self._agent_id,
            "interpreter": self.spec.environment.interpreter,
            "code": execution.request.code,
            "timeout_s": execution.origin.timeout_s,
            "grace_s": self._limits.grace_s,
            "stream": self._streamed,
        }
        if self._offers("notes"):
            known = {} if confinement is None else confinement.note()
            frame["note"] = execution.note() | known
        if execution.request.reply_bytes is not None:
            frame["reply_bytes"] = execution.request.reply_bytes
        self.post(frame)
        self._watch(self._patience_s(execution))

    def _patience_s(self, execution: Execution) -> float:
        """How long an execution may go without an answer."""
        limit_s = execution.origin.timeout_s
        if self._agent_keeps_time:
            setup_s = self._limits.longest_setup_s(self.spec.environment)
            limit_s += self._limits.grace_s + ANSWER_MARGIN_S + setup_s
        return limit_s

    def _watch(self, seconds: float) -> None:
        """Give the session up if the running execution has no answer by then.

        The agent keeps the time limit itself. This is for an agent that was stopped, starved or
        taken over, and for older ones that know no limit.
        """
        self._overdue.arm(seconds)

    @property
    def _agent_keeps_time(self) -> bool:
        return self._offers("execute.timeout")

    def _offers(self, capability: str) -> bool:
        """Whether its agent is there, and can do that."""
        return self._link is not None and capability in self._link.capabilities

    def _no_answer(self) -> None:
        execution = self._running
        if execution is None or self._agent_keeps_time:
            self.end("its agent did not answer in time")
            return
        what = f"its code ran longer than {execution.origin.timeout_s:g} s, and its agent"
        reason = f"{what} can only be stopped as a whole"
        self._running, self._agent_id = None, ""
        answer = out_of_time(reason)
        execution.finish(answer)
        self.transcript.finish(answer)
        self._finished(execution)
        self.end(reason)

    def _fail_all(self) -> None:
        error = self._failure or self.ended_error()
        running, self._running = self._running, None
        for execution in (self._answered_before or {}).values():
            execution.finish(error)
        if running is not None:
            self.transcript.finish(error)
            running.finish(error)
            self._finished(running)
        while self._queue:
            self._never_ran(self._queue.pop(0), error)
        self.requests.fail(error)

    def _never_ran(self, execution: Execution, answer: Outcome | NsmError) -> None:
        request = execution.request
        self.transcript.never_ran(execution.id, request.client.name, request.code, answer)
        execution.finish(answer)
        self._finished(execution)

    def _finished(self, execution: Execution) -> None:
        self._events.publish("execution_finished", session=self.id, subject=execution)

    def _report(self) -> None:
        self._overdue.close()
        self._disuse.close()
        if self.tenancy is not None:
            self._transcripts.close(self.transcript, self.end_reason)
        self._watcher.session_ended(self)
        self._events.publish(
            "session_ended",
            session=self.id,
            subject=self,
            reason=self.end_reason,
            lost=self.lost,
        )
        if self._over is not None:
            self._over.set()

    def _label(self) -> str:
        return repr(self.name) if self.name else self.id

    def ended_error(self) -> SessionEndedError:
        """What whoever still wants something of an ended session is told."""
        reason = self.end_reason or ENDING_REASON_UNKNOWN
        return SessionEndedError(
            f"Session {self._label()} ended: {reason}.",
            hint="Its variables and files are gone; call again to start a new one.",
            data={"session": self.id, "reason": reason},
        )


def _number(agent_id: str) -> int:
    """Of an execution within its session, as its id at the agent has it."""
    number = agent_id.partition(".")[0]
    return int(number) if number.isdecimal() and len(number) < 20 else 0
