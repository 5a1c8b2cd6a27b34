"""Values to text for people. Pure: nothing here reads, writes or asks the system.

Names, paths and messages come from other programs, some of them jailed: whatever a terminal would
take for more than a character to show is made visible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsm.wire.environments import EnvironmentRow
    from nsm.wire.live import KilledSession, SessionRow
    from nsm.wire.pool import PoolKind, PoolReport
    from nsm.wire.results import RunResult
    from nsm.wire.status import Status
    from nsm.wire.transcripts import EndedRow

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_MEBIBYTE = 1024 * 1024

NOTICEABLE_WAIT_S = 1.0
"""Waiting for another execution of the session is told from here on."""


def visible(text: str) -> str:
    """The text with everything but printable characters escaped: ``\\\\x1b``, ``\\\\u202e``."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _escaped(character) for character in text
    )


def visible_lines(text: str) -> str:
    """As `visible`, but line breaks stay: messages quote the words of other programs."""
    return "\n".join(visible(line.expandtabs()) for line in text.rstrip().split("\n"))


def error(message: str, hint: str) -> str:
    """A message and, on a line of its own, what to do next."""
    return visible_lines(message) + (f"\n{visible_lines(hint)}" if hint else "")


def duration(seconds: float) -> str:
    """Seconds as people say them: ``12s``, ``3m12s``, ``2h05m``, ``3d04h``."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"


def limit(seconds: float) -> str:
    """A time limit: one of less than a second is not none."""
    return f"{seconds:g}s" if seconds < _MINUTE else duration(seconds)


def processor_time(seconds: float | None) -> str:
    """CPU time: finer than an age while it is short."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f}s" if seconds < _MINUTE else duration(seconds)


def milliseconds(seconds: float | None) -> str:
    """A short time."""
    return "-" if seconds is None else f"{seconds * 1000:.0f}ms"


def memory(size_bytes: int | None) -> str:
    """Bytes as mebibytes."""
    return "-" if size_bytes is None else f"{size_bytes / _MEBIBYTE:.1f} MiB"


def size(size_bytes: int) -> str:
    """An amount of output."""
    if size_bytes < 10 * 1024:
        return f"{size_bytes} bytes"
    return f"{size_bytes / 1024:.0f} KiB" if size_bytes < _MEBIBYTE else memory(size_bytes)


def count(number: int, noun: str) -> str:
    """``1 session``, ``2 sessions``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: str = "",
    *,
    width: int | None = None,
    least: str = "",
) -> str:
    """Aligned columns, two spaces apart, nothing after the last.

    Args:
        header: one word a column.
        rows: texts as they come; they are made visible here.
        right: the names of columns that are aligned to the right, separated by spaces. These are
            never cut.
        width: of the terminal; None for no limit. Where the table is wider, its widest texts are
            cut, and where that is not enough, columns are left out.
        least: the names of columns that are left out, the first one first.
    """
    lines = [list(header)] + [[visible(cell) for cell in row] for row in rows]
    if width is not None:
        lines, right = _narrowed(lines, right.split(), width, least.split())
    header = lines[0]
    widths = [max(map(columns, column)) for column in zip(*lines, strict=True)]
    to_the_right = [name in right.split() for name in header]
    texts: list[str] = []
    for line in lines:
        cells = [
            " " * (width - columns(cell)) + cell if flush else cell + " " * (width - columns(cell))
            for cell, width, flush in zip(line, widths, to_the_right, strict=True)
        ]
        texts.append("  ".join(cells).rstrip())
    return "\n".join(texts)


_PATHS = ("PROJECT", "SOURCE", "DIRECTORY")
"""Columns of paths, of which the end tells more than the beginning."""

_FEWEST = 12
"""Columns that a text is cut to before others are left out."""


def _narrowed(
    lines: list[list[str]], right: list[str], width: int, least: list[str]
) -> tuple[list[list[str]], str]:
    while True:
        header = lines[0]
        widths = [max(map(columns, column)) for column in zip(*lines, strict=True)]
        # The last column is the most telling one: notes, reasons.
        fewest = [
            own
            if name in right
            else min(own, max(len(name), _FEWEST * (1 + (place == len(header) - 1))))
            for place, (name, own) in enumerate(zip(header, widths, strict=True))
        ]
        gaps = 2 * (len(header) - 1)
        dropped = next((name for name in least if name in header), None)
        if sum(fewest) + gaps <= width or dropped is None:
            break
        place = header.index(dropped)
        lines = [line[:place] + line[place + 1 :] for line in lines]
    while sum(widths) + gaps > width:
        spare = [own - few for own, few in zip(widths, fewest, strict=True)]
        if not any(spare):
            break
        widest = max(range(len(widths)), key=lambda place: widths[place] * (spare[place] > 0))
        widths[widest] -= 1
    cut = [
        [
            shortened(cell, own, keep_end=name in _PATHS)
            for cell, own, name in zip(line, widths, header, strict=True)
        ]
        for line in lines
    ]
    return cut, " ".join(right)


def shortened(text: str, width: int, *, keep_end: bool = False) -> str:
    """The text in so many columns: with an ellipsis in place of its end, or of its beginning."""
    if columns(text) <= width:
        return text
    while text and columns(text) > width - 1:
        text = text[1:] if keep_end else text[:-1]
    return f"\N{HORIZONTAL ELLIPSIS}{text}" if keep_end else f"{text}\N{HORIZONTAL ELLIPSIS}"


def sessions(rows: Sequence[SessionRow], home: str, width: int | None = None) -> str:
    """The table of `nsm ps`. Paths below `home` are shown with ``~``."""
    if not rows:
        return "No sessions."
    return table(
        "ID NAME ENV CLIENT PROJECT STATE AGE IDLE RUNS MEMORY CPU LIMITS".split(),
        (
            (
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
            )
            for row in rows
        ),
        right="AGE IDLE RUNS MEMORY CPU",
        width=width,
        least="LIMITS CLIENT CPU AGE RUNS MEMORY",
    )


def ended_sessions(rows: Sequence[EndedRow], width: int | None = None) -> str:
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


def killed(rows: Sequence[KilledSession]) -> str:
    """What `nsm kill` ended, a line each."""
    return "\n".join(
        visible(f"ended {row.id}" + ("" if row.name is None else f" ({row.name})")) for row in rows
    )


def environments(rows: Sequence[EnvironmentRow], home: str, width: int | None = None) -> str:
    """The table of `nsm env`."""
    if not rows:
        return "No environments."
    return table(
        "NAME INTERPRETER LIMIT MEMORY SOURCE DESCRIPTION".split(),
        (
            (
                ", ".join((row.name or "-", *row.aliases)),
                row.interpreter or "-",
                limit(row.timeout_s) if row.interpreter else "-",
                f"{row.memory_mb} MiB" if row.interpreter else "-",
                below_home(row.source, home),
                _environment_note(row),
            )
            for row in rows
        ),
        right="LIMIT MEMORY",
        width=width,
        least="INTERPRETER",
    )


def _environment_note(row: EnvironmentRow) -> str:
    only = f" [only for {row.only_for}]" if row.only_for else ""
    only += f" [in place of {', '.join(row.hides)}]" if row.hides else ""
    if not row.available:
        # What failed and the cause; `nsm env show NAME` has the log's end, too.
        problem = " ".join((row.problem or "").splitlines()[:2])
        return f"unavailable: {problem}{only}"
    separator = ", " if row.description else ""
    preloaded = _preloaded(row)
    preload = f"{separator}with {', '.join(preloaded)}" if preloaded else ""
    stateless = "" if row.keeps_state else " (no sessions)"
    cold = f" (starts slowly: {row.cold_start})" if row.cold_start else ""
    cold += f" (not preloaded: {'; '.join(row.not_preloaded)})" if row.not_preloaded else ""
    return f"{row.description}{preload}{stateless}{cold}{only}"


def environment(row: EnvironmentRow) -> list[tuple[str, str]]:
    """All that is known of one, as names and texts for `listing`."""
    lines = [("name", ", ".join((row.name or "-", *row.aliases)))]
    if row.available:
        lines += [
            (
                "interpreter",
                f"{row.interpreter}, {row.program}" if row.program else row.interpreter,
            ),
            ("limits", f"{limit(row.timeout_s)} a run, {row.memory_mb} MiB a session"),
        ]
    lines.append(("source", row.source))
    optional = [
        ("description", row.description),
        ("unavailable", row.problem),
        ("preloaded", ", ".join(_preloaded(row))),
        ("not preloaded", "\n".join(row.not_preloaded)),
        ("sessions", None if row.keeps_state or not row.available else "none: single runs only"),
        ("starts slowly", row.cold_start),
        ("only for", row.only_for),
        ("in place of", ", ".join(row.hides)),
    ]
    lines += [(name, text) for name, text in optional if text]
    # What nix said has lines of its own.
    return [
        (name if number == 0 else "", line)
        for name, text in lines
        for number, line in enumerate(text.splitlines() or [""])
    ]


def _preloaded(row: EnvironmentRow) -> list[str]:
    """The modules that its sessions find imported."""
    failed = {text.partition(":")[0] for text in row.not_preloaded}
    return [module for module in row.preload if module not in failed]


def not_preloaded(rows: Sequence[EnvironmentRow]) -> list[str]:
    """A line for each module that could not be preloaded."""
    lines = [f"{row.name}: not preloaded: {text}" for row in rows for text in row.not_preloaded]
    lines += [
        f"{row.name}: nothing is preloaded: {row.cold_start}"
        for row in rows
        if row.preload and row.cold_start
    ]
    return [visible(line) for line in lines]


def listing(lines: Sequence[tuple[str, str]]) -> str:
    """Names and texts, aligned."""
    width = max((len(name) for name, _ in lines), default=0) + 2
    return "\n".join(f"{name:<{width}}{visible(text)}" for name, text in lines)


def pool(report: PoolReport, home: str, width: int | None = None) -> str:
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
        f"{kind.calls_per_s * _MINUTE:.1f}/min",
        duration(kind.idle_s),
        memory(kind.memory_bytes),
    ]


_SURVIVAL = {
    "systemd": "sessions outlive the supervisor, kept by systemd",
    "keeper": "sessions outlive the supervisor for 10 minutes, kept by a small process",
    "none": "sessions end with the supervisor",
}


def status(answer: Status) -> str:
    """The lines of `nsm status`."""
    jail = answer.jail
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
    if (limits := answer.limits) is not None:
        kept = f"memory by {limits.memory}, processes by {limits.processes}, cpu by {limits.cpu}"
        lines.append(("limits", kept))
        if limits.why:
            lines.append(("", limits.why))
    if (survival := answer.survival) is not None:
        lines.append(("survival", _SURVIVAL.get(survival.kind, survival.kind)))
        if survival.problem:
            lines.append(("", survival.problem))
    if (audit := answer.audit) is not None:
        lines.append(("audit", audit.path if audit.enabled else "off"))
        if audit.dropped:
            now = f", and is losing more: {audit.problem}" if audit.problem else ""
            lines.append(("", f"has lost {audit.dropped} lines{now}"))
    if (bridge := answer.bridge) is not None and bridge.enabled:
        lines.append(("bridge", f"programs: {bridge.programs}; calls under way: {bridge.running}"))
        if bridge.wrong:
            lines.append(("", f"files that describe none: {bridge.wrong}; see `nsm bridge check`"))
        if bridge.problem:
            lines.append(("", f"nothing is started: {bridge.audit}: {bridge.problem}"))
    if (http := answer.http) is not None and http.enabled:
        count = f"connections: {http.connections} of {http.max_connections}"
        token = "" if http.token else "; no token"
        lines.append(("http", f"{http.url}; {count}{token}" if http.url else "not served"))
        if http.problem:
            lines.append(("", http.problem))
    return "\n".join(f"{name:<12}{visible(text)}" for name, text in lines)


def run_notes(result: RunResult, *, fresh_name: bool, left_out: dict[str, int]) -> list[str]:
    """What the one who ran code should know beside its output.

    Args:
        fresh_name: a session under a fresh name was asked for, so its name is news.
        left_out: bytes of each stream that were not printed.
    """
    session = result.session
    notes: list[str] = []
    if session.replaced is not None:
        notes.append(
            f"session {session.name!r} is new: the earlier one {session.replaced}; "
            "variables and /workspace were lost"
        )
    elif fresh_name and session.name is not None:
        notes.append(f"the session is {session.name}; `-s {session.name}` goes on in it")
    if result.clamped_from_s is not None:
        notes.append(
            f"the limit is {result.timeout_s:g} s, not the {result.clamped_from_s:g} s asked for; "
            "config.toml can raise it"
        )
    if result.waited_s >= NOTICEABLE_WAIT_S:
        notes.append(f"waited {duration(result.waited_s)} for other executions of the session")
    for stream, missing in left_out.items():
        truncation = result.truncated.get(stream)
        where = ""
        if truncation is not None and truncation.file is not None:
            where = (
                f"; all of it is in {truncation.file} of the session"
                if session.name is not None
                else "; with a session (-s NAME) all of it is kept in a file"
            )
        notes.append(f"{size(missing)} of {stream} left out{where}")
    if result.timed_out:
        longer = (
            "; -t sets the limit, up to the environment's, and in a session (-s NAME) work can go "
            "on in the background"
        )
        notes.append(
            f"timed out after {result.timeout_s:g} s{longer if session.name is None else ''}"
        )
    if result.interrupted:
        notes.append("interrupted")
    if result.interpreter_restarted and session.name is not None:
        reason = f" ({result.restart_reason})" if result.restart_reason else ""
        notes.append(f"the interpreter was restarted{reason}; its variables were lost")
    notes += result.notes
    return [visible_lines(text) for text in notes]


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def below_home(path: str, home: str) -> str:
    """A path, with ``~`` for the home directory."""
    if path == home:
        return "~"
    return "~" + path[len(home) :] if path.startswith(home.rstrip("/") + "/") else path


def columns(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # noqa: PLC0415  # rarely needed

    return sum(
        0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1
        for character in text
    )
