"""A session: one task that owns one jail and the executions that run in it.

What happens when is `nsmd.lifecycle`'s table; this module carries its effects out. Executions run
one at a time in arrival order. Nothing here polls: the task sleeps until the agent speaks, the jail
ends, a timer fires or somebody submits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, assert_never

import trio

from nsm.wire.errors import (
    InternalError,
    NsmError,
    OverloadedError,
    SessionEndedError,
    StartFailedError,
)
from nsmd.agentframes import (
    AgentFrame,
    AgentProtocolError,
    CheckedFrame,
    CompletionsFrame,
    ErrorFrame,
    FileClosedFrame,
    FileDataFrame,
    FileErrorFrame,
    FileFrame,
    OtherFrame,
    OutputFrame,
    ReadyFrame,
    ResultFrame,
    StatusFrame,
)
from nsmd.agentlink import AgentLink, AgentLinkError
from nsmd.execution import Execution
from nsmd.jail import Jail, Launcher
from nsmd.lifecycle import Effect, Event, State, advance
from nsmd.requests import Requests
from nsmd.timer import Timer
from nsmd.transcripts import TranscriptStore
from nsmd.values import JailSpec, Outcome, Output, SessionLimits, Tenancy

log = logging.getLogger(__name__)

START_TIMEOUT_S = 20.0
"""Launch to `ready`. A cold start takes 30 to 200 ms; a machine that swaps takes seconds."""

ANSWER_MARGIN_S = 10.0
"""How long past limit and grace an agent may stay silent before its session is given up."""

END_TIMEOUT_S = 10.0
"""Bound on waiting for a killed jail; the kernel needs milliseconds."""

EXIT_GRACE_S = 1.0
"""Between the end of an agent's channel and the exit of its jail, which follows at once."""

ENDING_REASON_UNKNOWN = "it ended"


class SessionWatcher(Protocol):
    """What the registry or the pool wants to be told."""

    def session_ended(self, session: Session) -> None:
        """Nothing of the session is left."""


class Session:
    """See the module. Made by the pool, run by a nursery of the registry."""

    def __init__(
        self,
        session_id: str,
        spec: JailSpec,
        *,
        launcher: Launcher,
        limits: SessionLimits,
        watcher: SessionWatcher,
        start_limiter: trio.CapacityLimiter,
        transcripts: TranscriptStore,
    ) -> None:
        self.id = session_id
        self.spec = spec
        self.state = State.STARTING
        self.tenancy: Tenancy | None = None
        self.executions = 0
        self.created_s = trio.current_time()
        self.active_s = self.created_s
        self.pid = 0
        self.end_reason = ""
        self._launcher = launcher
        self._limits = limits
        self._watcher = watcher
        self._start_limiter = start_limiter
        self._queue: deque[Execution] = deque()
        self._running: Execution | None = None
        self._failure: NsmError | None = None
        self._jail: Jail | None = None
        self._link: AgentLink | None = None
        self._nursery: trio.Nursery | None = None
        self._start_scope = trio.CancelScope()
        # One for both: a session is idle, or something runs in it.
        self._timer = Timer()
        self._agent_id = ""
        self._streamed = False
        self._activity_asked = False
        self._over = trio.Event()
        self.requests = Requests(self._post)
        self._transcripts = transcripts
        self.transcript = transcripts.open(session_id, spec.environment, None)
        self._effects: Mapping[Effect, Callable[[], None]] = {
            Effect.SEND_NEXT: self._send_next,
            Effect.ARM_IDLE: self._arm_idle,
            Effect.DISARM_IDLE: self._disarm_idle,
            Effect.ASK_ACTIVITY: self._ask_activity,
            Effect.KILL: self._kill,
            Effect.FAIL_ALL: self._fail_all,
            Effect.REPORT: self._report,
        }

    def __repr__(self) -> str:
        return f"<Session {self.id} {self.state.value} pid={self.pid}>"

    @property
    def name(self) -> str | None:
        """Its name in its scope; None for a one-shot or a spare."""
        return self.tenancy.name if self.tenancy else None

    @property
    def live(self) -> bool:
        """Whether it can still take work."""
        return self.state in (State.STARTING, State.IDLE, State.RUNNING)

    # What others ask for. All of it is synchronous: the session's task does the rest.

    def claim(self, tenancy: Tenancy) -> None:
        """Give a spare to somebody; its idle time and lifetime begin now."""
        assert self.tenancy is None, "a session is claimed once"
        self.tenancy = tenancy
        self.transcript = self._transcripts.open(self.id, self.spec.environment, tenancy)
        self.created_s = self.active_s = trio.current_time()
        if self._nursery is not None:
            self._nursery.start_soon(self._expire)
        if self.state is State.IDLE:
            self._arm_idle()

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
            self._never_ran(execution, _interrupted())
            if execution.origin.one_shot:
                self.end("one-shot interrupted before it began")
            return True
        running = self._running
        if running is None or (execution is not None and execution is not running):
            return False
        if self._link is None or "interrupt" not in self._link.capabilities:
            self.end("its execution was interrupted, and its agent can only be stopped as a whole")
            return True
        self._post({"type": "interrupt", "id": self._agent_id})
        self._watch(self._limits.grace_s + ANSWER_MARGIN_S)
        return True

    def follow(self) -> None:
        """Somebody reads the transcript as it grows: from now on output comes as it is printed."""
        self.transcript.followers += 1
        link = self._link
        if self._running is None or self._streamed or link is None:
            return
        if "stream.late" in link.capabilities:
            self._streamed = True
            self.transcript.stream()
            self._post({"type": "stream", "id": self._agent_id})

    def unfollow(self) -> None:
        """Who called `follow` has read enough."""
        self.transcript.followers -= 1

    def note_activity(self) -> None:
        """The session is in use, also where nothing runs: its idle time begins anew."""
        self.active_s = trio.current_time()
        self._activity_asked = False  # whatever the agent answers is out of date
        if self.state is State.IDLE:
            self._arm_idle()

    def distrust(self, what: str) -> NsmError:
        """End the session because its agent lies; returns the error that says so."""
        self._lose(f"its agent broke the protocol ({what})")
        return self.ended_error()

    def end(self, reason: str) -> None:
        """End the session; the first reason given is kept. Idempotent."""
        if self.state in (State.ENDING, State.ENDED):
            return
        self.end_reason = reason
        self._feed(Event.END)

    async def wait_ended(self) -> None:
        """Wait until nothing of the session is left."""
        await self._over.wait()

    # The task.

    async def run(self) -> None:
        """Own the jail from launch to its last process; returns when the session is over."""
        try:
            jail = await self._launch()
            if jail is not None:
                await self._live_in(jail)
        finally:
            # Cancelled (shutdown) or crashed: whoever waits gets an answer all the same.
            if self.state not in (State.ENDING, State.ENDED):
                self.end_reason = self.end_reason or "the supervisor is shutting down"
                self._feed(Event.END)
            self._feed(Event.GONE)

    async def _launch(self) -> Jail | None:
        with self._start_scope:
            try:
                async with self._start_limiter:
                    return await self._launcher.launch(self.spec)
            except NsmError as error:
                self._lose(error.message, error)
        return None

    async def _live_in(self, jail: Jail) -> None:
        self._jail, self.pid = jail, jail.pid
        try:
            if not self.live:  # ended while it was launched
                jail.kill()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._converse, jail)
                nursery.start_soon(self._timer.run)
                if self.tenancy is not None:
                    nursery.start_soon(self._expire)
                await jail.wait()
                self._jail_gone(jail)
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = self._link = None
            jail.kill()
            with trio.move_on_after(END_TIMEOUT_S, shield=True) as scope:
                await jail.wait()
            if scope.cancelled_caught:
                log.error("jail of session %s (pid %d) is still there", self.id, self.pid)
            jail.release()
            self._jail = None

    async def _converse(self, jail: Jail) -> None:
        """Talk to the agent until either side is gone."""
        async with trio.open_nursery() as nursery:
            link = AgentLink(jail.socket)
            nursery.start_soon(link.run_writer)
            try:
                with trio.fail_after(START_TIMEOUT_S):
                    await link.handshake(self._limits.of_interpreters(self.spec.environment))
                self._link = link
                self.requests.open(link.capabilities)
                self._feed(Event.READY)
                if self._queue:
                    self._feed(Event.SUBMITTED)
                while True:
                    self._take(await link.receive())
            except trio.TooSlowError:
                self._start_failed(jail, f"was not ready after {START_TIMEOUT_S:.0f} s")
            except AgentProtocolError as error:
                self._lose(f"its agent broke the protocol ({error})")
            except AgentLinkError as error:
                # A jail that could not be made closes the channel first and explains itself after:
                # `_live_in` has the whole message once it has exited.
                await trio.sleep(EXIT_GRACE_S)
                log.warning("session %s: its agent %s, but its jail is alive", self.id, error)
                if self._link is None:
                    self._jail_gone(jail)
                else:
                    self._lose(f"its agent {error}")
            nursery.cancel_scope.cancel()

    def _jail_gone(self, jail: Jail) -> None:
        if self._link is None:
            self._start_failed(jail, "ended before it was ready")
        else:
            self._lose(f"its jail died{_quote(jail.stderr_text())}")

    def _post(self, frame: Mapping[str, object]) -> None:
        if self._link is None:
            return  # it is ending, which whoever waits for an answer is told
        try:
            self._link.post(frame)
        except AgentLinkError as error:
            self._lose(f"its agent {error}")

    def _start_failed(self, jail: Jail, what: str) -> None:
        words = jail.stderr_text().strip()
        error = StartFailedError(
            f"The jail for environment '{self.spec.environment.name}' {what}{_quote(words)}.",
            hint="Run `nsm doctor` to see what is missing.",
            data={"stderr": words},
        )
        self._lose(error.message, error)

    def _take(self, frame: AgentFrame) -> None:
        """One frame from the agent."""
        match frame:
            case OutputFrame():
                if self._running is not None and frame.id == self._agent_id:
                    output = Output(stream=frame.stream, text=frame.text)
                    self.transcript.output(output)
                    self._running.emit(output)
            case ResultFrame():
                if self._running is not None and frame.id == self._agent_id:
                    self._answered(frame.outcome)
            case ErrorFrame():
                if self._running is not None and frame.id == self._agent_id:
                    self._answered(InternalError(f"The agent refused the code: {frame.message}"))
                elif not self.requests.refused(frame):
                    log.warning("session %s: agent says %.200r", self.id, frame.message)
            case StatusFrame():
                self._activity_told(frame)
            case (
                FileFrame()
                | FileDataFrame()
                | FileClosedFrame()
                | FileErrorFrame()
                | CompletionsFrame()
                | CheckedFrame()
            ):
                self.requests.take(frame)
            case ReadyFrame() | OtherFrame():
                pass
            case _:
                assert_never(frame)

    def _activity_told(self, frame: StatusFrame) -> None:
        asked, self._activity_asked = self._activity_asked, False
        if not asked or self.state is not State.IDLE:
            return  # work came meanwhile, or nobody asked
        if frame.background > 0 or frame.running is not None:
            self._feed(Event.STILL_ACTIVE)
        else:
            self.end("idle timeout")

    def _answered(self, answer: Outcome | NsmError) -> None:
        execution, self._running, self._agent_id = self._running, None, ""
        self._timer.disarm()
        self.active_s = trio.current_time()
        if execution is not None:
            self.transcript.finish(answer)
            execution.finish(answer)
            if execution.origin.one_shot:
                self.end("one-shot finished")
                return
        self._feed(Event.ANSWERED_MORE if self._queue else Event.ANSWERED)

    # The table's effects.

    def _feed(self, event: Event) -> None:
        self.state, effects = advance(self.state, event)
        for effect in effects:
            self._effects[effect]()

    def _send_next(self) -> None:
        execution = self._running = self._queue.popleft()
        self.executions += 1
        self.active_s = trio.current_time()
        self._agent_id = f"{self.id}.{self.executions}"
        limit_s = execution.origin.timeout_s
        self._streamed = execution.streams or self.transcript.followers > 0
        self.transcript.begin(
            execution.id,
            execution.request.client.name,
            execution.request.code,
            streamed=self._streamed,
        )
        execution.note_sent()
        frame: dict[str, object] = {
            "type": "execute",
            "id": self._agent_id,
            "interpreter": self.spec.environment.interpreter,
            "code": execution.request.code,
            "timeout_s": limit_s,
            "grace_s": self._limits.grace_s,
            "stream": self._streamed,
        }
        if execution.request.reply_bytes is not None:
            frame["reply_bytes"] = execution.request.reply_bytes
        self._post(frame)
        self._watch(limit_s + self._limits.grace_s + ANSWER_MARGIN_S)

    def _watch(self, seconds: float) -> None:
        """Give the session up if the running execution has no answer by then.

        The agent keeps the time limit itself. This is for an agent that was stopped, starved or
        taken over, and for older ones that know no limit.
        """
        self._timer.arm(seconds, lambda: self.end("its agent did not answer in time"))

    def _arm_idle(self) -> None:
        if self.tenancy is not None:  # a spare's time is the pool's business
            self._timer.arm(self.tenancy.idle_timeout_s, lambda: self._feed(Event.IDLE_EXPIRED))

    def _disarm_idle(self) -> None:
        self._timer.disarm()

    def _ask_activity(self) -> None:
        if self._link is None or "status" not in self._link.capabilities:
            self.end("idle timeout")
            return
        self._activity_asked = True
        self._post({"type": "status"})
        # No answer: the agent is no longer there to be asked.
        self._timer.arm(ANSWER_MARGIN_S, lambda: self.end("idle timeout"))

    async def _expire(self) -> None:
        assert self.tenancy is not None
        await trio.sleep(self.tenancy.max_lifetime_s)
        self.end("lifetime limit reached")

    def _kill(self) -> None:
        self._start_scope.cancel()
        if self._jail is not None:
            self._jail.kill()

    def _lose(self, reason: str, failure: NsmError | None = None) -> None:
        if self.state in (State.ENDING, State.ENDED):
            return
        self.end_reason, self._failure = reason, failure
        self._feed(Event.LOST)

    def _fail_all(self) -> None:
        error = self._failure or self.ended_error()
        running, self._running = self._running, None
        if running is not None:
            self.transcript.finish(error)
            running.finish(error)
        while self._queue:
            self._never_ran(self._queue.popleft(), error)
        self.requests.fail(error)

    def _never_ran(self, execution: Execution, answer: Outcome | NsmError) -> None:
        request = execution.request
        self.transcript.never_ran(execution.id, request.client.name, request.code, answer)
        execution.finish(answer)

    def _report(self) -> None:
        if self.tenancy is not None:
            self._transcripts.close(self.transcript, self.end_reason)
        self._watcher.session_ended(self)
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


def _interrupted() -> Outcome:
    return Outcome(
        stdout="", stderr="interrupted before it began\n", exit_code=130, interrupted=True
    )


def _quote(words: str) -> str:
    words = words.strip()
    return f": {words[:500]}" if words else ""
