"""Memory that is available for spares, and memory that one takes. Reads /proc; Linux only.

Nothing here polls: others decide when to look. If the kernel has pressure stall information (PSI),
it wakes us when programs begin to wait for memory.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress

import trio

from nsm.dataclass import dataclass
from nsmd.host.processes import read_proc, share_of, tree_of
from nsmd.pool.policy import MemorySeen

PRESSURE = "proc/pressure/memory"

TRIGGER = b"some 100000 2000000\0"
"""Wakes us when programs waited for memory during 100 ms of 2 s. Ordinary users may ask for windows
of multiples of 2 s (since Linux 6.5).
"""

PRESSURE_PAUSE_S = 10.0
"""Pause between two wake-ups, since the average that is read is one over 10 s."""

FRESH_S = 1.0
"""Seconds for which a reading counts as current."""

_READ_BYTES = 65536


@dataclass(slots=True)
class _Read:
    at_s: float
    seen: MemorySeen


class HostMemory:
    """The memory of this host; `root` has `/proc` and `/sys`, other than `/` in tests only."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._watched = False
        self._last: _Read | None = None

    def seen(self) -> MemorySeen:
        """Read the memory figures, at most once in `FRESH_S`; some 50 microseconds."""
        now = trio.current_time()
        if self._last is None or now - self._last.at_s > FRESH_S:
            self._last = _Read(now, self._look())
        return self._last.seen

    def _look(self) -> MemorySeen:
        total, available = _host_memory(_text(self._root + "proc/meminfo"))
        for limit, used in self._group_limits():
            room = max(0, limit - used)
            total = min(total, limit) if total else limit
            available = room if available is None else min(available, room)
        return MemorySeen(
            total_bytes=total,
            available_bytes=available,
            pressure_percent=_pressure(_text(self._root + PRESSURE)),
            watched=self._watched,
        )

    def _group_limits(self) -> list[tuple[int, int]]:
        """Limit and use of each limited control group that we are in (version 2)."""
        found: list[tuple[int, int]] = []
        group = _own_group(_text(self._root + "proc/self/cgroup"))
        while group:
            folder = f"{self._root}sys/fs/cgroup{group}"
            limit, used = _text(f"{folder}/memory.max"), _text(f"{folder}/memory.current")
            if limit.strip().isdigit() and used.strip().isdigit():
                found.append((int(limit), int(used)))
            group = group.rpartition("/")[0]
        return found

    async def cost_bytes(self, pid: int) -> int | None:
        """Measure a jail's memory as `cost_of` does, in a thread."""
        return await trio.to_thread.run_sync(self.cost_of, pid)

    def cost_of(self, pid: int) -> int | None:
        """Measure the memory of a process and those below it; None if it is gone.

        It uses the proportional share (PSS) of each process that we may read. An ordinary user
        cannot read that of an agent, and neither may the code that the agent runs; for an agent,
        resident memory that is not shared counts. Up to 3 ms per process.
        """
        costs = [
            cost
            for each in tree_of(pid, f"{self._root}proc")
            if (cost := share_of(each, f"{self._root}proc"))
        ]
        return sum(costs) if costs else None

    async def watch(self, tell: Callable[[], None]) -> None:
        """Call `tell` when programs begin to wait for memory; returns if nobody can know.

        Cancellation: the usual way to end it; closes the trigger.
        """
        trigger = self._open_trigger()
        if trigger is None:
            return
        try:
            with select.epoll() as poll:
                poll.register(trigger, select.EPOLLPRI)
                self._watched, self._last = True, None
                while True:
                    # trio waits for readable and writable only; an epoll with an event is readable.
                    await trio.lowlevel.wait_readable(poll.fileno())
                    poll.poll(0)
                    self._last = None
                    tell()
                    await trio.sleep(PRESSURE_PAUSE_S)
        finally:
            self._watched = False
            os.close(trigger)

    def _open_trigger(self) -> int | None:
        try:
            fd = os.open(self._root + PRESSURE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            os.write(fd, TRIGGER)
        except OSError:  # an older kernel, for an ordinary user
            os.close(fd)
            return None
        return fd


def _text(path: str) -> str:
    with suppress(OSError):
        return read_proc(path, _READ_BYTES).decode(errors="replace")
    return ""


def _host_memory(text: str) -> tuple[int, int | None]:
    """Total and available bytes in the text of `/proc/meminfo`."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number = value.removesuffix("kB").strip()
        if name in ("MemTotal", "MemAvailable") and number.isdigit():
            values[name] = int(number) * 1024
    return values.get("MemTotal", 0), values.get("MemAvailable")


def _pressure(text: str) -> float | None:
    """`some avg10` in the text of `/proc/pressure/memory`, percent."""
    for line in text.splitlines():
        kind, *fields = line.split()
        for field in fields:
            name, _, value = field.partition("=")
            if (kind, name) == ("some", "avg10"):
                try:
                    return float(value)
                except ValueError:
                    return None
    return None


def _own_group(text: str) -> str:
    """Path of our control group in the text of `/proc/self/cgroup`; empty without one."""
    for line in text.splitlines():
        if line.startswith("0::/"):
            return line[len("0::") :].rstrip("/")
    return ""
