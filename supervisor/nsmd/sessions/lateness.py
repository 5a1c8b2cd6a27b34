"""Patience with an agent that does not answer in time."""

from __future__ import annotations

import logging

from nsmd.host.processes import look_at
from nsmd.jail import Jail
from nsmd.jail.cgroups import is_frozen

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
