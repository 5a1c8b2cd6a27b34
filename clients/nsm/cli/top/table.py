"""The table of `nsm top` as text that fits a terminal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.render import formats
from nsm.cli.top.figures import totals
from nsm.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsm.cli.top.figures import Line
    from nsm.wire.host import BoxRow

GAP = "  "
CUT = "+"
"""Stands where a text was too wide, as in top(1)."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        order: name to sort by; empty if that makes no sense.
        rank: those of the highest go first where the terminal is narrow.
        widest: cells wider than that are cut.
        right: aligned to the right.
    """

    title: str
    order: str
    rank: int
    widest: int
    right: bool
    cell: Callable[[Line], str]


def number(value: float | None) -> str:
    """A share or a rate: ``0.4``, ``12``."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"  # four columns


HOST = Column("HOST", "", 0, 20, False, lambda line: line.host)
"""Another one in front, if several machines are looked at."""

COLUMNS = (
    Column("NAME", "name", 0, 28, False, lambda line: line.label),
    Column("ENV", "env", 5, 16, False, lambda line: line.row.env),
    Column("CLIENT", "client", 7, 20, False, lambda line: line.row.client),
    Column("STATE", "state", 1, 8, False, lambda line: line.row.state),
    Column("FOR", "idle", 4, 8, True, lambda line: formats.duration(line.since_s)),
    Column("CPU%", "cpu", 2, 6, True, lambda line: number(line.cpu_percent)),
    Column("MEMORY", "memory", 3, 12, True, lambda line: formats.memory(line.row.memory_bytes)),
    Column("GPU%", "gpu", 2, 6, True, lambda line: number(line.row.gpu_percent)),
    Column(
        "GPU", "gpu-memory", 3, 12, True, lambda line: formats.memory(line.row.gpu_memory_bytes)
    ),
    Column("PROCS", "processes", 8, 5, True, lambda line: _count(line.row.processes)),
    Column("RUNS/S", "rate", 6, 6, True, lambda line: number(line.runs_per_s)),
    Column("RUNS", "runs", 9, 9, True, lambda line: str(line.row.executions)),
    Column("CPU", "time", 10, 8, True, lambda line: formats.processor_time(line.row.cpu_s)),
    Column("AGE", "age", 11, 8, True, lambda line: formats.duration(line.row.age_s)),
    Column("ID", "", 12, 12, False, lambda line: line.row.id),
)


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def cut(text: str, width: int) -> str:
    """The text as far as so many columns hold it."""
    if formats.columns(text) <= width:
        return text
    while text and formats.columns(text) >= width:
        text = text[:-1]
    return text + CUT if width > 0 else ""


def aligned(text: str, width: int, *, right: bool) -> str:
    """The text cut or padded to so many columns."""
    text = cut(text, width)
    space = " " * (width - formats.columns(text))
    return space + text if right else text + space


def table(lines: Sequence[Line], width: int) -> tuple[str, list[str]]:
    """The header and a text for each line, each at most `width` columns wide.

    Columns that do not fit are left out, those that say least first, and those of GPUs where no
    session has one.
    """
    has_gpus = any(line.row.gpu_memory_bytes is not None for line in lines)
    shown = [HOST] if any(line.host for line in lines) else []
    shown += [column for column in COLUMNS if has_gpus or not column.order.startswith("gpu")]
    cells = {
        column.title: [cut(formats.visible(column.cell(line)), column.widest) for line in lines]
        for column in shown
    }
    widths = {
        column.title: max([len(column.title), *map(formats.columns, cells[column.title])])
        for column in shown
    }
    while len(shown) > 1 and _total(shown, widths) > width:
        shown.remove(max(shown, key=lambda column: column.rank))

    def joined(texts: Sequence[str]) -> str:
        parts = [
            aligned(text, widths[column.title], right=column.right)
            for column, text in zip(shown, texts, strict=True)
        ]
        return cut(GAP.join(parts).rstrip(), width)

    header = joined([column.title for column in shown])
    return header, [
        joined([cells[column.title][number_] for column in shown]) for number_ in range(len(lines))
    ]


def _total(columns: Sequence[Column], widths: dict[str, int]) -> int:
    return sum(widths[column.title] for column in columns) + len(GAP) * (len(columns) - 1)


def box_line(row: BoxRow) -> str:
    """One box in one line: what it uses of its limits."""
    parts = [f"box {row.id} ({formats.visible(row.profile)}, {formats.visible(row.directory)})"]
    if row.limits is not None:
        parts += [
            f"processes {formats.of_limit(row.limits.processes, row.limits.process_limit)}",
            "memory "
            + formats.memory_of_limit(row.limits.memory_bytes, row.limits.memory_limit_bytes)
            + f" ({row.limits.memory_by})",
        ]
        if row.limits.killed:
            parts.append(f"{row.limits.killed} ended for memory")
    return ", ".join(parts)


def summary(lines: Sequence[Line]) -> str:
    """All sessions in one line."""
    total = totals(lines)
    return ", ".join(
        [
            f"{formats.count(total.sessions, 'session')} ({total.running} running)",
            f"{number(total.cpu_percent)} % CPU",
            formats.memory(total.memory_bytes),
            f"{total.processes} processes",
            f"{number(total.runs_per_s)} runs/s",
        ]
    )
