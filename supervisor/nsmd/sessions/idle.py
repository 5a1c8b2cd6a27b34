"""When a session ends because nobody uses it, or has had it for too long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nsmd.agent_link.frames import StatusFrame
from nsmd.host.timer import Timer, Timers
from nsmd.model.values import Tenancy

IDLE_REASON = "idle timeout"

ANSWER_MARGIN_S = 10.0
"""How long an agent may take beyond what it was given, until it is taken for gone."""


class Used(Protocol):
    """Interface to the session whose use is watched."""

    def idle_expired(self) -> None:
        """Its idle time is over, or somebody wants to know whether it is used."""

    def still_active(self) -> None:
        """Note use in the background."""

    def post(self, frame: Mapping[str, object], /) -> None:
        """Send a frame to its agent."""

    def end(self, reason: str) -> None:
        """End it."""


class IdleTimer:
    """Timers that end an unused session. Background work counts as use; the agent is asked about
    it."""

    __slots__ = ("_asked", "_idle", "_lifetime", "_tenancy", "_used")

    def __init__(self, timers: Timers, used: Used) -> None:
        self._used = used
        self._idle = Timer(timers, self._over)
        self._lifetime = Timer(timers, self._lived)
        self._asked = ""  # the reason to end it for, while the agent is asked
        self._tenancy: Tenancy | None = None  # a spare's time is the pool's business

    def claimed(self, tenancy: Tenancy, lived_s: float) -> None:
        """Start with the tenancy of a session that has lived for so many seconds."""
        self._tenancy = tenancy
        self._lifetime.arm(max(0.0, tenancy.max_lifetime_s - lived_s))

    def begin(self) -> None:
        """Its idle time begins, or begins anew; whatever the agent answers is out of date."""
        self._asked = ""
        if self._tenancy is not None:
            self._idle.arm(self._tenancy.idle_timeout_s)

    def used(self) -> None:
        """Note use: an earlier answer of the agent is out of date."""
        self._asked = ""

    def stop(self) -> None:
        """Something runs."""
        self._idle.disarm()

    def doubt(self, reason: str) -> None:
        """End it for that reason if it is not used."""
        self._asked = reason
        self._used.idle_expired()

    def ask(self, *, can_tell: bool) -> None:
        """Ask for work in the background; an agent that cannot tell has none."""
        if not can_tell:
            self._used.end(IDLE_REASON)
            return
        self._asked = self._asked or IDLE_REASON
        self._used.post({"type": "status"})
        self._idle.arm(ANSWER_MARGIN_S)

    def told(self, frame: StatusFrame, *, idle: bool) -> None:
        """The agent has answered.

        Args:
            idle: nothing was sent meanwhile.
        """
        asked, self._asked = self._asked, ""
        if not asked or not idle:
            return  # work came meanwhile, or nobody asked
        if frame.background > 0 or frame.running is not None:
            self._used.still_active()
        else:
            self._used.end(asked)

    def close(self) -> None:
        """Stop the timers."""
        self._idle.close()
        self._lifetime.close()

    def _over(self) -> None:
        if self._asked:  # and not answered: the agent is no longer there to be asked
            self._used.end(self._asked)
        else:
            self._used.idle_expired()

    def _lived(self) -> None:
        self._used.end("lifetime limit reached")
