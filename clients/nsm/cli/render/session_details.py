"""History of a session as text for people; pure, as `nsm.cli.render.session_rules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.render import formats
from nsm.cli.render.environments import suggestion
from nsm.cli.render.jobs import own_jobs_table
from nsm.cli.render.ports import ports_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from nsm.wire.inspection import Inspection, ProcessRow, RunRow
    from nsm.wire.network import NetworkDecision

_STARTS = {
    "cold": "in a jail of its own",
    "forked": "as a fork of a template",
    "artifact": "in the jail of its artifact",
    "artifact-forked": "as a fork of a template, in the jail of its artifact",
}

_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a device",
    "T": "stopped",
    "t": "traced",
    "Z": "has ended",
    "I": "idle",
}
"""proc_pid_stat(5)."""

_KEPT_READY_S = 0.1
"""Shortest time between start and use from which a session counts as made in advance."""

_CODE_COLUMNS = 48


def life(found: Inspection) -> list[tuple[str, str]]:
    """Start, state and end of a session, as names and texts for `formats.listing`."""
    row = found.session
    if row.state == "ended":
        since = (
            f"{formats.duration(row.idle_s)} ago, after {formats.duration(row.age_s - row.idle_s)}"
        )
        return [("ended", f"{since}: {found.end_reason or 'nobody knows why'}")]
    lines: list[tuple[str, str]] = []
    if text := _start(found.start or {}):
        lines.append(("start", text))
    lines.append(("age", _age(found)))
    if row.labels:
        told = (f"{name}={value}" for name, value in sorted(row.labels.items()))
        lines.append(("labels", formats.visible(" ".join(told))))
    if row.state == "running":
        lines.append(("running", f"for {formats.duration(row.running_s or 0)}"))
    if row.queued:
        lines.append(("waiting", formats.count(row.queued, "execution")))
    lines += [("slow import", suggestion(row.env, slow)) for slow in found.slow_imports]
    if row.taken_up:
        lines.append(
            ("taken up", f"by a new supervisor {formats.count(row.taken_up, 'time')}, as it was")
        )
    if row.outdated:
        lines.append(
            (
                "outdated",
                "its interpreter, libraries or modules have changed on disk; new sessions use them",
            )
        )
    if found.end_reason:
        lines.append(("ending", found.end_reason))
    return lines


def _start(start: Mapping[str, Any]) -> str:
    how = _STARTS.get(str(start.get("kind")), "")
    took_s, spare_s = _number(start, "start_s"), _number(start, "spare_s")
    parts: list[str] = [how] if how else []
    if took_s is not None:
        parts.append(f"in {formats.milliseconds(took_s)}")
    text = " ".join(parts)
    if spare_s is not None and spare_s >= _KEPT_READY_S:
        text += f"; was kept ready for {formats.duration(spare_s)}"
    if why := start.get("why_cold"):
        text += f"; no fork: {why}"
    return text


def _age(found: Inspection) -> str:
    row, lifetime = found.session, found.lifetime or {}
    text = formats.duration(row.age_s)
    most_s, idle_s = _number(lifetime, "max_lifetime_s"), _number(lifetime, "idle_timeout_s")
    if most_s is not None:
        text += f" of at most {formats.duration(most_s)}"
    if row.state == "idle":
        text += f"; idle for {formats.duration(row.idle_s)}"
        if idle_s is not None:
            text += f", ends after {formats.duration(idle_s)}"
    elif idle_s is not None:
        text += f"; ends when it is idle for {formats.duration(idle_s)}"
    return text


def tables(found: Inspection) -> list[str]:
    """Its ports, processes, last executions and jobs, and its network's decisions; those that
    there are."""
    texts: list[str] = []
    if found.ports:
        texts.append(ports_table(found.ports))
    if found.processes:
        texts.append(_processes(found.processes, found.session.processes))
    if found.executions:
        texts.append(_executions(found.executions))
    if found.jobs:
        texts.append(own_jobs_table(found.jobs))
    if found.decisions:
        texts.append(_decisions(found.decisions))
    return texts


def _processes(rows: Sequence[ProcessRow], number: int | None) -> str:
    text = formats.table(
        "PID INSIDE PROCESS STATE MEMORY CPU THREADS COMMAND".split(),
        (
            (
                str(row.pid),
                str(row.inside),
                row.name,
                _STATES.get(row.state, row.state),
                formats.memory(row.memory_bytes),
                formats.processor_time(row.cpu_s),
                str(row.threads),
                row.command or "-",
            )
            for row in rows
        ),
        right="PID INSIDE MEMORY CPU THREADS",
    )
    more = (number or 0) - len(rows)
    return text if more <= 0 else f"{text}\nand {more} more"


def _executions(rows: Sequence[RunRow]) -> str:
    text = formats.table(
        "RUN BEGAN BY TOOK OUTCOME CODE".split(),
        (
            (
                str(row.number),
                formats.date(row.started_at),
                row.client,
                "-" if row.duration_s is None else f"{row.duration_s:.2f} s",
                _outcome(row),
                _code(row),
            )
            for row in rows
        ),
        right="RUN TOOK",
    )
    earlier = rows[0].number - 1
    if earlier <= 0:
        return text
    return f"{text}\nand {formats.count(earlier, 'earlier execution')}: see `nsm logs`"


def _outcome(row: RunRow) -> str:
    text = row.outcome
    if row.outcome == "error" and row.exit_code is not None:
        text += f" {row.exit_code}"
    return f"{text}: {row.why.splitlines()[0]}" if row.why else text


def _code(row: RunRow) -> str:
    lines = row.code.strip().splitlines() or [""]
    first = formats.visible(lines[0].strip())
    whole = len(lines) == 1 and not row.code_omitted and len(first) <= _CODE_COLUMNS
    return first if whole else first[: _CODE_COLUMNS - 4] + " ..."


def _decisions(rows: Sequence[NetworkDecision]) -> str:
    return formats.table(
        "AGO HOST VERDICT WHY".split(),
        (
            (
                formats.duration(row.age_s),
                f"{row.host}:{row.port}" if row.host else "-",
                row.verdict,
                row.detail or "-",
            )
            for row in rows
        ),
        right="AGO",
    )


def _number(wire: Mapping[str, Any], key: str) -> float | None:
    value = wire.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
