"""One jail from its launch to its last process, and the conversation with its agent meanwhile.

All of it is one task, since there are a thousand: it waits for the agent to speak. A jail that dies
ends its agent's channel with it, so nobody has to wait for that as well.
"""

from __future__ import annotations

import logging
import os
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import trio

from nsm.wire.errors import NsmError, StartFailedError
from nsmd.agent_link.frames import AgentFrame, AgentProtocolError, ResumedFrame
from nsmd.agent_link.link import AgentLink, AgentLinkError
from nsmd.jail import Jail, Launcher, ProjectCopy, exhausted
from nsmd.jail.cgroups import Confinement, Group, LimitEnforcer
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec, NetworkRule, SessionLimits

log = logging.getLogger(__name__)

StartLimiter = AbstractAsyncContextManager[object]
"""Entered for as long as a jail is launched; waits until that may be."""

START_TIMEOUT_S = 20.0
"""Launch to `ready`. A cold start takes 30 to 200 ms; a machine that swaps takes seconds."""

END_TIMEOUT_S = 10.0
"""Bound on waiting for a killed jail; the kernel needs milliseconds."""

RESUME_TIMEOUT_S = 60.0
"""For an agent that another supervisor has left: it answers at once, unless it is stopped."""

EXIT_GRACE_S = 1.0
"""Between the end of an agent's channel and the exit of its jail, which follows at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """A jail with an agent that an earlier supervisor has conversed with.

    Attributes:
        jail: owned by whoever gets this.
        token: by which the agent knows who may take it up.
        capabilities: that it offered.
        group: directory of the jail's control group; None without.
        listener: descriptor of the socket for its proxy, owned likewise; None without.
        network: what the session may reach now.
        created_s: of the session, on trio's clock.
        executions: how many it had, as far as was written down.
        taken_up: how often it was taken up, this time included.
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


class Listener(Protocol):
    """Interface to the session that owns this one."""

    def agent_ready(self, link: AgentLink) -> None:
        """The agent can take work; `link` leads to it until `agent_gone`."""

    def agent_resumed(self, link: AgentLink, resumed: ResumedFrame) -> None:
        """As `agent_ready`, of an agent that was taken up; what it has to say follows.

        Raises:
            AgentProtocolError: it lies.
        """

    def agent_said(self, frame: AgentFrame) -> None:
        """One frame.

        Raises:
            AgentProtocolError: it is a lie.
        """

    def agent_lost(self, reason: str, failure: NsmError | None = None) -> None:
        """The jail or its agent is gone, or never came to be.

        Args:
            reason: for people.
            failure: what those who wait are to be told instead of that.
        """

    def agent_gone(self) -> None:
        """The link leads nowhere any more."""


class AgentSession:
    """One jail from its launch to its last process, and the messages of its agent; `run` is the
    task.

    Args:
        session_id: for the log.
        limits: what the agent is told.
        starts: entered for as long as the jail is launched, not while that is prepared.
        nursery: for what an agent does not read at once.
        keeper: confines the jail before code runs in it; None for no limits of sessions as a whole.
        earlier: taken up in place of a jail that would be launched.

    Attributes:
        pid: of the jail's PID 1 on the host; 0 before there is one.
        policy: of the jail as it was launched; None before.
        jail: None before there is one, and after it.
        confinement: its limits; None before, and without keeper.
    """

    __slots__ = (
        "_earlier",
        "_group",
        "_keeper",
        "_launcher",
        "_limits",
        "_listener",
        "_nursery",
        "_scope",
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
        listener: Listener,
        *,
        launcher: Launcher,
        limits: SessionLimits,
        starts: StartLimiter,
        nursery: trio.Nursery,
        keeper: LimitEnforcer | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self.jail: Jail | None = None
        self._earlier = earlier
        self._group: Group | None = None
        self.pid = 0
        self.confinement: Confinement | None = None
        self._keeper = keeper
        self.policy: Policy | None = None
        self._session_id = session_id
        self._spec = spec
        self._listener = listener
        self._launcher = launcher
        self._limits = limits
        self._starts = starts
        self._nursery = nursery
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Conversation of session {self._session_id} pid={self.pid}>"

    @property
    def project_copy(self) -> ProjectCopy | None:
        return None if self.jail is None else self.jail.project_copy

    def end(self) -> None:
        """Kill the jail, and launch none. Idempotent."""
        self._scope.cancel()
        if self.jail is not None:
            self.jail.kill()

    async def run(self) -> None:
        """Return when nothing is left of the jail."""
        with self._scope:
            earlier = self._earlier
            jail = earlier.jail if earlier is not None else await self._launch()
            if jail is None:
                return
            self.jail, self.pid, self.policy = jail, jail.pid, jail.policy
            try:
                if self._keeper is not None:
                    self.confinement = await self._confine(self._keeper, jail)
                if earlier is None:
                    await self._converse(jail)
                else:
                    await self._converse_on(earlier)
            finally:
                await self._see_off(jail)

    async def _confine(self, keeper: LimitEnforcer, jail: Jail) -> Confinement:
        if self._earlier is None:
            return await keeper.confine(self._session_id, jail, self._spec, self._group)
        return keeper.adopt(self._session_id, jail, self._spec, self._earlier.group)

    async def _launch(self) -> Jail | None:
        try:
            await self._launcher.prepare(self._spec)
            async with self._starts:
                return await self._launch_in_group()
        except NsmError as error:
            self._listener.agent_lost(error.message, error)
        except OSError as error:
            # No process, no memory or no descriptor for another one: the others live on.
            failure = exhausted(error)
            self._listener.agent_lost(failure.message, failure)
        return None

    async def _launch_in_group(self) -> Jail:
        """Start the jail in its control group, where there is one."""
        if self._keeper is not None:
            self._group = await self._keeper.make_group(self._session_id, self._spec)
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
            with trio.fail_after(START_TIMEOUT_S):
                environment = self._spec.environment
                await link.handshake(
                    self._limits.of_interpreters(environment), self._limits.setup_of(environment)
                )
            ready = True
            self._listener.agent_ready(link)
            while True:
                self._listener.agent_said(await link.receive())
        except trio.TooSlowError:
            self._start_failed(jail, f"was not ready after {START_TIMEOUT_S:.0f} s")
        except AgentProtocolError as error:
            if ready:
                self._listener.agent_lost(f"its agent broke the protocol ({error})")
            else:
                self._start_failed(jail, f"began with what no agent says ({error})")
        except AgentLinkError as error:
            # A jail that could not be made closes the channel first and explains itself after.
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
        """Talk to an agent that is in the middle of something."""
        link = AgentLink(earlier.jail.socket, self._nursery)
        try:
            with trio.fail_after(RESUME_TIMEOUT_S):
                resumed = await link.resume(earlier.token, earlier.capabilities)
            self._listener.agent_resumed(link, resumed)
            while True:
                self._listener.agent_said(await link.receive())
        except trio.TooSlowError:
            self._listener.agent_lost(
                f"its agent did not answer the new supervisor within {RESUME_TIMEOUT_S:.0f} s"
            )
        except AgentProtocolError as error:
            self._listener.agent_lost(f"its agent broke the protocol ({error})")
        except AgentLinkError as error:
            with trio.move_on_after(EXIT_GRACE_S) as grace:
                await earlier.jail.wait()
            why = self.confinement.why_it_died() if self.confinement is not None else ""
            self._listener.agent_lost(
                f"its agent {error}" if grace.cancelled_caught else f"its jail died{why}"
            )
        finally:
            self._listener.agent_gone()
            link.close()

    def _start_failed(self, jail: Jail, what: str) -> None:
        words = jail.stderr_text().strip()
        error = StartFailedError(
            f"The jail for environment '{self._spec.environment.name}' {what}{_quote(words)}.",
            hint="Run `nsm doctor` to see what is missing.",
            data={"stderr": words},
        )
        self._listener.agent_lost(error.message, error)

    async def _see_off(self, jail: Jail) -> None:
        jail.kill()
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
