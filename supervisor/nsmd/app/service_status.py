"""Reports to the service manager while the supervisor runs: that it is alive, and its status line.

The line in `systemctl status` changes with events, at most every few seconds; without events,
nothing is sent. The watchdog's pings come from the event loop, so that systemd notices a hanging
loop. It then ends this process and starts another, which takes over the sessions.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping

import trio

from nsmd.app.service_manager import tell
from nsmd.model.events import Events, Happening
from nsmd.model.shutdown import How

log = logging.getLogger(__name__)

STATUS_PERIOD_S = 5.0
"""Time between two status lines."""

MARGIN_S = 15.0
"""Time that ending takes beyond the time to wait."""

RELOAD_S = 90.0
"""Time until the program that this process becomes must run its loop: as long as a unit may take to
start (`DefaultTimeoutStartSec=`). With the watchdog's own time, systemd would end it on a slow
machine.
"""

_LONGEST_S = 86400.0


class ServiceStatus:
    """Reports to the service manager.

    Args:
        environment: variables of this process, as the service manager has set them.
        counts: returns the numbers of sessions, running executions and clients.
        remaining_s: returns the seconds until a drain's deadline; None without a drain or deadline.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        counts: Callable[[], tuple[int, int, int]],
        remaining_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._environment = environment
        self._counts = counts
        self._remaining_s = remaining_s
        self._wanted = bool(environment.get("NOTIFY_SOCKET"))
        self._changed = trio.Event()
        self._draining = ""

    def __repr__(self) -> str:
        return f"<ServiceStatus {self.text() if self._wanted else 'for nobody'}>"

    def text(self) -> str:
        """Status line, such as ``3 sessions, 1 execution under way, 2 clients``."""
        sessions, running, clients = self._counts()
        line = ", ".join(
            [
                _many(sessions, "session"),
                f"{_many(running, 'execution')} under way",
                _many(clients, "client"),
            ]
        )
        return f"{self._draining}{line}"

    async def run(self, events: Events) -> None:
        """Report changes, and that the loop turns. Returns at once if the service manager wants no
        reports.

        Cancellation: the usual way to end it.
        """
        period_s = watchdog_period_s(self._environment)
        async with trio.open_nursery() as nursery:
            if period_s is not None:
                nursery.start_soon(self._ping, period_s)
            if self._wanted:
                nursery.start_soon(self._tell_changes, events)

    def ends(self, how: How) -> None:
        """Report that the supervisor now ends, or becomes another program."""
        if how == "reload":
            now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._say(f"RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=Reloading")
            if (period_s := watchdog_period_s(self._environment)) is not None:
                self._say(f"WATCHDOG_USEC={math.ceil(max(2 * period_s, RELOAD_S) * 1e6)}")
        else:
            self._say("STOPPING=1\nSTATUS=Ending")

    async def _ping(self, period_s: float) -> None:
        # The program before a reload may have asked for more.
        self._say(f"WATCHDOG_USEC={math.ceil(2 * period_s * 1e6)}")
        while True:
            self._say("WATCHDOG=1")
            await trio.sleep(period_s)

    async def _tell_changes(self, events: Events) -> None:
        unsubscribe = events.subscribe(self._happened)
        told = ""
        try:
            while True:
                self._changed = changed = trio.Event()
                if (text := self.text()) != told:
                    self._say(f"STATUS={text}")
                    told = text
                await changed.wait()
                await trio.sleep(STATUS_PERIOD_S)
        finally:
            unsubscribe()

    def _happened(self, happening: Happening) -> None:
        self._changed.set()
        if happening.kind == "draining":
            state, then = happening.facts.get("state"), happening.facts.get("then")
            self._draining = "" if state == "cancelled" else "Draining: "
            if state == "begun" and then != "stay":
                # The unit's own limit (`TimeoutStopSec=`) knows nothing of the drain's.
                left_s = min(self._remaining_s() or 0.0, _LONGEST_S) + MARGIN_S
                self._say(f"EXTEND_TIMEOUT_USEC={math.ceil(left_s * 1e6)}\nSTATUS={self.text()}")

    def _say(self, message: str) -> None:
        if self._wanted:
            tell(self._environment, message)


def watchdog_period_s(environment: Mapping[str, str]) -> float | None:
    """Seconds between two reports that we are alive: half of the time after which systemd would end
    us (sd_watchdog_enabled(3)). None if it does not watch, or watches another process.
    """
    watched = environment.get("WATCHDOG_USEC", "")
    pid = environment.get("WATCHDOG_PID", "")
    if not watched.isdecimal() or int(watched) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(watched) / 2e6


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
