"""Operations on the supervisor itself: its state, its figures and events, and its end."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from nsm._version import program_version
from nsm.wire.errors import ShuttingDownError, StartFailedError, UnknownSessionError
from nsm.wire.status import DrainReport
from nsmd.control.call import Call, Services
from nsmd.fdstore.handover import SuccessorAnswer, SuccessorError, try_successor
from nsmd.fdstore.running_holders import SilentHolders
from nsmd.pool.pool import Kind, Pool
from nsmd.restart.kept_sessions import session_id_of
from nsmd.telemetry import Ring, RingEvent
from nsmd.telemetry.telemetry import report as stats_report

log = logging.getLogger(__name__)

TELL_INTERVAL_S = 1.0
"""Interval of progress events, so that a waiting client sees that time passes. Executions that
finish are reported no more often.
"""

END_WAIT_S = 5.0
"""Time for sessions to end that the next program cannot use; the kernel needs milliseconds."""

MAX_NAMED = 20
"""Largest number of sessions and others that a refusal names."""

_OF_HTTP = {"enabled", "listen", "url", "token", "connections", "max_connections", "problem"}
"""Fields that `status` shows; the operation `http` has the rest."""


async def ping(call: Call) -> dict[str, Any]:  # noqa: ARG001 (all operations look alike)
    """Answer, to show that the supervisor does."""
    return {}


async def status(call: Call) -> dict[str, Any]:
    """Describe the supervisor itself."""
    services = call.services
    if call.confined:
        return {"version": program_version()}
    hidden = services.silent.problem if services.silent else ""
    return {
        "version": program_version(),
        "pid": services.pid,
        "uptime_s": trio.current_time() - services.started_s,
        "sessions": len(services.run_service.live_sessions()),
        "spares": services.run_service.session_manager.pool.spares,
        "clients": services.clients(),
        "socket": services.socket_path,
        "jail": dict(services.jail),
        "limits": dict(services.limits),
        "draining": services.ending.draining or None,
        "audit": dict(services.audit()),
        "survival": {
            "kind": services.store.kind,
            "problem": hidden or services.store.problem,
            "unread": services.entries.problem,
            "hidden": hidden,
        },
        "bridge": dict(services.bridge.facts()),
        "upstream": services.run_service.session_manager.gateway.upstream.shown,
        "http": {name: value for name, value in services.http().items() if name in _OF_HTTP},
        "ports": {
            "open": len(services.ports.rows()),
            "unopened": len(services.ports.unopened()),
        },
    }


async def pool(call: Call) -> dict[str, Any]:
    """List the kinds of spares, the one used last first."""
    its = call.services.run_service.session_manager.pool
    now = trio.current_time()
    kinds = [_kind(kind, now) for kind in reversed(its.kinds)]
    return {
        "kinds": kinds,
        "totals": {
            "ready": sum(kind["ready"] for kind in kinds),
            "starting": sum(kind["starting"] for kind in kinds),
            "wanted": sum(kind["wanted"] for kind in kinds),
            "hits": its.hits,
            "misses": its.misses,
        },
        "memory": _memory(its),
    }


def _kind(kind: Kind, now: float) -> dict[str, Any]:
    mount = kind.spec.project
    used_s = max(kind.used_s, kind.expected_s)
    return {
        "env": kind.spec.environment.name,
        "project": mount.path if mount else None,
        "ready": len(kind.ready),
        "starting": len(kind.starting),
        "wanted": kind.plan.wanted,
        "why": kind.plan.why,
        "hits": kind.hits,
        "misses": kind.misses,
        "refill_p50_s": kind.refills.quantile(0.5),
        "refill_p95_s": kind.refills.quantile(0.95),
        "calls_per_s": kind.demand.rate(now),
        "idle_s": now - used_s,
        "memory_bytes": kind.cost_bytes,
        "failures": kind.failures,
    }


def _memory(its: Pool) -> dict[str, Any]:
    seen = its.memory
    costs = [kind.cost_bytes for kind in its.kinds if kind.cost_bytes is not None and kind.spares]
    spares = [kind.spares for kind in its.kinds if kind.cost_bytes is not None and kind.spares]
    return {
        "spares_bytes": sum(cost * count for cost, count in zip(costs, spares, strict=True)),
        "budget_bytes": its.budget_bytes,
        "available_bytes": seen.available_bytes,
        "pressure_percent": seen.pressure_percent,
    }


async def metrics(call: Call, accept: str = "") -> dict[str, Any]:
    """Send all metrics in Prometheus's format."""
    text, content_type = await call.services.telemetry.text(accept)
    return {"text": text.decode(), "content_type": content_type}


async def stats(call: Call) -> dict[str, Any]:
    """Send durations as percentiles since the supervisor started."""
    return stats_report(call.services.telemetry)


async def http(call: Call) -> dict[str, Any]:
    """Describe MCP over HTTP: its address, and its connections."""
    return dict(call.services.http())


async def events(
    call: Call, *, last: int | None = None, follow: bool = False, session: str | None = None
) -> int:
    """Send past events, and new ones as they happen; returns the number of the last one."""
    ring = call.services.telemetry.recent
    reader = _EventReader(
        ring, None if session is None else _session_of_events(call, ring, session), last
    )
    stopped = trio.CancelScope()
    call.on_cancel(stopped.cancel)
    with stopped:
        await _send_events(call, reader)
        while follow:
            await ring.more(reader.number)
            await _send_events(call, reader)
    return reader.number


def _session_of_events(call: Call, ring: Ring, target: str) -> str:
    """Find the id of a live or ended session; an error if none or several are meant."""
    try:
        return call.services.run_service.transcript(target)[0].subject.id
    except UnknownSessionError:
        # An ended one-shot, or a session whose transcript was dropped.
        if any(event.session == target for event in ring.after(0)):
            return target
        raise


class _EventReader:
    """Position of one client in the events.

    Args:
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


async def _send_events(call: Call, reader: _EventReader) -> None:
    """Send the available events. While a slow client reads, further ones may be dropped."""
    while True:
        found, missed = reader.next()
        if missed:
            await call.emit("missed", {"count": missed})
        for event in found:
            await call.emit("event", _event_to_wire(event))
        if not found and not missed:
            return
        # A client that reads everything at once must not delay others.
        await trio.lowlevel.checkpoint()


def _event_to_wire(event: RingEvent) -> dict[str, Any]:
    return {
        "number": event.number,
        "at": event.at,
        "kind": event.kind,
        "session": event.session or None,
        "facts": dict(event.facts),
    }


async def drain(call: Call, *, timeout_s: float | None = None, cancel: bool = False) -> DrainReport:
    """Drain, and report progress until nothing runs; or accept new work again.

    The drain belongs to the supervisor: it continues if the client cancels or disconnects.
    """
    draining = call.services.draining
    if cancel:
        cancelled = draining.cancel()
        left = len(call.services.run_service.unfinished())
        return DrainReport(
            drained=False, cancelled=cancelled, left=left, interrupted=0, sessions=_sessions(call)
        )
    it = draining.begin(f"by {call.client}", timeout_s=math.inf if timeout_s is None else timeout_s)
    async with trio.open_nursery() as nursery:
        call.on_cancel(nursery.cancel_scope.cancel)
        while it.active:
            change = it.next_change
            await call.emit("progress", dict(it.report()))
            if not it.active:
                break
            with trio.move_on_after(TELL_INTERVAL_S):
                await change.wait()
    report = it.report()
    return DrainReport(
        drained=report["drained"],
        cancelled=it.cancelled,
        left=report["left"],
        interrupted=report["interrupted"],
        sessions=_sessions(call),
    )


def _sessions(call: Call) -> int:
    return len(call.services.run_service.live_sessions())


async def reload(call: Call, *, force: bool = False) -> dict[str, Any]:
    """Try the next program, and become it once the answer is sent.

    Sessions stay, and what runs in them continues. If the next program cannot use some of them,
    this is refused; if the client says `force`, they are ended.
    """
    services = call.services
    if services.ending.how is not None:
        raise ShuttingDownError("The supervisor is ending already.")
    trial = await _try_successor(services)
    if force:
        await _end_unusable(services, trial)
    else:
        _check_all_usable(services, trial)
    log.info("becoming version %s, asked by %s", trial.version, call.client)
    call.afterwards(partial(services.ending.ask, "reload"))
    return {
        "version": trial.version,
        "pid": services.pid,
        "waits_for": services.bridge.under_way(),
        "waits_s": services.configuration.settings.drain.timeout_seconds,
    }


async def reload_once_answered(services: Services, silent: SilentHolders) -> None:
    """Become the next program once a silent holder answers: that one takes over its sessions.

    If the next program does not start, or cannot use what is here, this one goes on, and says so.
    """
    await silent.wait()
    try:
        trial = await _try_successor(services)
        _check_all_usable(services, trial)
    except StartFailedError as error:
        silent.refused = str(error)
        log.error("%s", silent.problem)  # noqa: TRY400 (the message says all)
        return
    log.info("becoming version %s, which takes over sessions of that holder", trial.version)
    services.ending.ask("reload")


async def _try_successor(services: Services) -> SuccessorAnswer:
    """Try the next program."""
    try:
        return await try_successor(services.successor, services.everything_kept)
    except SuccessorError as error:
        raise StartFailedError(
            f"The supervisor goes on as it is, since the installed version does not start: {error}",
            hint="`nsm config` shows mistakes in the configuration; else install it again.",
        ) from error


def _check_all_usable(services: Services, trial: SuccessorAnswer) -> None:
    """Check that the next program can use what is here."""
    lost = _unusable(services, trial)
    if lost:
        told = [f"{each} ({why})" for each, why in list(lost.items())[:MAX_NAMED]]
        if len(lost) > MAX_NAMED:
            told.append(f"{len(lost) - MAX_NAMED} more")
        raise StartFailedError(
            f"The supervisor goes on as it is: the installed version ({trial.version}) cannot take "
            f"over {', '.join(told)}.",
            hint="`nsm reload --force` ends these sessions. Or install a version that can.",
            data={"unusable": list(lost)},
        )


def _unusable(services: Services, trial: SuccessorAnswer) -> Mapping[str, str]:
    """Describe what the next program cannot use and this one can, with the reasons."""
    sessions = {each.id: each for each in services.run_service.live_sessions()}
    lost: dict[str, str] = {}
    for name, why in trial.unreadable.items():
        if services.entries.has_entry(name):
            continue  # nothing changes for these
        session = sessions.get(session_id_of(name)) if name.startswith("session-") else None
        lost[name if session is None else f"session {session.name or session.id}"] = why
    return lost


async def _end_unusable(services: Services, trial: SuccessorAnswer) -> None:
    """End the sessions that the next program cannot use."""
    gone = {session_id_of(name) for name in trial.unreadable if name.startswith("session-")}
    ending = [each for each in services.run_service.live_sessions() if each.id in gone]
    for session in ending:
        session.end(f"version {trial.version} of nsm could not take it over")
    with trio.move_on_after(END_WAIT_S):
        for session in ending:
            await session.wait_ended()


async def config_reload(call: Call) -> dict[str, Any]:
    """Read the configuration again, and apply it."""
    return (await call.services.configuration.reload(call.client)).to_wire()


async def shutdown(call: Call) -> dict[str, Any]:
    """End the supervisor and all sessions."""
    await call.services.save_all()
    call.afterwards(partial(call.services.ending.ask, "end"))
    return {}
