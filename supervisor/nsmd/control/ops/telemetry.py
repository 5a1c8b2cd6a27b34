"""Operations for people and programs that watch the supervisor: metrics, percentiles, events."""

from __future__ import annotations

from typing import Any

import trio

from nsm.wire.errors import UnknownSessionError
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.telemetry import Ring, RingEvent
from nsmd.telemetry.telemetry import report


async def metrics(call: Call) -> dict[str, Any]:
    """Send all metrics in Prometheus's format."""
    accept = arguments.optional_text(call.args, "accept") or ""
    text, content_type = await call.services.telemetry.text(accept)
    return {"text": text.decode(), "content_type": content_type}


async def stats(call: Call) -> dict[str, Any]:
    """Send durations as percentiles since the supervisor started."""
    return report(call.services.telemetry)


async def http(call: Call) -> dict[str, Any]:
    """Describe MCP over HTTP: its address, and its connections."""
    return dict(call.services.http())


async def events(call: Call) -> dict[str, Any]:
    """Send past events, and new ones as they happen."""
    ring = call.services.telemetry.recent
    last = arguments.optional_count(call.args, "last")
    follow = arguments.flag(call.args, "follow")
    wanted = arguments.optional_text(call.args, "session")
    session = None if wanted is None else _session(call, ring, wanted)
    reader = _Reader(ring, session, last)
    stopped = trio.CancelScope()
    call.on_cancel(stopped.cancel)
    with stopped:
        await _send(call, reader)
        while follow:
            await ring.more(reader.number)
            await _send(call, reader)
    return {"number": reader.number}


def _session(call: Call, ring: Ring, target: str) -> str:
    """Find the id of a live or ended session.

    Raises:
        UnknownSessionError, AmbiguousSessionError: none, or several.
    """
    try:
        return call.services.run_service.transcript(target)[0].subject.id
    except UnknownSessionError:
        # An ended one-shot, or a session whose transcript was dropped.
        if any(event.session == target for event in ring.after(0)):
            return target
        raise


class _Reader:
    """Position of one client in the events.

    Args:
        session: id of the only wanted session; None for all.
        last: number of past events to send; None for all that are kept.
    """

    def __init__(self, ring: Ring, session: str | None, last: int | None) -> None:
        self._ring = ring
        self._session = session
        wanted = [event.number for event in ring.after(0) if self._wants(event)]
        if last is not None:
            wanted = wanted[len(wanted) - last :] if last < len(wanted) else wanted
            wanted = wanted if last else []
        self.number = wanted[0] - 1 if wanted else ring.count

    def _wants(self, event: RingEvent) -> bool:
        return self._session in (None, event.session)

    def next(self) -> tuple[list[RingEvent], int]:
        """Return the next events, and how many before them were dropped."""
        found = self._ring.after(self.number)
        missed = found[0].number - self.number - 1 if found else 0
        if found:
            self.number = found[-1].number
        return [event for event in found if self._wants(event)], missed


async def _send(call: Call, reader: _Reader) -> None:
    """Send the available events. While a slow client reads, further ones may be dropped."""
    while True:
        found, missed = reader.next()
        if missed:
            await call.emit("missed", {"count": missed})
        for event in found:
            await call.emit("event", _to_wire(event))
        if not found and not missed:
            return
        # A client that reads everything at once must not delay others.
        await trio.lowlevel.checkpoint()


def _to_wire(event: RingEvent) -> dict[str, Any]:
    return {
        "number": event.number,
        "at": event.at,
        "kind": event.kind,
        "session": event.session or None,
        "facts": dict(event.facts),
    }
