"""Sessions as tables, for `nsm ps` and `nsm kill`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.render.formats import below_home, duration, memory, processor_time, table, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsm.wire.live import KilledSession, SessionRow
    from nsm.wire.transcripts import EndedRow


def sessions_table(
    rows: Sequence[SessionRow],
    home: str,
    width: int | None = None,
    hosts: Sequence[str] | None = None,
) -> str:
    """The table of `nsm ps`. Paths below `home` are shown with ``~``.

    Args:
        hosts: the host of each row; None for no such column.
    """
    if not rows:
        return "No sessions."
    with_ports = any(row.ports for row in rows)
    with_gpus = any(row.gpu_memory_bytes is not None for row in rows)
    places = [(host,) for host in hosts] if hosts is not None else [()] * len(rows)
    return table(
        ["HOST"] * (hosts is not None)
        + "ID NAME ENV CLIENT PROJECT STATE AGE IDLE RUNS MEMORY CPU LIMITS".split()
        + ["GPU"] * with_gpus
        + ["PORTS"] * with_ports,
        (
            (
                *place,
                row.id,
                row.name or "-",
                row.env,
                row.client,
                "-" if row.project is None else below_home(row.project, home),
                f"{row.state}, old" if row.outdated else row.state,
                duration(row.age_s),
                duration(row.idle_s),
                str(row.executions),
                memory(row.memory_bytes),
                processor_time(row.cpu_s),
                row.limited_by or "-",
                *([memory(row.gpu_memory_bytes)] if with_gpus else []),
                *([_ports(row)] if with_ports else []),
            )
            for place, row in zip(places, rows, strict=True)
        ),
        right="AGE IDLE RUNS MEMORY CPU GPU",
        width=width,
        least="LIMITS CLIENT CPU AGE RUNS MEMORY",
    )


def _ports(row: SessionRow) -> str:
    return ", ".join(f"{port.address}->{port.port}" for port in row.ports) or "-"


def ended_table(rows: Sequence[EndedRow], width: int | None = None) -> str:
    """The table of those that have ended, in `nsm ps --all`."""
    return table(
        "ID NAME ENV CLIENT LIVED ENDED RUNS REASON".split(),
        (
            (
                row.id,
                row.name or "-",
                row.env,
                row.client,
                duration(row.lived_s),
                f"{duration(row.ended_s)} ago",
                str(row.executions),
                row.reason,
            )
            for row in rows
        ),
        right="LIVED ENDED RUNS",
        width=width,
        least="CLIENT LIVED RUNS",
    )


def killed_lines(rows: Sequence[KilledSession]) -> str:
    """List the ended sessions, a line each."""
    return "\n".join(
        visible(
            f"ended {row.id}"
            + ("" if row.name is None else f" ({row.name})")
            + (f", a fork of {row.fork_of}" if row.fork_of else "")
        )
        for row in rows
    )
