"""All that is known of one live session, for people."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import trio

from nsmd import procstats
from nsmd.control.call import Call
from nsmd.kernelfacts import KernelFacts, contradictions, kernel_facts
from nsmd.listing import as_row, live_row
from nsmd.session import Session


async def inspect(call: Call) -> dict[str, Any]:
    """Its row, its policy, and what the kernel says of its jail at this moment.

    A confined connection is told what code in the session could find out, too.
    """
    session = call.target()
    usage, facts = await trio.to_thread.run_sync(_look, session.pid)
    return {
        "session": as_row(live_row(session, usage, trio.current_time())),
        "policy": _policy(session, sources=not call.confined),
        "kernel": None if facts is None or call.confined else asdict(facts),
        "contradictions": _contradictions(session, facts),
    }


def _look(pid: int) -> tuple[procstats.Usage | None, KernelFacts | None]:
    """Reads /proc; blocks."""
    if not pid:  # there is no jail yet, or none between executions
        return None, None
    return procstats.usage_of([pid]).get(pid), kernel_facts(pid)


def _policy(session: Session, *, sources: bool) -> dict[str, Any] | None:
    return None if session.policy is None else session.policy.as_json(sources=sources)


def _contradictions(session: Session, facts: KernelFacts | None) -> list[str]:
    if facts is None or session.policy is None:
        return []
    return list(contradictions(session.policy, facts))
