"""Differences between two looks at the sessions: processor shares and rates. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsm.wire.sessions import SessionRow

SHORTEST_S = 0.5
"""Processor time is counted in hundredths of a second: over less than this, its share jumps."""


class Line(NamedTuple):
    """One session as the table shows it.

    Attributes:
        cpu_percent: share of one processor since the last refresh; None if there is nothing to
            compare.
        runs_per_s: executions begun since the last look, a second; likewise.
        host: machine that has it, if several are looked at.
    """

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
        """A line for each row.

        Args:
            at_s: when the rows were true, on any clock that only goes forward.
        """
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
    """Sorted; equal ones by name.

    Args:
        by: one of `ORDERS`.
        reverse: the other way round, what is not known still last.
    """
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
