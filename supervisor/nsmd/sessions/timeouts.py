"""Timers that end a session because nobody uses it, because its lifetime is over, or because its
agent does not answer in time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nsmd.agent_link.frames import StatusFrame
from nsmd.host.event_loop import Timer, Timers
from nsmd.host.processes import look_at
from nsmd.jail import Jail
from nsmd.jail.limits import is_frozen
from nsmd.model.values import Tenancy

if TYPE_CHECKING:
    from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

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
    process = look_at(pid)
    return process is not None and (process.state in {"T", "t"} or is_frozen(pid))


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

    def doubt(self, reason: str) -> None:
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

    def told(self, frame: StatusFrame, *, idle: bool) -> None:
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
