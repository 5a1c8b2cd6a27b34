"""The supervisor as text, for `nsm status`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.render.formats import (
    below_home,
    columns,
    count,
    duration,
    memory,
    milliseconds,
    table,
    visible,
)

if TYPE_CHECKING:
    from nsm.wire.pool import PoolKind, PoolReport
    from nsm.wire.status import Status


def pool_table(report: PoolReport, home: str, width: int | None = None) -> str:
    """The table of `nsm status pool` and a line of totals."""
    totals, memory_ = report.totals, report.memory
    pressure = memory_.pressure_percent
    taken = f"{memory(memory_.spares_bytes)} taken of {memory(memory_.budget_bytes)} for spares"
    spares = f"{totals.ready} ready, {totals.starting} starting, {totals.wanted} wanted"
    calls = f"{count(totals.hits, 'hit')}, {totals.misses} missed"
    strained = "-" if pressure is None else f"{pressure:.1f} %"
    available = f"{memory(memory_.available_bytes)} available, pressure {strained}"
    lines = [f"{spares}; {calls}", f"memory: {taken}; {available}"]
    if report.kinds:
        rows = table(
            "ENV PROJECT READY STARTING WANTED HITS MISSES REFILL P95 RATE IDLE MEMORY WHY".split(),
            ([*_pool_cells(kind, home), kind.why] for kind in report.kinds),
            right="READY STARTING WANTED HITS MISSES REFILL P95 RATE IDLE MEMORY",
            width=width,
            least="P95 IDLE RATE STARTING MEMORY MISSES REFILL",
        )
        lines = [rows, "", *lines]
    if width is not None:
        lines = [part for line in lines for part in _halves(line, width)]
    return "\n".join(lines)


def _halves(line: str, width: int) -> list[str]:
    """A line, in two where it is too long: what follows a semicolon is on one of its own."""
    return line.split("; ", 1) if "\n" not in line and columns(line) > width else [line]


def _pool_cells(kind: PoolKind, home: str) -> list[str]:
    return [
        kind.env,
        "-" if kind.project is None else below_home(kind.project, home),
        str(kind.ready),
        str(kind.starting),
        str(kind.wanted),
        str(kind.hits),
        str(kind.misses),
        milliseconds(kind.refill_p50_s),
        milliseconds(kind.refill_p95_s),
        f"{kind.calls_per_s * 60:.1f}/min",
        duration(kind.idle_s),
        memory(kind.memory_bytes),
    ]


_SURVIVAL = {
    "systemd": "sessions outlive the supervisor, kept by systemd",
    "keeper": "sessions outlive the supervisor for 10 minutes, kept by a small process",
    "none": "sessions end with the supervisor",
}


def status_lines(answer: Status) -> str:
    """The lines of `nsm status`."""
    jail, limits, survival = answer.jail, answer.limits, answer.survival
    audit, bridge, http = answer.audit, answer.bridge, answer.http
    uid = "" if jail.uid is None else f" as user {jail.uid}"
    lines = [
        ("supervisor", f"{answer.version}, process {answer.pid}, up {duration(answer.uptime_s)}"),
        ("socket", answer.socket),
        ("sessions", str(answer.sessions)),
        ("clients", str(answer.clients)),
        ("jails", f"{jail.kind}{uid}"),
    ]
    if jail.note:
        lines.append(("", jail.note))
    if answer.draining:
        lines.append(("draining", f"{answer.draining}: nothing new is taken"))
    kept = f"memory by {limits.memory}, processes by {limits.processes}, cpu by {limits.cpu}"
    lines.append(("limits", kept))
    if limits.why:
        lines.append(("", limits.why))
    lines.append(("survival", _SURVIVAL.get(survival.kind, survival.kind)))
    lines += [("", each) for each in (survival.problem, survival.unread) if each]
    lines.append(("audit", audit.path if audit.enabled else "off"))
    if audit.dropped:
        now = f", and is losing more: {audit.problem}" if audit.problem else ""
        lines.append(("", f"has lost {audit.dropped} lines{now}"))
    if bridge.enabled:
        lines.append(("bridge", f"programs: {bridge.programs}; calls under way: {bridge.running}"))
        if bridge.wrong:
            lines.append(("", f"files that describe none: {bridge.wrong}; see `nsm bridge check`"))
        if bridge.problem:
            lines.append(("", f"nothing is started: {bridge.audit}: {bridge.problem}"))
    if http.enabled:
        count = f"connections: {http.connections} of {http.max_connections}"
        token = "" if http.token else "; no token"
        lines.append(("http", f"{http.url}; {count}{token}" if http.url else "not served"))
        if http.problem:
            lines.append(("", http.problem))
    if answer.ports.open or answer.ports.unopened:
        lines.append(("ports", f"open: {answer.ports.open}"))
    if answer.ports.unopened:
        lines.append(("", f"not opened: {answer.ports.unopened}; `nsm port` says why"))
    return "\n".join(f"{name:<12}{visible(text)}" for name, text in lines)
