"""`nsm audit` and `nsm bridge audit`: who ran what, when, and what came of it.

Both read files of JSON lines that somebody goes on writing, choose lines, and put them into words.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import stat
import sys
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from nsm import paths
from nsm.cli import connection, terminal
from nsm.cli.options import Argument, flag, value, verb
from nsm.cli.render.formats import visible
from nsm.wire.jobs import signal_name

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator

Line = dict[str, Any]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines")
    return int(text)


def _since(text: str) -> str:
    """A time as the lines have it, in RFC 3339; the beginning of one compares as it should."""
    import time  # noqa: PLC0415  # only where it is asked for

    if text[-1:] in _UNITS and text[:-1].isdecimal():
        begin = time.time() - int(text[:-1]) * _UNITS[text[-1]]
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(max(0.0, begin)))
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"):
        try:
            return time.strftime("%Y-%m-%dT%H:%M:%S", time.strptime(text, form))
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a time; expected 90m, 2h, 7d, 2026-05-04 or 2026-05-04T10:11"
    )


CHOICE: tuple[Argument, ...] = (
    flag("-f --follow", "follow new lines until Ctrl-C"),
    value("-n --lines N", "the last N lines only; 0 with -f: new ones", _count),
    value("--since TIME", "no earlier ones: 90m, 2h, 7d, or 2026-05-04[T10:11[:12]], UTC", _since),
)
"""Options of how much is shown, and for how long."""

AS_IT_IS = flag("--json", "print the lines as they are, JSON")


@verb(
    "audit",
    "Show who ran what, when, in which session, and what came of it. Needs no supervisor.",
    "Code itself is kept only with `code = true` in [audit] of config.toml, and is in --json.",
    *CHOICE,
    value("--session SESSION", "of one session: its id, name or SCOPE/NAME"),
    AS_IT_IS,
)
def _audit(options: Namespace) -> None:
    session: str | None = options.session

    def wanted(line: Line) -> bool:
        return session is None or concerns(line, session)

    _show(options, paths.audit_path(), wanted, words)


def audit_of_bridge(options: Namespace) -> None:
    """Show the audit of the bridge, by the options of `nsm bridge audit`."""

    def wanted(line: Line) -> bool:
        return (
            (options.program is None or line.get("program") == options.program)
            and (
                options.client is None or options.client in (line.get("client"), line.get("scope"))
            )
            and (options.call is None or _is_call(str(line.get("id")), options.call))
            and (not options.refused or line.get("event") == "refused")
        )

    path = paths.bridge_audit_path()
    if not os.path.lexists(path):
        connection.need_installed()  # in a box there never will be one
    _show(options, path, wanted, bridge_words, counting_up=True)


def _show(
    options: Namespace,
    path: str,
    wanted: Callable[[Line], bool],
    words: Callable[[Line], str],
    *,
    counting_up: bool = False,
) -> None:
    """Show lines of an audit with this newest file, by the options `CHOICE` and `json`."""
    import json  # noqa: PLC0415  # not for completion

    since: str = options.since or ""

    def print_chosen(lines: Iterable[Line], count: int | None = None) -> None:
        chosen = (line for line in lines if line["at"] >= since and wanted(line))
        for line in chosen if count is None else deque(chosen, count):
            if options.json:
                sys.stdout.write(json.dumps(line) + "\n")  # ASCII, as `terminal.out_json`
            else:
                terminal.out(words(line))
        if options.follow:
            sys.stdout.flush()

    if not options.follow:
        print_chosen(read(path, counting_up=counting_up), options.lines)
        if not files(path):
            terminal.note(f"nothing is written down yet, in {path}")
        return
    with suppress(KeyboardInterrupt):
        added = follow(path, counting_up=counting_up)
        print_chosen(cast("Iterable[Line]", iter(lambda: next(added), None)), options.lines)
        for line in added:
            if line is not None:
                print_chosen([line])


# Their files.


CHUNK_BYTES = 256 * 1024


MAX_LINE_BYTES = 64 * 1024 * 1024
"""Largest line: code of 8 MiB, each character of which may take six bytes in JSON."""


_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO = 0x2, 0x100, 0x80  # inotify(7)


_IN_CLOEXEC = os.O_CLOEXEC


def files(path: str, *, counting_up: bool = False) -> list[str]:
    """The audit's files that there are, the oldest first, and at last this newest one. If they
    count up, a rotated file with a larger number is a newer one."""
    rotated: list[tuple[int, str]] = []
    directory, name = os.path.split(path)
    with suppress(FileNotFoundError):
        for entry in os.listdir(directory):
            number = entry.removeprefix(f"{name}.")
            if entry != number and number.isdecimal():
                rotated.append((int(number), os.path.join(directory, entry)))
    found = [rotated_path for _, rotated_path in sorted(rotated, reverse=not counting_up)]
    return [*found, path] if os.path.lexists(path) else found


class AuditFollower:
    """The lines of one file, those that are added later included. What is no line is skipped."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._rest = b""
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise OSError(f"{path!r} is not a file")
        self._identity = (found.st_dev, found.st_ino)

    def close(self) -> None:
        """Read no more."""
        os.close(self._descriptor)

    def lines(self) -> Iterator[Line]:
        """Whole lines that have not been read yet."""
        while data := os.read(self._descriptor, CHUNK_BYTES):
            *whole, self._rest = (self._rest + data).split(b"\n")
            for text in whole:
                if (line := parsed(text)) is not None:
                    yield line
            if len(self._rest) > MAX_LINE_BYTES:
                self._rest = b""

    def is_at(self, path: str) -> bool:
        """Return whether the file is the one at a path."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self._identity


def parsed(text: bytes) -> Line | None:
    """A line as a map; None for one that is cut or no line of ours."""
    import json  # noqa: PLC0415  # not for completion

    try:
        line: object = json.loads(text)
    except ValueError:
        return None
    if not isinstance(line, dict):
        return None
    fields = cast("Line", line)
    return fields if isinstance(fields.get("at"), str) else None


def read(path: str, *, counting_up: bool = False) -> Iterator[Line]:
    """All lines that there are now, the oldest first."""
    for each in files(path, counting_up=counting_up):
        yield from _all_of(each)


def follow(path: str, *, counting_up: bool = False) -> Iterator[Line | None]:
    """All lines that there are now, None, and those that are added from then on, across rotations.
    Sleeps in between."""
    watch = _watched(os.path.dirname(path))
    reader: AuditFollower | None = None
    told = False
    try:
        for each in files(path, counting_up=counting_up):
            if each != path:
                yield from _all_of(each)
        while True:
            if reader is None:
                with suppress(FileNotFoundError):
                    reader = AuditFollower(path)
            if reader is not None:
                at_path = reader.is_at(path)
                yield from reader.lines()  # after that: what it had when it was set aside as well
                if not at_path:
                    reader.close()
                    reader = None
                    continue
            if not told:
                told = True
                yield None
            select.select([watch], [], [])
            os.read(watch, 65536)
    finally:
        if reader is not None:
            reader.close()
        os.close(watch)


def _all_of(path: str) -> Iterator[Line]:
    try:
        reader = AuditFollower(path)
    except FileNotFoundError:
        return  # rotated meanwhile
    try:
        yield from reader.lines()
    finally:
        reader.close()


def _watched(directory: str) -> int:
    """A descriptor that becomes readable when something changes in a directory (inotify(7))."""
    import ctypes  # noqa: PLC0415  # only to follow

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(libc.inotify_init1(_IN_CLOEXEC))
    if descriptor >= 0:
        mask = _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO
        if libc.inotify_add_watch(descriptor, os.fsencode(directory), mask) >= 0:
            return descriptor
    number = ctypes.get_errno()
    if descriptor >= 0:
        os.close(descriptor)
    raise OSError(number, os.strerror(number), directory)


# Words.


def concerns(line: Line, session: str) -> bool:
    """Return whether a line is about a session, by its id, its name or `SCOPE/NAME`."""
    name, scope = line.get("name"), line.get("scope")
    if session in (line.get("session"), name):
        return True
    if name is not None and session == f"{scope}/{name}":
        return True
    arguments = line.get("arguments")
    if not isinstance(arguments, dict):
        return False
    told = cast("Line", arguments)
    return session == told.get("target") or session in told.get("targets", ())


def words(line: Line) -> str:
    """A line for people: time, who, what; nothing in it drives a terminal."""
    time = str(line["at"])[:19].replace("T", " ")
    return visible(f"{time}Z  {line.get('client', '-')}  {_what(line)}")


def _what(line: Line) -> str:
    where = str(line.get("session", ""))
    if line.get("name") is not None:
        where += f" ({line['name']})"
    match line.get("event"):
        case "execution" | "fresh" as event:
            how = " afresh" if event == "fresh" else ""
            parts = [f"ran {_code(line)}{how} in {where}, {line.get('env')}: {line.get('outcome')}"]
            if line.get("exit_code"):
                parts.append(f"exit code {line['exit_code']}")
            if "duration_s" in line:
                parts.append(f"{line['duration_s']:.2f} s")
            if line.get("limits"):
                parts.append(f"limits: {', '.join(map(str, line['limits']))}")
            if line.get("why"):
                parts.append(str(line["why"]))
            return ", ".join(parts)
        case "execution_started":
            return f"runs {_code(line)} in {where}, {line.get('env')}"
        case "session_started":
            seen = f", project {line['project']}" if line.get("project") else ""
            return f"began session {where}, {line.get('env')}{seen}, network {line.get('network')}"
        case "session_ended":
            ran = f"{line.get('executions')} executions"
            if line.get("programs"):
                ran += f" and {line['programs']} programs"
            return f"session {where} ended after {ran}: {line.get('reason')}"
        case "operation":
            told = cast("Line", line.get("arguments") or {})
            given = "".join(f" {key}={_short(value)}" for key, value in told.items())
            refused = f": refused, {line.get('why')}" if "error" in line else ""
            return f"asked for {line.get('operation')}{given}{refused}"
        case "gap":
            return f"{line.get('lost')} lines are missing here: {line.get('why')}"
        case event:
            rest = {k: v for k, v in line.items() if k not in ("at", "event", "client")}
            return f"{event}{''.join(f' {key}={_short(value)}' for key, value in rest.items())}"


def _code(line: Line) -> str:
    digest = line.get("code_sha256")
    return f"{str(digest)[:8]} ({line.get('code_bytes')} bytes)" if digest else "code"


def _short(value: object) -> str:
    import json  # noqa: PLC0415  # not for completion

    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


MAX_ARGUMENT_CHARS = 300
"""Largest size of all arguments for people; --json has all of them."""

_STOPPED = {
    "timeout": "timed out",
    "cancelled": "taken back",
    "shutdown": "stopped, since nsm ended",
}


def bridge_words(line: Line) -> str:
    """A line of the bridge's audit for people; nothing in it drives a terminal."""
    time = str(line["at"])[:19].replace("T", " ")
    who = f"{line.get('client', '-')} in {line.get('scope', '-')}"
    return visible(
        f"{time}Z  [{_short_id(str(line.get('id', '-')))}]  {who}  {_what_of_program(line)}"
    )


def _short_id(call_id: str) -> str:
    """Shorten the id of a call to its beginning, and of the calls of one MCP client, which share
    that, the number, too."""
    head, hyphen, number = call_id.rpartition("-")
    return f"{head[:8]}-{number}" if hyphen and head and number.isdecimal() else call_id[:8]


def _is_call(call_id: str, given: str) -> bool:
    return call_id.startswith(given) or _short_id(call_id) == given


def _what_of_program(line: Line) -> str:
    program = str(line.get("program", "-"))
    match line.get("event"):
        case "start":
            return f"starts {program}{_arguments(line)}"
        case "refused":
            return f"was refused {program}{_arguments(line)}: {line.get('reason')}"
        case "end" if line.get("why_stopped") == "not-started":
            return f"{program} was not started: {line.get('reason')}"
        case "end" if line.get("why_stopped") == "fault":
            return f"{program} ended: {line.get('reason')}"
        case "end":
            parts = [_outcome(line)]
            if isinstance(duration_s := line.get("duration_s"), int | float):
                parts.append(f"{duration_s:.2f} s")
            if left := line.get("left"):
                parts.append("1 process goes on" if left == 1 else f"{left} processes go on")
            return f"{program} ended: {', '.join(parts)}"
        case event:
            return f"{program}: {event}"


def _outcome(line: Line) -> str:
    stopped = line.get("why_stopped")
    if stopped is not None:
        return _STOPPED.get(str(stopped), str(stopped))
    number = line.get("signal")
    if not isinstance(number, int):
        return f"exit code {line.get('exit_code')}"
    return f"killed by {signal_name(number)}"


def _arguments(line: Line) -> str:
    arguments = line.get("arguments")
    if not isinstance(arguments, list):
        return ""
    text = "".join(f" {shlex.quote(str(each))}" for each in cast("list[object]", arguments))
    cut = len(text) > MAX_ARGUMENT_CHARS or "arguments_in_all" in line
    return f"{text[:MAX_ARGUMENT_CHARS]} …" if cut else text
