"""A session: one task that owns one jail, in which executions run.

The table of `nsmd.model.lifecycle` says what happens when. This module carries out its effects, and
`nsmd.sessions.execution_queue` the executions. Frames, timers and clients call the session.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, assert_never

import trio

from nsm.wire.errors import NsmError, OverloadedError, SessionEndedError
from nsmd.agent_link.frames import (
    AgentFrame,
    ErrorFrame,
    JobEndedFrame,
    OtherFrame,
    OutputFrame,
    ReadyFrame,
    ResultFrame,
    ResumedFrame,
    StatusFrame,
)
from nsmd.agent_link.link import AgentLink, AgentLinkError
from nsmd.agent_link.requests import Requests
from nsmd.host import logs
from nsmd.host.event_loop import Timer, Timers
from nsmd.jail import Jail, Launcher, ProjectCopy
from nsmd.jail.limits import Confinement, LimitEnforcer
from nsmd.model.events import Events
from nsmd.model.lifecycle import Effect, LifecycleEvent, SessionState, advance
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec, SessionLimits, Tenancy
from nsmd.network.gateway import Gateway
from nsmd.network.network import SessionNetwork
from nsmd.sessions.agent_session import (
    ANSWER_MARGIN_S,
    AgentSession,
    Earlier,
    Lateness,
    StartLimiter,
)
from nsmd.sessions.execution import Execution
from nsmd.sessions.execution_queue import ExecutionQueue
from nsmd.sessions.fresh import ClientPrograms, SessionRunners
from nsmd.sessions.transcripts import TranscriptStore

if TYPE_CHECKING:
    from nsmd.manager.session_manager import SessionManager

log = logging.getLogger(__name__)

TOLD_FORKS = 20
"""Names in the reason of an end."""


class Session:
    """One session: a task that owns one jail; a nursery of the session manager runs it."""

    # There may be a thousand: so no dictionary each, and rarely needed parts are made on demand.
    __slots__ = (
        "__weakref__",
        "_agent_session",
        "_earlier",
        "_failure",
        "_idle_timer",
        "_manager",
        "_nursery",
        "_over",
        "_runners",
        "_transcripts",
        "active_s",
        "born_s",
        "confinement",
        "created_s",
        "end_reason",
        "events",
        "forks",
        "id",
        "jail",
        "jobs",
        "limits",
        "link",
        "lost",
        "name",
        "network",
        "pid",
        "policy",
        "ready_s",
        "requests",
        "runs",
        "spec",
        "state",
        "taken_up",
        "tenancy",
        "timers",
        "transcript",
    )

    def __init__(
        self,
        session_id: str,
        spec: JailSpec,
        *,
        launcher: Launcher,
        limits: SessionLimits,
        manager: SessionManager,
        start_limiter: StartLimiter,
        transcripts: TranscriptStore,
        timers: Timers,
        gateway: Gateway,
        nursery: trio.Nursery,
        enforcer: LimitEnforcer | None = None,
        events: Events | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self.limits = limits
        self.timers = timers
        self.events = events or Events()
        self._earlier = earlier
        self.id = session_id
        self.spec = spec
        self.state = SessionState.STARTING
        self.tenancy: Tenancy | None = None
        self.name: str | None = None  # in its scope; None for a one-shot or a spare
        self.born_s = self.created_s = self.active_s = timers.now()
        self.ready_s: float | None = None
        # Number of supervisors that it has outlived.
        self.taken_up = earlier.taken_up if earlier is not None else 0
        self.end_reason = ""
        self.lost = False  # its jail or agent failed, or could not be started
        self.jobs: frozenset[str] = frozenset()  # those that run
        self.forks = ForkedSessions()
        self._manager = manager
        self._failure: NsmError | None = None
        self.link: AgentLink | None = None  # while its agent can take work
        self.jail: Jail | None = None  # while there is one
        self.pid = 0  # of its jail's PID 1 on the host
        self.policy: Policy | None = None  # with which it began
        self.confinement: Confinement | None = None  # limits as they are enforced
        self._idle_timer = IdleTimer(timers, self)
        self.runs = ExecutionQueue(self)
        self._nursery = nursery
        self._runners: SessionRunners | None = None  # made when programs are to run
        self._over: trio.Event | None = None
        self.requests = Requests(self.post)
        self.network = SessionNetwork(
            session_id,
            earlier.network if earlier is not None else spec.network,
            spec.environment,
            gateway=gateway,
            requests=self.requests,
            nursery=nursery,
            listener=earlier.listener if earlier is not None else None,
            changed=self._on_network_change,
        )
        self._transcripts = transcripts
        self.transcript = transcripts.open(session_id, spec.environment, None)
        self._agent_session = AgentSession(
            self, launcher, start_limiter, nursery, timers, enforcer, earlier
        )

    def _on_network_change(self) -> None:
        self._manager.session_changed(self)

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.state.value} pid={self.pid}>"

    @property
    def project_copy(self) -> ProjectCopy | None:
        """Changes in an overlay of the project; None in other modes."""
        return None if self.jail is None else self.jail.project_copy

    @property
    def runners(self) -> SessionRunners:
        """The runners of programs in fresh interpreters."""
        if self._runners is None:
            self._runners = SessionRunners(self, self._nursery)
        return self._runners

    @property
    def runs_programs(self) -> bool:
        """True while programs in fresh interpreters run or wait."""
        return self._runners is not None and self._runners.busy

    @property
    def unfinished_programs(self) -> list[ClientPrograms]:
        """Clients whose programs run or wait in fresh interpreters."""
        return [] if self._runners is None else self._runners.unfinished()

    @property
    def live(self) -> bool:
        """True while it can take work."""
        return self.state is not SessionState.ENDING and self.state is not SessionState.ENDED

    # For other parts. All of it is synchronous: the session's task does the rest.

    def claim(self, tenancy: Tenancy) -> None:
        """Give a spare to a client; its idle time and lifetime begin now."""
        self.tenancy, self.name = tenancy, tenancy.name
        earlier = self._earlier
        self.transcript = self._transcripts.open(self.id, self.spec.environment, tenancy)
        self.created_s = self.active_s = self.timers.now()
        if earlier is not None:
            self.created_s = earlier.created_s
            self.transcript.opened_earlier(self.active_s - self.created_s)
        self._idle_timer.claimed(tenancy, self.active_s - self.created_s)
        if self.state is SessionState.IDLE:
            self._idle_timer.begin()
        self.events.publish("session_claimed", session=self.id, subject=self)

    def submit(self, execution: Execution) -> None:
        """Queue an execution.

        Raises:
            OverloadedError: `max_queued` executions wait already.
            SessionEndedError: the session is over.
        """
        if not self.live:
            raise self.ended_error()
        if len(self.runs.waiting) >= self.limits.max_queued:
            raise OverloadedError(
                f"Session {self._label()} has {len(self.runs.waiting)} executions waiting already.",
                hint="Wait for some to finish, or use another session name.",
            )
        self.runs.add(execution)
        self._feed(LifecycleEvent.SUBMITTED)

    def follow(self) -> None:
        """Note a reader that follows the transcript: from now on output comes while code runs."""
        self.transcript.followers += 1
        self.runs.stream()

    def unfollow(self) -> None:
        """Remove a reader that follows."""
        self.transcript.followers -= 1

    def abandoned(self, execution: Execution) -> None:
        """End a one-shot whose client is gone, or the input of other code."""
        if not self._manager.leaving:
            self.runs.abandoned(execution)

    def note_activity(self) -> None:
        """Note that the session is in use even if nothing runs: its idle time starts again."""
        self.active_s = self.timers.now()
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
            self._idle_timer.end_if_unused(reason)

    async def wait_ended(self) -> None:
        """Wait until nothing of the session is left."""
        if self.state is not SessionState.ENDED:
            self._over = self._over or trio.Event()
            await self._over.wait()

    # The task, and for `AgentSession`.

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
        self.link = link
        self.requests.open(link.capabilities)
        self.runs.agent_ready(link.capabilities)
        self.network.opened(link)
        self.ready_s = self.timers.now()
        self._feed(LifecycleEvent.READY)
        self.events.publish("session_ready", session=self.id, subject=self)
        self._manager.session_ready(self)
        if self.runs.waiting:
            self._feed(LifecycleEvent.SUBMITTED)

    def agent_resumed(self, link: AgentLink, resumed: ResumedFrame) -> None:
        assert self._earlier is not None, "only what was taken up is resumed"
        self.link = link
        self.requests.open(link.capabilities, era=self.taken_up)
        self.runs.agent_ready(link.capabilities)
        self.runs.count = self._earlier.executions if resumed.count is None else resumed.count
        self.runs.checkpoints = resumed.checkpoints
        for file_id in resumed.files:  # their readers and writers are gone
            self.post({"type": "file_close", "id": file_id, "keep": False})
        note = self.runs.take_up(
            resumed.executions, lambda noted: self._manager.execution_resumed(self, noted)
        )
        self.network.opened(link)
        self.jobs_run(resumed.jobs)
        running = self.runs.running
        if running is None:
            self._feed(LifecycleEvent.READY)
        else:
            self._feed(LifecycleEvent.RESUMED)
            self.runs.go_on(running, note)
        self._manager.session_resumed(self, resumed)
        self.events.publish("session_taken_up", session=self.id, subject=self)
        if self.name is None and running is None:
            self.end("no code of the one-shot was under way when its supervisor ended")
        elif self.runs.waiting and self.runs.running is None:
            self._feed(LifecycleEvent.SUBMITTED)

    def agent_gone(self) -> None:
        self.link = None
        self.network.closed()
        if self._runners is not None:
            self._runners.close()

    def agent_lost(self, reason: str, failure: NsmError | None = None) -> None:
        """Handle the loss of the agent; known facts stay."""
        if self.state in (SessionState.ENDING, SessionState.ENDED):
            return
        self.end_reason, self._failure, self.lost = reason, failure, True
        self._feed(LifecycleEvent.LOST)

    def post(self, frame: Mapping[str, object], /) -> None:
        """Send a frame to the agent; if it is ending, waiting callers will be told."""
        if self.link is None:
            return
        try:
            self.link.post(frame)
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
                self._idle_timer.handle_status(frame, idle=self.state is SessionState.IDLE)
            case JobEndedFrame():
                self.jobs -= {frame.job.job}
                self.transcript.job_ended(frame.job)
                self.events.publish("job_ended", session=self.id, subject=(self, frame.job))
            case ReadyFrame() | ResumedFrame() | OtherFrame():
                pass
            case _:
                self.requests.receive_answer(frame)

    # For its executions and timers.

    def answered(self, execution: Execution | None) -> None:
        if execution is not None and execution.origin.one_shot and not self._manager.leaving:
            self.end("one-shot finished")
        else:
            self._feed(
                LifecycleEvent.ANSWERED_MORE if self.runs.waiting else LifecycleEvent.ANSWERED
            )

    def offers(self, capability: str) -> bool:
        """Return whether its agent is there and has this capability."""
        return self.link is not None and capability in self.link.capabilities

    def idle_expired(self) -> None:
        self._feed(LifecycleEvent.IDLE_EXPIRED)
        if self.forks.live or self.runs_programs:  # they would end as well
            self.still_active()

    def still_active(self) -> None:
        self._feed(LifecycleEvent.STILL_ACTIVE)

    # Effects of the table.

    def _feed(self, event: LifecycleEvent) -> None:
        self.state, effects = advance(self.state, event)
        for effect in effects:
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
        self._manager.session_ended(self)
        self.events.publish(
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
        """End them with the session; returns the reason, and which forks end with it."""
        self._forks = self.live
        for fork in self._forks:
            fork.end(f"session {label}, of which it is a fork, ended ({reason})")
        names = [repr(fork.name) if fork.name else fork.id for fork in self.below()]
        if not names:
            return reason
        told, more = ", ".join(names[:TOLD_FORKS]), len(names) - TOLD_FORKS
        return f"{reason}; with it ended its forks {told}{f' and {more} more' if more > 0 else ''}"

    def below(self) -> Iterator[Session]:
        """Yield these forks, and their forks."""
        for fork in self._forks:
            yield fork
            yield from fork.forks.below()


IDLE_REASON = "idle timeout"


class IdleTimer:
    """Timers that end an unused session. Background work counts as use: the agent is asked about
    it.
    """

    __slots__ = ("_asked", "_idle", "_lateness", "_lifetime", "_session")

    def __init__(self, timers: Timers, session: Session) -> None:
        self._session = session
        self._idle = Timer(timers, self._over)
        self._lifetime = Timer(timers, self._lived)
        self._lateness = Lateness()
        self._asked = ""  # the reason for ending it, while the agent is asked

    def claimed(self, tenancy: Tenancy, lived_s: float) -> None:
        """Start the lifetime of a session that is claimed after so many seconds."""
        self._lifetime.arm(max(0.0, tenancy.max_lifetime_s - lived_s))

    def begin(self) -> None:
        """Start the idle time from zero. An answer of the agent that is still to come is out of
        date.
        """
        self._asked = ""
        if (tenancy := self._session.tenancy) is not None:  # the pool decides about spares
            self._idle.arm(tenancy.idle_timeout_s)

    def used(self) -> None:
        """Note use: an earlier answer of the agent is out of date."""
        self._asked = ""

    def stop(self) -> None:
        """Stop the idle time: code runs."""
        self._idle.disarm()

    def end_if_unused(self, reason: str) -> None:
        """End the session for that reason if it is not in use."""
        self._asked = reason
        self._session.idle_expired()

    def ask(self, *, can_tell: bool) -> None:
        """Ask the agent about background work. If it cannot tell, the session ends."""
        if not can_tell:
            self._session.end(IDLE_REASON)
            return
        self._asked = self._asked or IDLE_REASON
        self._session.post({"type": "status"})
        self._lateness.begin()
        self._idle.arm(ANSWER_MARGIN_S)

    def handle_status(self, frame: StatusFrame, *, idle: bool) -> None:
        """Handle the agent's answer.

        Args:
            idle: nothing was sent meanwhile.
        """
        asked, self._asked = self._asked, ""
        if not asked or not idle:
            return  # work came meanwhile, or nobody asked
        if frame.background > 0 or frame.running is not None:
            self._session.still_active()
        else:
            self._session.end(asked)

    def close(self) -> None:
        """Stop all timers."""
        self._idle.close()
        self._lifetime.close()

    def _over(self) -> None:
        if self._asked:  # the agent did not answer
            if self._lateness.is_final(self._session.jail):
                self._session.end(self._asked)
            else:
                self._idle.arm(ANSWER_MARGIN_S)
        else:
            self._session.idle_expired()

    def _lived(self) -> None:
        self._session.end("lifetime limit reached")
