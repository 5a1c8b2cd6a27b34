"""Log lines in the format of systemd's journal: with a priority, and facts to search for.

If standard error is the journal's own stream, the journal adds time and program to each line, and
reads a level from ``<N>`` at its beginning (sd-daemon(3)). The subject of a line follows it as
``key=value``, so that `journalctl --user -u nsm-supervisor -g session=ID` finds a session's lines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextvars import ContextVar
from typing import NamedTuple, TextIO

PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
"""Format if nothing else adds the time."""


class About(NamedTuple):
    """Subject of a task for the log; empty fields are not shown."""

    client: str = ""
    session: str = ""
    box: str = ""


_ABOUT: ContextVar[About] = ContextVar("about", default=About())  # noqa: B039  # it is constant


def about(*, session: str | None = None, client: str | None = None, box: str | None = None) -> None:
    """Set the subject of this task, and of those that it starts from now on.

    Args:
        session: an id; None to keep the present one.
        client: a name; likewise.
        box: the scope of the box of a connection; likewise.
    """
    before = _ABOUT.get()
    _ABOUT.set(
        About(
            before.client if client is None else client,
            before.session if session is None else session,
            before.box if box is None else box,
        )
    )


def current() -> About:
    """Return the subject of this task."""
    return _ABOUT.get()


def goes_to_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether the journal reads this stream (systemd.exec(5), JOURNAL_STREAM)."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def formatter_for(stream: TextIO, environment: Mapping[str, str]) -> logging.Formatter:
    """Return the format of lines for a stream.

    Args:
        environment: variables of this process, as the service manager has set them.
    """
    return JournalFormatter() if goes_to_journal(stream, environment) else TailFormatter(PLAIN)


class TailFormatter(logging.Formatter):
    """Format with the subject at the end of a line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        about = _ABOUT.get()
        facts = zip(about._fields, about, strict=True)
        tail = "".join(f" {key}={_quoted(value)}" for key, value in facts if value)
        return super().formatMessage(record) + tail


class JournalFormatter(TailFormatter):
    """Format with the priority at the beginning of each line: a line is one entry of
    the journal.
    """

    def __init__(self) -> None:
        super().__init__("%(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_priority(record.levelno)}>"
        return "\n".join(f"{prefix}{line}" for line in super().format(record).split("\n"))


def _priority(level: int) -> int:
    """Priority of syslog(3) for a level of Python."""
    if level >= logging.CRITICAL:
        return 2
    if level >= logging.ERROR:
        return 3
    if level >= logging.WARNING:
        return 4
    return 6 if level >= logging.INFO else 7


def _quoted(value: str) -> str:
    """Quote a value as one word, since clients choose their names."""
    if value.isascii() and value.isprintable() and not set(value) & set(' "='):
        return value
    text = value.encode("unicode_escape").decode().replace('"', '\\"')
    return f'"{text}"'
