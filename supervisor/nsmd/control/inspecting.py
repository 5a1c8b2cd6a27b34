"""All that is known of one live session, for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import trio

from nsmd import procstats
from nsmd.cgroups import Confinement
from nsmd.control.call import Call
from nsmd.kernelfacts import KernelFacts, contradictions, kernel_facts, weaker
from nsmd.listing import as_row, live_row
from nsmd.session import Session


async def inspect(call: Call) -> dict[str, Any]:
    """Its row, its policy, and what the kernel says of its jail at this moment.

    A confined connection is told what code in the session could find out, too.
    """
    session = call.target()
    seen = await trio.to_thread.run_sync(_look, session.pid, session.confinement)
    return {
        "session": as_row(live_row(session, seen.usage, trio.current_time())),
        "policy": _policy(session, sources=not call.confined),
        "network": session.network.facts(),
        "confinement": None if call.confined else seen.confinement,
        "kernel": None if seen.kernel is None or call.confined else asdict(seen.kernel),
        "contradictions": _contradictions(session, seen.kernel),
    }


class _Seen(NamedTuple):
    """What the system says of a session's jail; None where there is none."""

    usage: procstats.Usage | None
    kernel: KernelFacts | None
    confinement: dict[str, Any] | None


def _look(pid: int, confinement: Confinement | None) -> _Seen:
    """Reads /proc and the control group; blocks."""
    kept = None if confinement is None else confinement.facts()
    if not pid:  # there is no jail yet, or none between executions
        return _Seen(None, None, kept)
    return _Seen(procstats.usage_of([pid]).get(pid), kernel_facts(pid), kept)


def _policy(session: Session, *, sources: bool) -> dict[str, Any] | None:
    return None if session.policy is None else session.policy.as_json(sources=sources)


def _contradictions(session: Session, facts: KernelFacts | None) -> list[str]:
    policy, confinement = session.policy, session.confinement
    if policy is None:
        return []
    found = [] if facts is None else list(contradictions(policy, facts))
    if confinement is not None:
        found += weaker(policy, confinement.enforcement)
    return found
