"""A session: one task that owns one jail, in which executions run.

The table of `nsmd.model.lifecycle` says what happens when. This module carries out its effects, and
`nsmd.sessions.execution_queue` the executions. Frames, timers and clients call the session.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol, assert_never

import trio

from nsm.wire.errors import NsmError, OverloadedError, SessionEndedError
from nsmd.agent_link.frames import (
    AgentFrame,
    ErrorFrame,
    Noted,
    OtherFrame,
    OutputFrame,
    ReadyFrame,
    ResultFrame,
    ResumedFrame,
    StatusFrame,
)
from nsmd.agent_link.job_frames import JobEndedFrame
from nsmd.agent_link.link import AgentLink, AgentLinkError
from nsmd.agent_link.requests import Requests
from nsmd.host import logs
from nsmd.host.event_loop import Timers
from nsmd.jail import Jail, Launcher, ProjectCopy
from nsmd.jail.limits import Confinement, LimitEnforcer
from nsmd.model.events import Events
from nsmd.model.lifecycle import Effect, LifecycleEvent, SessionState, advance
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec, SessionLimits, Tenancy
from nsmd.network.gateway import Gateway
from nsmd.network.network import SessionNetwork
from nsmd.sessions.agent_session import AgentSession, Earlier, StartLimiter
from nsmd.sessions.execution import Execution
from nsmd.sessions.execution_queue import ExecutionQueue
from nsmd.sessions.timeouts import IdleTimer
from nsmd.sessions.transcripts import TranscriptStore

log = logging.getLogger(__name__)

TOLD_FORKS = 20
"""Names in the reason of an end."""


class SessionWatcher(Protocol):
    """Interface to the parts that watch a session: its manager and the pool."""

    def session_ready(self, session: Session) -> None:
        """The session can run code from now on."""

    def session_ended(self, session: Session) -> None:
        """Nothing of the session is left."""

    def session_changed(self, session: Session) -> None:
        """Something changed that the next supervisor has to know."""

    def session_resumed(self, session: Session, resumed: ResumedFrame) -> None:
        """The agent of a session that was taken over has said what it runs."""

    @property
    def leaving(self) -> bool:
        """True while sessions are left to the next supervisor."""
        ...

    def execution_resumed(self, session: Session, noted: Noted) -> Execution:
        """Return the handle of an execution that an earlier supervisor sent."""
        ...


class Session:
    """One session: a task that owns one jail; a nursery of the session manager runs it."""

    # There may be a thousand: so no dictionary each, and rarely needed parts are made on demand.
    __slots__ = (
        "__weakref__",
        "_agent_session",
        "_earlier",
        "_events",
        "_failure",
        "_idle_timer",
        "_limits",
        "_link",
        "_now",
        "_over",
        "_transcripts",
        "_watcher",
        "active_s",
        "born_s",
        "created_s",
        "end_reason",
        "forks",
        "id",
        "jobs",
        "lost",
        "network",
        "ready_s",
        "requests",
        "runs",
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
        enforcer: LimitEnforcer | None = None,
        events: Events | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self._events = events or Events()
        self._earlier = earlier
        self.id = session_id
        self.spec = spec
        self.state = SessionState.STARTING
        self.tenancy: Tenancy | None = None
        self._now = timers.now
        self.born_s = self.created_s = self.active_s = self._now()
        self.ready_s: float | None = None
        # Number of supervisors that it has outlived.
        self.taken_up = earlier.taken_up if earlier is not None else 0
        self.end_reason = ""
        self.lost = False  # its jail or agent failed, or could not be started
        self.jobs: frozenset[str] = frozenset()  # those that run
        self.forks = ForkedSessions()
        self._limits = limits
        self._watcher = watcher
        self._failure: NsmError | None = None
        self._link: AgentLink | None = None
        self._idle_timer = IdleTimer(timers, self)
        self.runs = ExecutionQueue(
            self, spec.environment, limits=limits, timers=timers, events=self._events
        )
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
        self._agent_session = AgentSession(
            session_id,
            spec,
            self,
            launcher=launcher,
            limits=limits,
            starts=start_limiter,
            nursery=nursery,
            timers=timers,
            enforcer=enforcer,
            earlier=earlier,
        )

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.state.value} pid={self.pid}>"

    @property
    def pid(self) -> int:
        """Process id of its jail's PID 1 on the host; 0 before there is one."""
        return self._agent_session.pid

    @property
    def jail(self) -> Jail | None:
        """Jail of the session; None before there is one, and after."""
        return self._agent_session.jail

    @property
    def link(self) -> AgentLink | None:
        """Link to its agent, while that can take work."""
        return self._link

    @property
    def policy(self) -> Policy | None:
        """Policy with which it began; None before it has a jail."""
        return self._agent_session.policy

    @property
    def confinement(self) -> Confinement | None:
        """Limits as they are enforced; None before it has a jail."""
        return self._agent_session.confinement

    @property
    def project_copy(self) -> ProjectCopy | None:
        """Changes in an overlay of the project; None in other modes."""
        return self._agent_session.project_copy

    def remarks(self) -> Sequence[str]:
        """Notes on how it started, each returned once."""
        return () if self.jail is None else self.jail.remarks()

    @property
    def name(self) -> str | None:
        """Its name in its scope; None for a one-shot or a spare."""
        return self.tenancy.name if self.tenancy else None

    @property
    def running(self) -> Execution | None:
        """Execution that runs now; None if none does."""
        return self.runs.running

    @property
    def executions(self) -> int:
        """Number of executions sent to its agent."""
        return self.runs.count

    @property
    def live(self) -> bool:
        """True while it can take work."""
        return self.state is not SessionState.ENDING and self.state is not SessionState.ENDED

    # For other parts. All of it is synchronous: the session's task does the rest.

    def claim(self, tenancy: Tenancy) -> None:
        """Give a spare to a client; its idle time and lifetime begin now."""
        self.tenancy = tenancy
        earlier = self._earlier
        self.transcript = self._transcripts.open(self.id, self.spec.environment, tenancy)
        self.created_s = self.active_s = self._now()
        if earlier is not None:
            self.created_s = earlier.created_s
            self.transcript.opened_earlier(self.active_s - self.created_s)
        self._idle_timer.claimed(tenancy, self.active_s - self.created_s)
        if self.state is SessionState.IDLE:
            self._idle_timer.begin()
        self._events.publish("session_claimed", session=self.id, subject=self)

    def submit(self, execution: Execution) -> None:
        """Queue an execution.

        Raises:
            OverloadedError: `max_queued` executions wait already.
            SessionEndedError: the session is over.
        """
        if not self.live:
            raise self.ended_error()
        if self.runs.queued >= self._limits.max_queued:
            raise OverloadedError(
                f"Session {self._label()} has {self.runs.queued} executions waiting already.",
                hint="Wait for some to finish, or use another session name.",
            )
        self.runs.add(execution)
        self._feed(LifecycleEvent.SUBMITTED)

    def interrupt(self, execution: Execution | None = None) -> bool:
        """Interrupt one execution, or the running one; return whether there was one."""
        return self.runs.interrupt(execution)

    def follow(self) -> None:
        """Note a reader that follows the transcript: from now on output comes while code runs."""
        self.transcript.followers += 1
        self.runs.stream()

    def stream(self, execution: Execution) -> None:
        """Stream the output of an execution from now on."""
        if execution is self.running:
            self.runs.stream()

    def unfollow(self) -> None:
        """Remove a reader that follows."""
        self.transcript.followers -= 1

    def abandoned(self, execution: Execution) -> None:
        """End a one-shot whose client is gone, or the input of other code."""
        if not self._watcher.leaving:
            self.runs.abandoned(execution)

    def note_activity(self) -> None:
        """Note that the session is in use even if nothing runs: its idle time starts again."""
        self.active_s = self._now()
        self._idle_timer.used()
        if self.state is SessionState.IDLE:
            self._idle_timer.begin()

    def jobs_run(self, jobs: Collection[str]) -> None:
        """Note which jobs run now, beside the executions."""
        self.jobs = frozenset(jobs)
        if jobs and self.confinement is not None:
            self.confinement.job_started()

    def distrust(self, what: str) -> NsmError:
        """End the session because its agent lies; returns the error that says so."""
        self.agent_lost(f"its agent broke the protocol ({what})")
        return self.ended_error()

    def end(self, reason: str) -> None:
        """End the session; the first reason given is kept. Idempotent."""
        if self.state in (SessionState.ENDING, SessionState.ENDED):
            return
        self.end_reason = reason
        self._feed(LifecycleEvent.END)

    def end_if_unused(self, reason: str) -> None:
        """End it if nothing runs in it. The agent is asked about background work; if it cannot
        tell, nothing happens.
        """
        if self.state is SessionState.IDLE and self.offers("status"):
            self._idle_timer.doubt(reason)

    async def wait_ended(self) -> None:
        """Wait until nothing of the session is left."""
        if self.state is not SessionState.ENDED:
            self._over = self._over or trio.Event()
            await self._over.wait()

    # The task, and the frames of its agent (`SessionCallbacks`).

    async def run(self) -> None:
        """Own the jail from launch to its last process; returns when the session is over."""
        logs.about(session=self.id, client="")
        try:
            await self.network.get_secrets(() if self.taken_up else self.spec.secrets)
            await self._agent_session.run()
        except NsmError as error:
            self.agent_lost("its secrets could not be read", error)
        except Exception:  # a bug of ours costs this session and not a thousand others
            log.exception("session %s failed", self.id)
            self.end("an error inside the supervisor")
        finally:
            # Cancelled (shutdown) or crashed: waiting callers still get an answer.
            self.end("the supervisor is shutting down")
            self.network.drop_secrets()
            self._feed(LifecycleEvent.GONE)

    def agent_ready(self, link: AgentLink) -> None:
        self._link = link
        self.requests.open(link.capabilities)
        self.network.opened(link)
        self.ready_s = self._now()
        self._feed(LifecycleEvent.READY)
        self._events.publish("session_ready", session=self.id, subject=self)
        self._watcher.session_ready(self)
        if self.runs.queued:
            self._feed(LifecycleEvent.SUBMITTED)

    def agent_resumed(self, link: AgentLink, resumed: ResumedFrame) -> None:
        assert self._earlier is not None, "only what was taken up is resumed"
        self._link = link
        self.requests.open(link.capabilities, era=self.taken_up)
        self.runs.count = self._earlier.executions if resumed.count is None else resumed.count
        self.runs.checkpoints = resumed.checkpoints
        for file_id in resumed.files:  # their readers and writers are gone
            self.post({"type": "file_close", "id": file_id, "keep": False})
        note = self.runs.take_up(
            resumed.executions, lambda noted: self._watcher.execution_resumed(self, noted)
        )
        self.network.opened(link)
        self.jobs_run(resumed.jobs)
        running = self.runs.running
        if running is None:
            self._feed(LifecycleEvent.READY)
        else:
            self._feed(LifecycleEvent.RESUMED)
            self.runs.go_on(running, note)
        self._watcher.session_resumed(self, resumed)
        self._events.publish("session_taken_up", session=self.id, subject=self)
        if self.name is None and running is None:
            self.end("no code of the one-shot was under way when its supervisor ended")
        elif self.runs.queued and self.runs.running is None:
            self._feed(LifecycleEvent.SUBMITTED)

    def agent_gone(self) -> None:
        self._link = None
        self.network.closed()

    def agent_lost(self, reason: str, failure: NsmError | None = None) -> None:
        """Handle the loss of the agent; known facts stay."""
        if self.state in (SessionState.ENDING, SessionState.ENDED):
            return
        self.end_reason, self._failure, self.lost = reason, failure, True
        self._feed(LifecycleEvent.LOST)

    def post(self, frame: Mapping[str, object], /) -> None:
        """Send a frame to the agent; if it is ending, waiting callers will be told."""
        if self._link is None:
            return
        try:
            self._link.post(frame)
        except AgentLinkError as error:
            self.agent_lost(f"its agent {error}")

    def agent_said(self, frame: AgentFrame) -> None:
        match frame:
            case OutputFrame():
                self.runs.output(frame)
            case ResultFrame():
                self.runs.result(frame)
            case ErrorFrame():
                if not self.runs.refused(frame) and not self.requests.refused(frame):
                    log.warning("session %s: agent says %.200r", self.id, frame.message)
            case StatusFrame():
                self._idle_timer.told(frame, idle=self.state is SessionState.IDLE)
            case JobEndedFrame():
                self.jobs -= {frame.job.job}
                self.transcript.job_ended(frame.job)
                self._events.publish("job_ended", session=self.id, subject=(self, frame.job))
            case ReadyFrame() | ResumedFrame() | OtherFrame():
                pass
            case _:
                self.requests.take(frame)

    def _changed(self) -> None:
        self._watcher.session_changed(self)

    # For its executions (`Owner`).

    def answered(self, execution: Execution | None) -> None:
        if execution is not None and execution.origin.one_shot and not self._watcher.leaving:
            self.end("one-shot finished")
        else:
            self._feed(
                LifecycleEvent.ANSWERED_MORE if self.runs.queued else LifecycleEvent.ANSWERED
            )

    def offers(self, capability: str) -> bool:
        """Return whether its agent is there and has this capability."""
        return self._link is not None and capability in self._link.capabilities

    def idle_expired(self) -> None:
        self._feed(LifecycleEvent.IDLE_EXPIRED)
        if self.forks.live:  # they would end as well
            self.still_active()

    def still_active(self) -> None:
        self._feed(LifecycleEvent.STILL_ACTIVE)

    # Effects of the table.

    def _feed(self, event: LifecycleEvent) -> None:
        self.state, effects = advance(self.state, event)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Effect.SEND_NEXT:
                self.runs.send_next()
            case Effect.ARM_IDLE:
                self._idle_timer.begin()
            case Effect.DISARM_IDLE:
                self._idle_timer.stop()
            case Effect.ASK_ACTIVITY:
                self._idle_timer.ask(can_tell=self.offers("status"))
            case Effect.KILL:
                self.end_reason = self.forks.end(self._label(), self.end_reason)
                self._agent_session.end()
            case Effect.FAIL_ALL:
                error = self._failure or self.ended_error()
                self.runs.fail(error)
                self.requests.fail(error)
            case Effect.REPORT:
                self._report()
            case _:
                assert_never(effect)

    def _report(self) -> None:
        self.runs.close()
        self._idle_timer.close()
        if self.tenancy is not None:
            self._transcripts.close(self.transcript, self.end_reason)
        self._watcher.session_ended(self)
        self._events.publish(
            "session_ended", session=self.id, subject=self, reason=self.end_reason, lost=self.lost
        )
        if self._over is not None:
            self._over.set()

    def _label(self) -> str:
        return repr(self.name) if self.name else self.id

    def ended_error(self) -> SessionEndedError:
        """Make the error for requests to an ended session."""
        reason = self.end_reason or "it ended"
        return SessionEndedError(
            f"Session {self._label()} ended: {reason}.",
            hint="Its variables and files are gone; the next use of its name starts a new one.",
            data={"session": self.id, "reason": reason},
        )


class ForkedSessions:
    """Forks of one session, which end with it: their namespaces lie below those of its jail."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks: list[Session] = []

    @property
    def live(self) -> list[Session]:
        """Forks that live."""
        return [fork for fork in self._forks if fork.live]

    def add(self, fork: Session) -> None:
        """Add a fork that has just been made."""
        self._forks = [*self.live, fork]

    def end(self, label: str, reason: str) -> str:
        """End them, since the session ends.

        Args:
            label: the session.
            reason: why it ends.

        Returns:
            The reason, and which forks end with it.
        """
        self._forks = self.live
        for fork in self._forks:
            fork.end(f"session {label}, of which it is a fork, ended ({reason})")
        names = [repr(fork.name) if fork.name else fork.id for fork in self.below()]
        if not names:
            return reason
        told, more = ", ".join(names[:TOLD_FORKS]), len(names) - TOLD_FORKS
        return f"{reason}; with it ended its forks {told}{f' and {more} more' if more > 0 else ''}"

    def below(self) -> Iterator[Session]:
        """These forks, and their forks."""
        for fork in self._forks:
            yield fork
            yield from fork.forks.below()
