"""Reader of Nix's log format `internal-json`: one line in, text and progress out.

The format has no specification; it is the output of Nix's JSON logger (libutil/logging.hh and
logging.cc). A line is `@nix ` and an object with an `action`: `start` and `stop` of an activity,
`result` of one, `msg` for people. Everything else that arrives (ssh, git, a newer nix) is text. A
builder can print such lines, too: nix passes them on as text. So nothing here trusts a field.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, cast

from nsm.dataclass import dataclass, field
from nsmd.host.command_monitor import MAX_LINE_CHARS, CommandProgress, LogReader, clean, lines_of

PREFIX = b"@nix "

MAX_ERROR_CHARS = 16 * 1024
"""Largest size of Nix's error messages to keep. Traces of an evaluation are long; their end, which
names the cause, comes last.
"""

MAX_ACTIVITY_CHARS = 200
"""Largest text of an activity: a line on a terminal."""

MAX_ACTIVITIES = 4096
"""Largest number of activities at once. Nix has dozens; a line that claims to be an activity may
come from anywhere.
"""

_INFO_LEVEL = 3
"""Nix's verbosity levels: 0 error, 1 warning, 2 notice, 3 info, then chatter."""


class _Kind(IntEnum):
    """Types of activities that are used here."""

    FILE_TRANSFER = 101
    REALISE = 102
    COPY_PATHS = 103
    BUILDS = 104
    BUILD = 105
    SUBSTITUTE = 108


class _Result(IntEnum):
    """Types of results that are used here."""

    LOG_LINE = 101
    SET_PHASE = 104
    PROGRESS = 105
    SET_EXPECTED = 106
    POST_BUILD_LINE = 107


_COUNTED = (_Kind.FILE_TRANSFER, _Kind.COPY_PATHS, _Kind.BUILDS)

_STORE_NAME = re.compile(r"(?:.*/)?[0-9a-z]{32}-(.+?)(?:\.drv)?")


@dataclass(slots=True)
class _Activity:
    kind: int
    text: str
    name: str
    done: int = 0
    expected: int = 0
    phase: str = ""
    promised: dict[int, int] = field(default_factory=dict[int, int])


class NixLogReader(LogReader):
    """Reader of the log of one run of Nix."""

    def __init__(self) -> None:
        self._activities: dict[int, _Activity] = {}
        self._done: dict[int, int] = {int(kind): 0 for kind in _COUNTED}
        self._errors: deque[str] = deque()
        self._error_chars = 0
        self._realising = False

    def read_line(self, line: bytes) -> list[str]:
        if not line.startswith(PREFIX):
            return super().read_line(line)
        try:
            message = json.loads(line[len(PREFIX) :])
        except (ValueError, RecursionError):
            return []  # cut off, or no message
        if not isinstance(message, dict):
            return []
        return self._read_message(cast("dict[str, Any]", message))

    @property
    def error(self) -> str:
        return "\n".join(self._errors)

    @property
    def progress(self) -> CommandProgress:
        shown = next(
            (a for a in reversed(self._activities.values()) if a.kind == _Kind.BUILD),
            next((a for a in reversed(self._activities.values()) if a.text), None),
        )
        return CommandProgress(
            phase=self._phase(),
            activity="" if shown is None else _words(shown),
            built=self._total(_Kind.BUILDS),
            to_build=self._expected(_Kind.BUILDS),
            copied=self._total(_Kind.COPY_PATHS),
            to_copy=self._expected(_Kind.COPY_PATHS),
            downloaded_bytes=self._total(_Kind.FILE_TRANSFER),
            to_download_bytes=self._expected(_Kind.FILE_TRANSFER),
        )

    def _read_message(self, message: Mapping[str, Any]) -> list[str]:
        number = message.get("id")
        match message.get("action"):
            case "msg":
                return self._message(message)
            case "start" if isinstance(number, int):
                return self._start(number, message)
            case "stop" if isinstance(number, int):
                self._stop(number)
            case "result" if isinstance(number, int) and number in self._activities:
                return self._result(self._activities[number], message)
            case _:
                pass
        return []

    def _message(self, message: Mapping[str, Any]) -> list[str]:
        lines = lines_of(_text(message.get("msg")))
        level = message.get("level")
        if level == 0 and lines:
            self._errors.append("\n".join(lines))
            self._error_chars += len(self._errors[-1])
            while self._error_chars > MAX_ERROR_CHARS and len(self._errors) > 1:
                self._error_chars -= len(self._errors.popleft())
            self._errors[0] = self._errors[0][-MAX_ERROR_CHARS:]
        return lines if isinstance(level, int) and level <= _INFO_LEVEL else []

    def _start(self, number: int, message: Mapping[str, Any]) -> list[str]:
        kind, level = message.get("type"), message.get("level")
        lines = lines_of(_text(message.get("text")))
        fields = _fields(message)
        subject = fields[0] if fields and isinstance(fields[0], str) else ""
        named = _STORE_NAME.fullmatch(subject[:MAX_LINE_CHARS])
        if len(self._activities) < MAX_ACTIVITIES:
            self._activities[number] = _Activity(
                kind=kind if isinstance(kind, int) else 0,
                text=lines[0] if lines else "",
                name=named[1] if named else "",
            )
            self._realising = self._realising or kind == _Kind.REALISE
        return lines if isinstance(level, int) and level <= _INFO_LEVEL else []

    def _stop(self, number: int) -> None:
        activity = self._activities.pop(number, None)
        if activity is not None and activity.kind in self._done:
            self._done[activity.kind] += activity.done

    def _result(self, activity: _Activity, message: Mapping[str, Any]) -> list[str]:
        fields = _fields(message)
        match message.get("type"), fields:
            case ((_Result.LOG_LINE | _Result.POST_BUILD_LINE), [str(text), *_]):
                before = f"{activity.name}> " if activity.name else ""
                return [before + line for line in lines_of(text)]
            case _Result.SET_PHASE, [str(phase), *_]:
                activity.phase = clean(phase)[:100]
            case _Result.PROGRESS, [int(done), int(expected), *_]:
                activity.done, activity.expected = max(0, done), max(0, expected)
            case _Result.SET_EXPECTED, [int(kind), int(amount), *_] if kind in _COUNTED:
                activity.promised[kind] = max(0, amount)
            case _:
                pass
        return []

    def _phase(self) -> str:
        kinds = {activity.kind for activity in self._activities.values()}
        if _Kind.BUILD in kinds:
            return "building"
        if _Kind.FILE_TRANSFER in kinds or _Kind.SUBSTITUTE in kinds:
            return "downloading" if self._realising else "fetching"
        return "building" if self._realising else "evaluating"

    def _total(self, kind: int) -> int:
        return self._done[kind] + sum(a.done for a in self._activities.values() if a.kind == kind)

    def _expected(self, kind: int) -> int:
        going = sum(max(a.done, a.expected) for a in self._activities.values() if a.kind == kind)
        promised = sum(a.promised.get(kind, 0) for a in self._activities.values())
        return max(self._done[kind] + going, promised)


def _words(activity: _Activity) -> str:
    if activity.kind == _Kind.BUILD and activity.name:
        phase = f" ({activity.phase})" if activity.phase else ""
        return f"building {activity.name}{phase}"[:MAX_ACTIVITY_CHARS]
    return activity.text[:MAX_ACTIVITY_CHARS]


def _fields(message: Mapping[str, Any]) -> list[object]:
    fields: object = message.get("fields")
    return cast("list[object]", fields) if isinstance(fields, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
