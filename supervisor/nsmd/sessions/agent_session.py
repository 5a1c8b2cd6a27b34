"""One jail from its launch to its last process, and the exchange with its agent meanwhile.

There may be a thousand jails, so one task does all of it. It starts the jail, and sleeps until the
jail is gone. Meanwhile the event loop's poller calls for the frames of the agent. A jail that dies
closes its agent's channel, so nobody has to wait for the jail as well.
"""

from __future__ import annotations

import logging
import os
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from typing import Protocol

import trio

from nsm.dataclass import dataclass
from nsm.wire.errors import NsmError, StartFailedError
from nsmd.agent_link.frames import AgentFrame, AgentProtocolError, ResumedFrame
from nsmd.agent_link.link import AgentLink, AgentLinkError
from nsmd.host.event_loop import Timer, Timers, poller
from nsmd.jail import Jail, Launcher, ProjectCopy, exhausted
from nsmd.jail.limits import Confinement, Group, LimitEnforcer
from nsmd.jail.process import hang_up
from nsmd.model.limits import setup_of
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec, NetworkRule, SessionLimits
from nsmd.sessions.timeouts import ANSWER_MARGIN_S, Lateness

log = logging.getLogger(__name__)

StartLimiter = AbstractAsyncContextManager[object]
"""Entered while a jail is launched, or taken over; waits until that is permitted."""

START_TIMEOUT_S = 20.0
"""Time from launch to `ready`. A cold start takes 30 to 200 ms; a machine that swaps
takes seconds.
"""

END_TIMEOUT_S = 10.0
"""Bound on waiting for a killed jail; the kernel needs milliseconds."""

RESUME_TIMEOUT_S = 60.0
"""Time for an agent that another supervisor has left: it answers at once. One that is stopped has
time until it goes on."""

EXIT_GRACE_S = 1.0
"""Time between the end of an agent's channel and the exit of its jail, which follows at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A jail whose agent already worked for an earlier supervisor.

    Attributes:
        jail: the jail; its receiver owns it.
        token: token of the earlier `hello`, which permits to resume.
        capabilities: capabilities that the agent offered.
        group: directory of the jail's control group; None without.
        listener: descriptor of the socket for its proxy, owned likewise; None without.
        network: what the session may reach now.
        created_s: start of the session, on trio's clock.
        executions: number of its executions, as far as recorded.
        taken_up: number of supervisors that have taken it over, this one included.
    """

    jail: Jail
    token: bytes
    capabilities: frozenset[str]
    group: str | None
    listener: int | None
    network: NetworkRule
    created_s: float
    executions: int
    taken_up: int


class SessionCallbacks(Protocol):
    """Interface to the session that owns this one."""

    def agent_ready(self, link: AgentLink) -> None:
        """The agent can take work; `link` leads to it until `agent_gone`."""

    def agent_resumed(self, link: AgentLink, resumed: ResumedFrame) -> None:
        """Like `agent_ready`, for an agent that was taken over; its unacknowledged frames follow.

        Raises:
            AgentProtocolError: the agent lies.
        """

    def agent_said(self, frame: AgentFrame) -> None:
        """Handle one frame.

        Raises:
            AgentProtocolError: the frame is a lie.
        """

    def agent_lost(self, reason: str, failure: NsmError | None = None) -> None:
        """The jail or its agent is gone, or could not be made.

        Args:
            reason: for people.
            failure: error for waiting callers, if they should get another one than the reason.
        """

    def agent_gone(self) -> None:
        """The link can no longer be used."""


class AgentSession:
    """One jail from its launch to its last process, and the messages of its agent; `run` is the
    task.

    Args:
        session_id: for the log.
        limits: limits to send to the agent.
        starts: entered while the jail is launched, but not during the preparation; or while an
            agent that was taken over is asked what it runs.
        nursery: for tasks that write what an agent does not read at once.
        timers: timers of all sessions.
        enforcer: confines the jail before code runs in it; None for no limits of whole sessions.
        earlier: a jail to take over instead of a launch.

    Attributes:
        pid: host process id of the jail's PID 1; 0 before there is one.
        policy: policy with which the jail was launched; None before.
        jail: the jail; None before and after it.
        confinement: limits of the jail; None before, and without an enforcer.
    """

    __slots__ = (
        "_broken",
        "_dead",
        "_earlier",
        "_ended",
        "_enforcer",
        "_group",
        "_launcher",
        "_launching",
        "_limits",
        "_link",
        "_listener",
        "_nursery",
        "_over",
        "_patience",
        "_poller",
        "_session_id",
        "_spec",
        "_starts",
        "confinement",
        "jail",
        "pid",
        "policy",
    )

    def __init__(
        self,
        session_id: str,
        spec: JailSpec,
        listener: SessionCallbacks,
        *,
        launcher: Launcher,
        limits: SessionLimits,
        starts: StartLimiter,
        nursery: trio.Nursery,
        timers: Timers,
        enforcer: LimitEnforcer | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self.jail: Jail | None = None
        self._earlier = earlier
        self._group: Group | None = None
        self.pid = 0
        self.confinement: Confinement | None = None
        self._enforcer = enforcer
        self.policy: Policy | None = None
        self._session_id = session_id
        self._spec = spec
        self._listener = listener
        self._launcher = launcher
        self._limits = limits
        self._starts = starts
        self._nursery = nursery
        self._poller = poller()
        self._link: AgentLink | None = None
        self._ended = False
        self._dead = False  # nothing is left in the jail
        self._broken: Exception | None = None  # why no more frames come
        self._over = trio.Event()
        self._patience = Timer(timers, self._over.set)
        self._launching: trio.CancelScope | None = None  # while it starts

    def __repr__(self) -> str:
        return f"<AgentSession of session {self._session_id} pid={self.pid}>"

    @property
    def project_copy(self) -> ProjectCopy | None:
        return None if self.jail is None else self.jail.project_copy

    def end(self) -> None:
        """Kill the jail, and launch none. Idempotent."""
        if self._ended:
            return
        self._ended = True
        jail = self.jail
        if jail is None:
            if self._launching is not None:
                self._launching.cancel()
            return
        jail.kill()
        if self._link is None:  # the task waits for an answer, if for anything
            hang_up(jail.socket)
            return
        # It wakes up once, when nothing is left.
        self._poller.forget(jail.socket.fileno())
        self._poller.watch(jail.pidfd, self._jail_died)
        self._patience.arm(END_TIMEOUT_S)

    def _jail_died(self) -> None:
        self._dead = True
        if self.jail is not None:
            self._poller.forget(self.jail.pidfd)
        self._over.set()

    async def run(self) -> None:
        """Return when nothing is left of the jail."""
        earlier, jail = self._earlier, None
        if earlier is not None:
            jail = earlier.jail
        else:
            if self._ended:
                return
            with trio.CancelScope() as self._launching:
                jail = await self._launch()
            self._launching = None
        if jail is None:
            return
        self.jail, self.pid, self.policy = jail, jail.pid, jail.policy
        try:
            if self._enforcer is not None:
                self.confinement = await self._confine(self._enforcer, jail)
            if self._ended:
                return
            if earlier is None:
                await self._converse(jail)
            else:
                await self._converse_on(earlier)
        finally:
            await self._see_off(jail)

    async def _confine(self, enforcer: LimitEnforcer, jail: Jail) -> Confinement:
        if self._earlier is None:
            return await enforcer.confine(self._session_id, jail, self._spec, self._group)
        return enforcer.adopt(self._session_id, jail, self._spec, self._earlier.group)

    async def _launch(self) -> Jail | None:
        try:
            await self._launcher.prepare(self._spec)
            async with self._starts:
                return await self._launch_in_group()
        except NsmError as error:
            self._listener.agent_lost(error.message, error)
        except OSError as error:
            # There is no process, memory or descriptor left for another jail: the other sessions
            # live on.
            failure = exhausted(error)
            self._listener.agent_lost(failure.message, failure)
        return None

    async def _launch_in_group(self) -> Jail:
        """Start the jail, in its control group if it has one."""
        if self._enforcer is not None:
            self._group = await self._enforcer.make_group(self._session_id, self._spec)
        if self._group is None:
            return await self._launcher.launch(self._spec)
        try:
            entry = self._group.entry()
            try:
                return await self._launcher.launch(self._spec, entry)
            finally:
                os.close(entry)
        except BaseException:
            self._group.remove()
            raise

    async def _converse(self, jail: Jail) -> None:
        """Talk to the agent until either side is gone."""
        link = AgentLink(jail.socket, self._nursery)
        ready = False
        try:
            ready_frame = link.receive_first()  # an agent has spoken when its launch returns
            if ready_frame is None:
                with trio.fail_after(START_TIMEOUT_S):
                    ready_frame = await link.receive()
            environment = self._spec.environment
            await link.handshake(
                self._limits.of_interpreters(environment),
                setup_of(environment, self._limits.grace_s),
                ready=ready_frame,
            )
            ready = True
            jail.mark_ready()
            self._listener.agent_ready(link)
            await self._listen(link, jail)
        except trio.TooSlowError:
            self._start_failed(jail, f"was not ready after {START_TIMEOUT_S:.0f} s")
        except AgentProtocolError as error:
            if ready:
                self._listener.agent_lost(f"its agent broke the protocol ({error})")
            else:
                self._start_failed(jail, f"began with what no agent says ({error})")
        except AgentLinkError as error:
            if self._ended:
                return
            # If a jail could not be made, it closes the channel first and explains afterwards.
            with trio.move_on_after(EXIT_GRACE_S) as grace:
                await jail.wait()
            if grace.cancelled_caught:
                log.warning(
                    "session %s: its agent %s, but its jail is alive", self._session_id, error
                )
            if not ready:
                silent = grace.cancelled_caught
                self._start_failed(
                    jail, f"failed: its agent {error}" if silent else "ended before it was ready"
                )
            elif grace.cancelled_caught:
                self._listener.agent_lost(f"its agent {error}")
            else:
                why = self.confinement.why_it_died() if self.confinement is not None else ""
                self._listener.agent_lost(f"its jail died{why or _quote(jail.stderr_text())}")
        finally:
            self._listener.agent_gone()
            link.close()

    async def _converse_on(self, earlier: Earlier) -> None:
        """Talk to an agent that may be running something."""
        link = AgentLink(earlier.jail.socket, self._nursery)
        try:
            resumed = await self._resume(link, earlier)
            self._listener.agent_resumed(link, resumed)
            await self._listen(link, earlier.jail)
        except trio.TooSlowError:
            self._listener.agent_lost(
                f"its agent did not answer the new supervisor within {RESUME_TIMEOUT_S:.0f} s"
            )
        except AgentProtocolError as error:
            self._listener.agent_lost(f"its agent broke the protocol ({error})")
        except AgentLinkError as error:
            if self._ended:
                return
            with trio.move_on_after(EXIT_GRACE_S) as grace:
                await earlier.jail.wait()
            why = self.confinement.why_it_died() if self.confinement is not None else ""
            self._listener.agent_lost(
                f"its agent {error}" if grace.cancelled_caught else f"its jail died{why}"
            )
        finally:
            self._listener.agent_gone()
            link.close()

    async def _resume(self, link: AgentLink, earlier: Earlier) -> ResumedFrame:
        """Ask the agent what it runs. One that is stopped has time, and holds up no other.

        Raises:
            trio.TooSlowError: it does not answer.
            AgentProtocolError, AgentLinkError: as `AgentLink.resume`.
        """
        async with self._starts:
            with trio.move_on_after(RESUME_TIMEOUT_S):
                return await link.resume(earlier.token, earlier.capabilities)
        lateness = Lateness()
        while not lateness.is_final(earlier.jail):
            with trio.move_on_after(ANSWER_MARGIN_S):
                return await link.resume(earlier.token, earlier.capabilities)
        raise trio.TooSlowError

    async def _listen(self, link: AgentLink, jail: Jail) -> None:
        """Take frames until either side is gone.

        Raises:
            AgentProtocolError, AgentLinkError: as `AgentLink.receive`.
        """
        if self._ended:
            return
        self._link = link
        try:
            self._take_frames(link)  # those that came with the answer to the handshake
            if self._broken is None and not self._ended:
                # The log says in which context a line was written.
                readable = partial(copy_context().run, self._readable)
                self._poller.watch(jail.socket.fileno(), readable)
            await self._over.wait()
        finally:
            self._link = None
            self._patience.close()
            self._poller.forget(jail.socket.fileno())
            self._poller.forget(jail.pidfd)
        if self._broken is not None:
            raise self._broken

    def _readable(self) -> None:
        if (link := self._link) is not None:
            self._take_frames(link, read=True)

    def _take_frames(self, link: AgentLink, *, read: bool = False) -> None:
        try:
            if read:
                link.read()
            while not self._ended and (frame := link.next_frame()) is not None:
                self._listener.agent_said(frame)
        except Exception as error:  # noqa: BLE001  # the task raises it
            self._broken = error
            if self.jail is not None:
                self._poller.forget(self.jail.socket.fileno())
            self._over.set()

    def _start_failed(self, jail: Jail, what: str) -> None:
        words = jail.stderr_text().strip()
        error = StartFailedError(
            f"The jail for environment '{self._spec.environment.name}' {what}{_quote(words)}.",
            hint="Run `nsm doctor` to see what is missing.",
            data={"stderr": words},
        )
        self._listener.agent_lost(error.message, error)

    async def _see_off(self, jail: Jail) -> None:
        if not self._dead:
            jail.kill()
        if not self._dead or jail.starter_pid:
            with trio.move_on_after(END_TIMEOUT_S, shield=True) as patience:
                await jail.wait()
            if patience.cancelled_caught:
                log.error("jail of session %s (pid %d) is still there", self._session_id, self.pid)
        if self.confinement is not None:
            self.confinement.close()
        jail.release()
        self.jail = None


def _quote(words: str) -> str:
    words = words.strip()
    return f": {words[:500]}" if words else ""
