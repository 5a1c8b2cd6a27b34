"""Output of a context: that of code, and between it lines of events; pure.

A line of events is U+001E, the token of the request, ``.`` or ``+`` (more follows), and a piece of
JSON in ASCII. Code in the sandbox may write such lines itself: then it tells its own client what it
likes. So everything is checked, and nothing else depends on it.
"""

from __future__ import annotations

import codecs
import json
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_EVENT_CHARS = 32 * 1024 * 1024
"""Largest event; a larger one is left out."""

TEXTS = ("text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "javascript")
"""Formats of a result that are texts."""

OBJECTS = ("json", "data", "extra")
"""Formats of a result that are objects."""

_MARK = "\x1e"


class Splitter:
    """Splits one stream of a context into texts and events.

    Args:
        token: token of the request.
    """

    def __init__(self, token: str) -> None:
        self._start = _MARK + token
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._event: list[str] = []
        self._event_chars = 0

    def split(self, data: bytes) -> Iterator[str | dict[str, Any]]:
        """Take what the stream has next; yields texts and events in order."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        while text:
            plain, mark, rest = text.partition(_MARK)
            if plain:
                yield plain
            if not mark:
                return
            text = mark + rest
            if not text.startswith(self._start):
                if self._start.startswith(text):  # it may be the beginning of one
                    self._rest = text
                    return
                yield mark
                text = rest
                continue
            line, newline, following = text.partition("\n")
            if not newline:
                if len(line) > len(self._start) + 8192:  # nothing of ours is that long
                    yield line
                    return
                self._rest = text
                return
            text = following
            yield from self._take(line[len(self._start) :])

    def _take(self, piece: str) -> Iterator[dict[str, Any]]:
        self._event_chars += len(piece)
        if self._event_chars <= MAX_EVENT_CHARS:
            self._event.append(piece[1:])
        if piece[:1] == "+":
            return
        whole, chars = "".join(self._event), self._event_chars
        self._event, self._event_chars = [], 0
        if chars > MAX_EVENT_CHARS:
            return
        try:
            value = json.loads(whole)
        except (ValueError, RecursionError):
            return
        if isinstance(value, dict):
            yield cast("dict[str, Any]", value)


def checked(event: dict[str, Any]) -> dict[str, Any] | None:
    """The part of an event that clients understand; None if there is none."""
    match event.get("type"):
        case "result":
            told = {name: event[name] for name in TEXTS if isinstance(event.get(name), str)}
            told |= {name: event[name] for name in OBJECTS if isinstance(event.get(name), dict)}
            return {"type": "result", **told, "is_main_result": event.get("is_main_result") is True}
        case "error":
            return {
                "type": "error",
                **{name: str(event.get(name, "")) for name in ("name", "value", "traceback")},
            }
        case "number_of_executions" if type(event.get("execution_count")) is int:
            return {
                "type": "number_of_executions",
                "execution_count": event["execution_count"],
            }
        case _:
            return None
