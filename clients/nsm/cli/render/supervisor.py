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
    short_time,
    table,
    visible,
)

if TYPE_CHECKING:
    from nsm.wire.status import Status
    from nsm.wire.telemetry import EnvironmentStats, PoolKind, PoolReport, StartStats, Stats, Times

_OUTCOMES = ("ok", "error", "timeout", "interrupted", "lost")


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
    lines.append(("restart", _SURVIVAL.get(survival.kind, survival.kind)))
    lines += [("", each) for each in (survival.problem, survival.unread) if each]
    lines.append(("audit", audit.path if audit.enabled else "off"))
    if audit.dropped:
        now = f", and is losing more: {audit.problem}" if audit.problem else ""
        lines.append(("", f"has lost {audit.dropped} lines{now}"))
    if bridge.enabled:
        lines.append(("bridge", f"programs: {bridge.programs}; calls under way: {bridge.running}"))
        if bridge.wrong:
            lines.append(("", f"files with mistakes: {bridge.wrong}; see `nsm bridge check`"))
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


def times_tables(stats: Stats, width: int | None = None) -> str:
    """The tables of `nsm status times`."""
    paragraphs: list[str] = []
    if stats.environments:
        paragraphs.append(
            table(
                "ENV RUNS OK ERROR TIMEOUT INTERRUPTED LOST P50 P90 P99 MAX WAIT P99".split(),
                map(_environment_cells, stats.environments),
                right="RUNS OK ERROR TIMEOUT INTERRUPTED LOST P50 P90 P99 MAX WAIT",
                width=width,
                least="OK P90 INTERRUPTED LOST",
            )
        )
    if stats.starts:
        paragraphs.append(
            table(
                "ENV START COUNT P50 P90 P99 MAX".split(),
                map(_start_cells, stats.starts),
                right="COUNT P50 P90 P99 MAX",
                width=width,
                least="P90",
            )
        )
    hits = f"{count(stats.pool_hits, 'hit')}, {stats.pool_misses} missed"
    loop = stats.event_loop
    paragraphs.append(
        f"since {duration(stats.uptime_s)}; pool: {hits}; "
        f"event loop busy at a time: P99 {short_time(loop.p99_s)}, at most {short_time(loop.max_s)}"
    )
    if width is not None and len(paragraphs[-1]) > width:
        paragraphs[-1] = paragraphs[-1].replace("; event", ";\nevent")
    return "\n\n".join(paragraphs)


def _environment_cells(row: EnvironmentStats) -> list[str]:
    counts = (str(row.outcomes.get(outcome, 0)) for outcome in _OUTCOMES)
    waits = [short_time(row.wait.p50_s), short_time(row.wait.p99_s)]
    return [row.env, str(row.latency.total), *counts, *_time_cells(row.latency), *waits]


def _start_cells(row: StartStats) -> list[str]:
    return [row.env, row.kind, str(row.times.total), *_time_cells(row.times)]


def _time_cells(times: Times) -> list[str]:
    return [
        short_time(times.p50_s),
        short_time(times.p90_s),
        short_time(times.p99_s),
        short_time(times.max_s),
    ]
