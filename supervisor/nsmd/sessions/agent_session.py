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
from typing import TYPE_CHECKING

import trio

from nsm.dataclass import dataclass
from nsm.wire.errors import NsmError, StartFailedError
from nsmd.agent_link.frames import AgentProtocolError, ResumedFrame
from nsmd.agent_link.link import AgentLink, AgentLinkError
from nsmd.host.event_loop import Timer, Timers, poller
from nsmd.host.processes import read_process
from nsmd.jail import Jail, Launcher, exhausted
from nsmd.jail.limits import Confinement, Group, LimitEnforcer, is_frozen
from nsmd.jail.process import hang_up
from nsmd.model.limits import setup_of
from nsmd.model.values import NetworkRule

if TYPE_CHECKING:
    from nsmd.sessions.session import Session

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


ANSWER_MARGIN_S = 10.0
"""Time that an agent may take beyond the expected time before it counts as gone."""


class Lateness:
    """Judgement on an agent that has not answered in time: whether it is to be given up.

    It is not while it is stopped: by a signal, a debugger, or with its control group. One that runs
    may have gone on only now, and may still have to stop code that has used up its time. So it has
    `ANSWER_MARGIN_S` once more. (The clock of the supervisor's event loop leaves out the time in
    which the supervisor did not run.)
    """

    __slots__ = ("_has_told", "_is_late")

    def __init__(self) -> None:
        self._is_late = self._has_told = False

    def begin(self) -> None:
        """Wait for another answer."""
        self._is_late = self._has_told = False

    def is_final(self, jail: Jail | None) -> bool:
        """Return whether the agent is to be given up; else it has `ANSWER_MARGIN_S` from now on."""
        if jail is not None and is_stopped(jail.pid):
            if not self._has_told:
                log.warning("the agent with process id %d is stopped: nsm waits for it", jail.pid)
            self._is_late, self._has_told = False, True
            return False
        final, self._is_late = self._is_late, True
        return final


def is_stopped(pid: int) -> bool:
    """Return whether a process cannot run for now, as somebody has stopped it."""
    process = read_process(pid)
    return process is not None and (process.state in {"T", "t"} or is_frozen(pid))


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A jail whose agent already worked for an earlier supervisor.

    Attributes:
        jail: the jail; its receiver owns it.
        token: token of the earlier `hello`, which permits to resume.
        listener: descriptor of the socket for its proxy, owned likewise; None without.
        network: what the session may reach now.
        created_s: start of the session, on trio's clock.
        taken_up: number of supervisors that have taken it over, this one included.
        group: directory of the jail's control group; None without.
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


class AgentSession:
    """The jail of one session from its launch to its last process, and the messages of its agent;
    `run` is the task. It sets the session's `jail`, `pid`, `policy` and `confinement`.

    Args:
        starts: entered while the jail is launched, but not during the preparation; or while an
            agent that was taken over is asked what it runs.
        nursery: for tasks that write what an agent does not read at once.
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
        "_link",
        "_nursery",
        "_over",
        "_patience",
        "_poller",
        "_session",
        "_starts",
    )

    def __init__(
        self,
        session: Session,
        launcher: Launcher,
        starts: StartLimiter,
        nursery: trio.Nursery,
        timers: Timers,
        enforcer: LimitEnforcer | None,
        earlier: Earlier | None,
    ) -> None:
        self._session = session
        self._earlier = earlier
        self._group: Group | None = None
        self._enforcer = enforcer
        self._launcher = launcher
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
        return f"<AgentSession of session {self._session.id} pid={self._session.pid}>"

    def end(self) -> None:
        """Kill the jail, and launch none. Idempotent."""
        if self._ended:
            return
        self._ended = True
        jail = self._session.jail
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
        if (jail := self._session.jail) is not None:
            self._poller.forget(jail.pidfd)
        self._over.set()

    async def run(self) -> None:
        """Return when nothing is left of the jail."""
        session = self._session
        jail: Jail | None = None
        if self._earlier is not None:
            jail = self._earlier.jail
        else:
            if self._ended:
                return
            with trio.CancelScope() as self._launching:
                jail = await self._launch()
            self._launching = None
        if jail is None:
            return
        session.jail, session.pid, session.policy = jail, jail.pid, jail.policy
        try:
            if self._enforcer is not None:
                session.confinement = await self._confine(self._enforcer, jail)
            if not self._ended:
                await self._converse(jail)
        finally:
            await self._see_off(jail)

    async def _confine(self, enforcer: LimitEnforcer, jail: Jail) -> Confinement:
        session = self._session
        if self._earlier is None:
            return await enforcer.confine(session.id, jail, session.spec, self._group)
        return enforcer.adopt(session.id, jail, session.spec, self._earlier.group)

    async def _launch(self) -> Jail | None:
        try:
            await self._launcher.prepare(self._session.spec)
            async with self._starts:
                return await self._launch_in_group()
        except NsmError as error:
            self._session.agent_lost(error.message, error)
        except OSError as error:
            # There is no process, memory or descriptor left for another jail: the other sessions
            # live on.
            failure = exhausted(error)
            self._session.agent_lost(failure.message, failure)
        return None

    async def _launch_in_group(self) -> Jail:
        """Start the jail, in its control group if it has one."""
        spec = self._session.spec
        if self._enforcer is not None:
            self._group = await self._enforcer.make_group(self._session.id, spec)
        if self._group is None:
            return await self._launcher.launch(spec)
        try:
            entry = self._group.entry()
            try:
                return await self._launcher.launch(spec, entry)
            finally:
                os.close(entry)
        except BaseException:
            self._group.remove()
            raise

    async def _converse(self, jail: Jail) -> None:
        """Talk to the agent until either side is gone."""
        session, earlier = self._session, self._earlier
        link = AgentLink(jail.socket, self._nursery)
        ready = earlier is not None
        try:
            if earlier is not None:
                session.agent_resumed(link, await self._resume(link, earlier))
            else:
                await self._shake_hands(link)
                ready = True
                jail.mark_ready()
                session.agent_ready(link)
            await self._listen(link, jail)
        except trio.TooSlowError:
            if ready:
                limit = f"{RESUME_TIMEOUT_S:.0f} s"
                session.agent_lost(f"its agent did not answer the new supervisor within {limit}")
            else:
                self._start_failed(jail, f"was not ready after {START_TIMEOUT_S:.0f} s")
        except AgentProtocolError as error:
            if ready:
                session.agent_lost(f"its agent broke the protocol ({error})")
            else:
                self._start_failed(jail, f"began with what no agent says ({error})")
        except AgentLinkError as error:
            if not self._ended:
                await self._explain_end(jail, error, ready=ready)
        finally:
            session.agent_gone()
            link.close()

    async def _shake_hands(self, link: AgentLink) -> None:
        """Answer the first frame of a new agent."""
        ready_frame = link.receive_first()  # an agent has spoken when its launch returns
        if ready_frame is None:
            with trio.fail_after(START_TIMEOUT_S):
                ready_frame = await link.receive()
        environment, limits = self._session.spec.environment, self._session.limits
        await link.handshake(
            limits.of_interpreters(environment),
            setup_of(environment, limits.grace_s),
            ready=ready_frame,
        )

    async def _explain_end(self, jail: Jail, error: AgentLinkError, *, ready: bool) -> None:
        """Say why the channel is closed."""
        # If a jail could not be made, it closes the channel first and explains afterwards.
        with trio.move_on_after(EXIT_GRACE_S) as grace:
            await jail.wait()
        lives, session = grace.cancelled_caught, self._session
        if lives:
            log.warning("session %s: its agent %s, but its jail is alive", session.id, error)
        if not ready:
            self._start_failed(
                jail, f"failed: its agent {error}" if lives else "ended before it was ready"
            )
        elif lives:
            session.agent_lost(f"its agent {error}")
        else:
            why = session.confinement.why_it_died() if session.confinement is not None else ""
            session.agent_lost(f"its jail died{why or _quote(jail.stderr_text())}")

    async def _resume(self, link: AgentLink, earlier: Earlier) -> ResumedFrame:
        """Ask the agent what it runs. One that is stopped has time, and holds up no other."""
        async with self._starts:
            with trio.move_on_after(RESUME_TIMEOUT_S):
                return await link.resume(earlier.token, earlier.capabilities)
        lateness = Lateness()
        while not lateness.is_final(earlier.jail):
            with trio.move_on_after(ANSWER_MARGIN_S):
                return await link.resume(earlier.token, earlier.capabilities)
        raise trio.TooSlowError

    async def _listen(self, link: AgentLink, jail: Jail) -> None:
        """Take frames until either side is gone."""
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
                self._session.agent_said(frame)
        except Exception as error:  # noqa: BLE001  # the task raises it
            self._broken = error
            if (jail := self._session.jail) is not None:
                self._poller.forget(jail.socket.fileno())
            self._over.set()

    def _start_failed(self, jail: Jail, what: str) -> None:
        words, name = jail.stderr_text().strip(), self._session.spec.environment.name
        error = StartFailedError(
            f"The jail for environment '{name}' {what}{_quote(words)}.",
            hint="Run `nsm doctor` to see what is missing.",
            data={"stderr": words},
        )
        self._session.agent_lost(error.message, error)

    async def _see_off(self, jail: Jail) -> None:
        session = self._session
        if not self._dead:
            jail.kill()
        if not self._dead or jail.starter_pid:
            with trio.move_on_after(END_TIMEOUT_S, shield=True) as patience:
                await jail.wait()
            if patience.cancelled_caught:
                log.error("jail of session %s (pid %d) is still there", session.id, session.pid)
        if session.confinement is not None:
            session.confinement.close()
        jail.release()
        session.jail = None


def _quote(words: str) -> str:
    words = words.strip()
    return f": {words[:500]}" if words else ""
