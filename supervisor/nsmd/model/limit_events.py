"""Mechanisms that enforce limits, and limits that sessions reach."""

from __future__ import annotations

from typing import Literal

from nsm.dataclass import dataclass

LimitKind = Literal["memory", "processes"]
Enforcer = Literal["cgroup", "watchdog", "rlimit", "none"]
"""Mechanism of a limit: a control group, the watchdog, limits of each process, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """Mechanism that enforces a session's limits: as read back, not as requested.

    Attributes:
        memory: for the memory of all its processes; `watchdog` looks while code runs.
        processes: for the number of processes.
        cpu: for its share beside other sessions.
        why: why it is not a control group, for people; else empty.
    """

    memory: Enforcer
    processes: Enforcer
    cpu: Enforcer
    why: str = ""


EACH_PROCESS = Enforcement(memory="rlimit", processes="rlimit", cpu="none")
"""Nothing limits a session as a whole: memory is limited for each process (setrlimit(2),
RLIMIT_DATA), the number of processes in the session's own user namespace (RLIMIT_NPROC).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitEvent:
    """A limit that ended or refused something while an execution ran: counted, never guessed.

    Attributes:
        limit: bytes of memory, or a number of processes.
        peak_bytes: the most memory that the session had; None if nothing counts it.
        what: consequence, for people: ``python (pid 12) was killed``.
        times: number of times.
    """

    kind: LimitKind
    limit: int
    enforced_by: Enforcer
    what: str
    peak_bytes: int | None = None
    times: int = 1
