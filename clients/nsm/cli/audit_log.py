"""The audit's lines: read from its files, chosen, and put into words."""

from __future__ import annotations

import ctypes
import json
import os
import select
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from nsm.cli.render.formats import visible

CHUNK_BYTES = 256 * 1024

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Largest line: code of 8 MiB, each character of which may take six bytes in JSON."""

_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO = 0x2, 0x100, 0x80  # inotify(7)
_IN_CLOEXEC = os.O_CLOEXEC

Line = dict[str, Any]


def files(path: str, *, counting_up: bool = False) -> list[str]:
    """The audit's files that there are, the oldest first.

    Args:
        path: path of the newest file.
        counting_up: among rotated files, a larger number is a newer one.
    """
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
            raise OSError(f"{path!r} is no file")
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
    Sleeps in between.

    Raises:
        OSError: the directory is not there, or cannot be watched.
    """
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
        case "execution":
            parts = [f"ran {_code(line)} in {where}, {line.get('env')}: {line.get('outcome')}"]
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
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:199]}…"
