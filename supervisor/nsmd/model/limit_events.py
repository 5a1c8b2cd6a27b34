"""Limits that sessions reach."""

from __future__ import annotations

from typing import Literal

from nsm.dataclass import dataclass

LimitKind = Literal["memory", "processes"]
Enforcer = Literal["cgroup", "watchdog", "rlimit", "none"]
"""Mechanism of a limit: a control group, the watchdog, limits of each process, or nothing."""


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
