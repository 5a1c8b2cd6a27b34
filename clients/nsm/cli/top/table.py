"""The sessions as `nsm top` has them: changes between two looks, their order, the table. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsm.cli.render import formats
from nsm.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsm.wire.host import BoxRow
    from nsm.wire.sessions import SessionRow

SHORTEST_S = 0.5
"""Processor time is counted in hundredths of a second: over less than this, its share jumps."""


class Line(NamedTuple):
    """One session as the table shows it, with the machine that has it if several are looked at.

    The share of one processor, and executions begun a second, are since the last look; None if
    there is nothing to compare."""

    row: SessionRow
    cpu_percent: float | None
    runs_per_s: float | None
    host: str = ""

    @property
    def label(self) -> str:
        """Label: a one-shot has no name."""
        return self.row.name or self.row.id

    @property
    def since_s(self) -> float:
        """Seconds in the present state, roughly."""
        row = self.row
        if row.state == "running":
            return row.running_s or 0.0
        return row.idle_s if row.state == "idle" else row.age_s


class Totals(NamedTuple):
    """Totals of all sessions; shares and rates as in `Line`, of those that have one."""

    sessions: int
    running: int
    processes: int
    memory_bytes: int
    cpu_percent: float
    runs_per_s: float


class _Point(NamedTuple):
    at_s: float
    cpu_s: float | None
    executions: int


class Rates:
    """Compares each look with an earlier one."""

    def __init__(self) -> None:
        self._before: dict[str, _Point] = {}

    def take(self, rows: Iterable[SessionRow], at_s: float) -> list[Line]:
        """A line for each row. The rows were true then, on any clock that only goes forward."""
        before, self._before = self._before, {}
        lines: list[Line] = []
        for row in rows:
            now, last = _Point(at_s, row.cpu_s, row.executions), before.get(row.id)
            if last is None:
                self._before[row.id] = now
                lines.append(Line(row, None, None))
                continue
            passed_s = at_s - last.at_s
            self._before[row.id] = last if passed_s < SHORTEST_S else now
            if passed_s <= 0:
                lines.append(Line(row, None, None))
                continue
            cpu = None
            if row.cpu_s is not None and last.cpu_s is not None:
                # A process that ends takes along what its parent does not ask for.
                cpu = max(0.0, row.cpu_s - last.cpu_s) / passed_s * 100
            lines.append(Line(row, cpu, max(0, row.executions - last.executions) / passed_s))
        return lines


def totals(lines: Sequence[Line]) -> Totals:
    """Sum these lines."""
    return Totals(
        sessions=len(lines),
        running=sum(line.row.state == "running" for line in lines),
        processes=sum(line.row.processes or 0 for line in lines),
        memory_bytes=sum(line.row.memory_bytes or 0 for line in lines),
        cpu_percent=sum(line.cpu_percent or 0.0 for line in lines),
        runs_per_s=sum(line.runs_per_s or 0.0 for line in lines),
    )


_Key = tuple[bool, float, str]

_BY_NUMBER: dict[str, Callable[[Line], float | None]] = {
    "cpu": lambda line: line.cpu_percent,
    "memory": lambda line: line.row.memory_bytes,
    "processes": lambda line: line.row.processes,
    "gpu": lambda line: line.row.gpu_percent,
    "gpu-memory": lambda line: line.row.gpu_memory_bytes,
    "rate": lambda line: line.runs_per_s,
    "runs": lambda line: line.row.executions,
    "time": lambda line: line.row.cpu_s,
    "idle": lambda line: line.row.idle_s,
    "age": lambda line: line.row.age_s,
}
"""The largest first, what is not known last."""

_BY_TEXT: dict[str, Callable[[Line], str]] = {
    "name": lambda line: line.label,
    "env": lambda line: line.row.env,
    "client": lambda line: line.row.client,
    "state": lambda line: line.row.state,
}

ORDERS = (*_BY_NUMBER, *_BY_TEXT)
"""Names of the columns to sort by."""


def ordered(lines: Iterable[Line], by: str, *, reverse: bool = False) -> list[Line]:
    """Sorted by one of `ORDERS`, equal ones by name; what is not known is last, reversed or not."""
    number, text = _BY_NUMBER.get(by), _BY_TEXT.get(by)

    def key(line: Line) -> _Key:
        if number is None:
            return (False, 0.0, text(line) if text is not None else "")
        value = number(line)
        return (value is None, 0.0 if value is None else value if reverse else -value, "")

    by_name = sorted(lines, key=lambda line: (line.label, line.row.id))
    if number is None and reverse:
        by_name.reverse()
        return sorted(by_name, key=key, reverse=True)
    return sorted(by_name, key=key)


def matching(lines: Iterable[Line], wanted: str) -> list[Line]:
    """Lines that contain a text in id, name, environment, client, scope, project or state."""
    if not wanted:
        return list(lines)
    wanted = wanted.casefold()

    def occurs(row: SessionRow) -> bool:
        texts = (row.id, row.name, row.env, row.client, row.scope, row.project, row.state)
        return any(wanted in text.casefold() for text in texts if text)

    return [line for line in lines if occurs(line.row)]


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `order` is the name to sort by, empty if that makes no sense."""

    title: str
    order: str
    cell: Callable[[Line], str]


def number(value: float | None) -> str:
    """A share or a rate: ``0.4``, ``12``."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"  # four columns


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


COLUMNS = (
    Column("NAME", "name", lambda line: line.label),
    Column("ENV", "env", lambda line: line.row.env),
    Column("CLIENT", "client", lambda line: line.row.client),
    Column("STATE", "state", lambda line: line.row.state),
    Column("FOR", "idle", lambda line: formats.duration(line.since_s)),
    Column("CPU%", "cpu", lambda line: number(line.cpu_percent)),
    Column("MEMORY", "memory", lambda line: formats.memory(line.row.memory_bytes)),
    Column("GPU%", "gpu", lambda line: number(line.row.gpu_percent)),
    Column("GPU", "gpu-memory", lambda line: formats.memory(line.row.gpu_memory_bytes)),
    Column("PROCS", "processes", lambda line: _count(line.row.processes)),
    Column("RUNS/S", "rate", lambda line: number(line.runs_per_s)),
    Column("RUNS", "runs", lambda line: str(line.row.executions)),
    Column("CPU", "time", lambda line: formats.processor_time(line.row.cpu_s)),
    Column("AGE", "age", lambda line: formats.duration(line.row.age_s)),
    Column("ID", "", lambda line: line.row.id),
)

_RIGHT = "FOR CPU% MEMORY GPU% GPU PROCS RUNS/S RUNS CPU AGE"
_LEAST = "ID AGE CPU RUNS PROCS CLIENT RUNS/S ENV FOR MEMORY GPU STATE GPU%"
"""Columns as for `formats.table`."""


def table(lines: Sequence[Line], width: int | None = None) -> tuple[str, list[str]]:
    """The header and a text for each line, which fit a terminal of that width.

    There are no columns of GPUs where no session has one, and none of hosts where there is one.
    """
    has_gpus = any(line.row.gpu_memory_bytes is not None for line in lines)
    shown = [Column("HOST", "", lambda line: line.host)] if any(line.host for line in lines) else []
    shown += [column for column in COLUMNS if has_gpus or not column.order.startswith("gpu")]
    header, *texts = formats.table(
        [column.title for column in shown],
        ([column.cell(line) for column in shown] for line in lines),
        _RIGHT,
        width=width,
        least=_LEAST,
    ).split("\n")
    return header, texts


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
