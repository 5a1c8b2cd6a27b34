"""Screen of `nsm top`, and its keys. Pure: keys in, actions and lines of text out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nsm.cli.render import formats
from nsm.dataclass import dataclass
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

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


Style = Literal["plain", "title", "header", "running", "selected", "problem", "keys"]

Deed = Literal["leave", "refresh", "redraw", "suspend", "kill", "interrupt"]
Visit = Literal["attach", "logs", "inspect"]

KEYS = "q quit  <> sort  / filter  k kill  i interrupt  a attach  l logs  Enter all  ? help"

HELP = (
    "Up, Down, PgUp, PgDn, End         choose a session; the choice follows it",
    "Home                              choose the first one, whichever that is",
    "< and >                           sort by another column; also P (CPU), M (memory),",
    "                                  R (runs a second), N (name)",
    "r                                 the other way round",
    "/                                 show only what has a text in it; Enter keeps it, Esc clears",
    "k                                 end the session, after a question",
    "i                                 interrupt what runs in it",
    "a                                 join it with `nsm attach`; Ctrl-D comes back here",
    "l                                 read along with `nsm logs -f`; Ctrl-C comes back here",
    "Enter                             all that is known of it, with `nsm inspect`",
    "Space                             look again now",
    "q                                 leave; sessions go on",
)

_FIRST_KEYS = {"P": "cpu", "M": "memory", "R": "rate", "N": "name"}
_VISITS: dict[str, Visit] = {"a": "attach", "l": "logs", "enter": "inspect"}

_LEAST_HEIGHT = 8
"""Below that many lines, what stands above the header is left out."""

_MOST_BOXES, _LEAST_HEIGHT_FOR_BOXES = 3, 16
"""Boxes that are shown, and the number of lines below which none is."""


class Action(NamedTuple):
    """Action that a key asks for beyond the board; `session` is an id, or empty."""

    deed: Deed | Visit
    session: str = ""


class BoardLine(NamedTuple):
    """One line on the screen."""

    style: Style
    text: str


class Board:
    """Screen of `nsm top` as a value.

    Attributes:
        heading: the supervisor, in words.
        away: why there is none at this moment; empty while there is.
        message: result of the last action; shown until the next key.
        order, reverse: how lines are sorted; `wanted`: the text that they are chosen by.
        selected: id of the session that actions mean; empty where there is none.
    """

    def __init__(self, order: str = "cpu", wanted: str = "", *, reverse: bool = False) -> None:
        self.heading = ""
        self.away = ""
        self.message = ""
        self.order, self.reverse, self.wanted = order, reverse, wanted
        self.selected = ""
        self._mode: Literal["table", "filter", "kill", "help"] = "table"
        self._rates: dict[str, Rates] = {}
        self._all: list[Line] = []
        self._lines: list[Line] = []
        self._drawn: tuple[int, str, list[str]] | None = None
        self._boxes: Sequence[BoxRow] = ()
        self._first = 0
        self._page = 1
        self._by_hand = False  # else the first line is chosen, whichever that is

    def __repr__(self) -> str:
        return f"<Board {len(self._lines)} of {len(self._all)} sessions, {self._mode}>"

    def take(self, rows: Iterable[SessionRow], at_s: float, boxes: Sequence[BoxRow] = ()) -> None:
        """The sessions and boxes as they are now; `at_s` as for `Rates`."""
        self.take_of_hosts({"": rows}, at_s, boxes)

    def take_of_hosts(
        self,
        rows: Mapping[str, Iterable[SessionRow]],
        at_s: float,
        boxes: Sequence[BoxRow] = (),
    ) -> None:
        """The same, by host."""
        self._boxes = boxes
        self.away = ""
        self._all = [
            line._replace(host=host)
            for host, found in rows.items()
            for line in self._rates.setdefault(host, Rates()).take(found, at_s)
        ]
        self._arrange()

    def host_of(self, session: str) -> str:
        """Return the host of a session that is shown."""
        return next((line.host for line in self._all if line.row.id == session), "")

    def press(self, key: str) -> Action | None:
        """A key was pressed: a character, or one of ``up down pageup pagedown home end enter escape
        backspace c-c c-z c-l``. Returns the action to carry out; None to only draw."""
        self.message = ""
        if key == "c-c":
            return Action("leave")
        if key == "c-z":
            return Action("suspend")
        match self._mode:
            case "filter":
                self._type(key)
                return None
            case "kill":
                self._mode = "table"
                wanted = key in ("y", "Y") and self._chosen() is not None
                return Action("kill", self.selected) if wanted else None
            case "help":
                self._mode = "table"
                return None
            case "table":
                return self._command(key)

    def paste(self, text: str) -> None:
        """Several characters came at once."""
        if self._mode == "filter":
            self._filter(self.wanted + "".join(filter(str.isprintable, text)))

    def _command(self, key: str) -> Action | None:
        if self._moved(key):
            return None  # the table is as it was, which takes a while to make of a thousand rows
        if key in ("q", "Q"):
            return Action("leave")
        if key == " ":
            return Action("refresh")
        if key == "c-l":
            return Action("redraw")
        if key in ("<", ">"):
            step = 1 if key == ">" else -1
            self.order = ORDERS[(ORDERS.index(self.order) + step) % len(ORDERS)]
        elif key in _FIRST_KEYS:
            self.order, self.reverse = _FIRST_KEYS[key], False
        elif key == "r":
            self.reverse = not self.reverse
        elif key in ("/", "f"):
            self._mode = "filter"
        elif key == "escape":
            self.wanted = ""
        elif key in ("?", "h"):
            self._mode = "help"
        elif key in ("k", "i") or key in _VISITS:
            return self._about_one(key)
        self._arrange()
        return None

    def _about_one(self, key: str) -> Action | None:
        if self._chosen() is None:
            self.message = "There is no session to do that to."
            return None
        self._by_hand = True
        if key == "k":
            self._mode = "kill"
            return None
        return Action("interrupt" if key == "i" else _VISITS[key], self.selected)

    def _type(self, key: str) -> None:
        match key:
            case "enter":
                self._mode = "table"
            case "escape":
                self._mode = "table"
                self._filter("")
            case "backspace":
                self._filter(self.wanted[:-1])
            case _ if len(key) == 1 and key.isprintable():
                self._filter(self.wanted + key)
            case _:
                pass

    def _filter(self, wanted: str) -> None:
        self.wanted = wanted
        self._arrange()

    def _moved(self, key: str) -> bool:
        steps = {
            "up": -1,
            "down": 1,
            "pageup": -self._page,
            "pagedown": self._page,
            "home": -len(self._lines),
            "end": len(self._lines),
        }
        if key in steps and self._lines:
            place = min(max(0, self._place() + steps[key]), len(self._lines) - 1)
            self.selected = self._lines[place].row.id
            self._by_hand = key != "home"
        return key in steps

    def _place(self) -> int:
        """Find the chosen session's row in the table."""
        ids = [line.row.id for line in self._lines]
        return ids.index(self.selected) if self.selected in ids else 0

    def _chosen(self) -> Line | None:
        return next((line for line in self._lines if line.row.id == self.selected), None)

    def label_of(self, session: str) -> str:
        """Return the label of a session that is or was shown."""
        found = next((line.label for line in self._all if line.row.id == session), session)
        return formats.visible(found)

    def _arrange(self) -> None:
        place = self._place()
        self._lines = ordered(matching(self._all, self.wanted), self.order, reverse=self.reverse)
        self._drawn = None
        ended = self._chosen() is None
        if ended or not self._by_hand:
            at = min(place, len(self._lines) - 1) if self._by_hand else 0
            self.selected = self._lines[at].row.id if self._lines else ""
            if ended and self._mode == "kill":
                self._mode = "table"
                self.message = "That session has ended meanwhile."

    # What is shown.

    def frame(self, columns: int, rows: int) -> list[BoardLine]:
        """The screen's lines, at most `rows` of at most `columns` columns."""
        above = [*self._above(rows), BoardLine("plain", "")] if rows >= _LEAST_HEIGHT else []
        body = self._body(columns, max(1, rows - len(above) - 2))
        lines = [*above, *body]
        lines += [BoardLine("plain", "")] * (rows - 1 - len(lines))
        lines = [*lines[: max(0, rows - 1)], self._below()]
        return [BoardLine(line.style, formats.shortened(line.text, columns)) for line in lines]

    def _above(self, rows: int) -> list[BoardLine]:
        boxes = self._boxes[:_MOST_BOXES] if rows >= _LEAST_HEIGHT_FOR_BOXES else ()
        heading = BoardLine("problem", self.away) if self.away else BoardLine("title", self.heading)
        chosen = f"sorted by {self.order}{', reversed' if self.reverse else ''}"
        if self.wanted and self._mode != "filter":
            having = f"{len(self._lines)} of {len(self._all)} having {self.wanted!r}"
            chosen += f"; {formats.visible(having)}"
        about = [summary(self._all), *map(box_line, boxes), chosen]
        return [heading, *(BoardLine("plain", text) for text in about)]

    def _body(self, columns: int, height: int) -> list[BoardLine]:
        if self._mode == "help":
            return [BoardLine("header", "keys"), *(BoardLine("plain", line) for line in HELP)][
                : height + 1
            ]
        if self._drawn is None or self._drawn[0] != columns:
            self._drawn = (columns, *table(self._lines, columns))
        _, header, texts = self._drawn
        self._page, place = height, self._place()
        last_first = max(0, len(texts) - height)
        self._first = min(max(self._first, place - height + 1), place, last_first)
        shown = [BoardLine("header", header)]
        for at in range(self._first, min(self._first + height, len(texts))):
            line = self._lines[at]
            style: Style = "running" if line.row.state == "running" else "plain"
            shown.append(BoardLine("selected" if at == place else style, texts[at]))
        if not texts:
            shown.append(BoardLine("plain", "Nothing to show." if self._all else "No sessions."))
        return shown

    def _below(self) -> BoardLine:
        if self._mode == "filter":
            return BoardLine("plain", f"having: {formats.visible(self.wanted)}_")
        if self._mode == "kill":
            label = self.label_of(self.selected)
            return BoardLine("problem", f"End session {label} with all that runs in it? y/N")
        if self.message:
            return BoardLine("plain", self.message)
        return BoardLine("keys", KEYS)


def plain(lines: Sequence[Line], above: str, boxes: Sequence[BoxRow] = ()) -> str:
    """The same without a terminal: all lines, no keys."""
    header, texts = table(lines)
    return "\n".join([above, summary(lines), *map(box_line, boxes), "", header, *texts])


def heading(version: str, pid: int | None) -> str:
    """The supervisor in words."""
    return f"nsm {formats.visible(version)}, process {'-' if pid is None else pid}"
