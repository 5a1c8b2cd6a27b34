"""Lines that strangers can cause: a few in full, the others counted, nobody else's hidden."""

from __future__ import annotations

import contextvars
import importlib
import logging

from nsmd.host import logs
from nsmd.host.logs import FULL, INTERVAL_S, LOGGERS, MAX_KINDS, FloodFilter


class Log:
    """A logger's lines that come through the filter."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lines: list[str] = []
        self._filter = FloodFilter(lambda: self.now)

    def line(self, message: str, *args: object, line: int = 1, box: str = "") -> None:
        def say() -> None:
            logs.about(box=box)
            record = logging.LogRecord("x", logging.WARNING, "", line, message, args, None)
            if self._filter.filter(record):
                self.lines.append(record.getMessage())

        contextvars.copy_context().run(say)

    def flood(self, count: int, box: str = "") -> list[str]:
        before = len(self.lines)
        for number in range(count):
            self.line("closing: %s", f"100% of {number}", box=box)
        return self.lines[before:]


def test_a_few_are_written_as_they_are() -> None:
    assert Log().flood(FULL) == [f"closing: 100% of {number}" for number in range(FULL)]


def test_of_a_flood_there_is_little_and_it_says_how_much_there_was() -> None:
    log = Log()
    said = log.flood(100_000)[FULL:]
    assert len(said) == 17, "one for each power of two"
    assert (
        said[0]
        == f"closing: 100% of {FULL} ({FULL + 1} like it in 0 s; most are left out from here on)"
    )
    assert f"({FULL + 65536} like it in " in said[-1]
    log.now += INTERVAL_S
    (line,) = log.flood(1)
    assert (
        line
        == f"closing: 100% of 0 ({100_000 - FULL} more like it are left out in the 60 s before)"
    )
    assert log.flood(FULL - 1) == [f"closing: 100% of {number}" for number in range(FULL - 1)]


def test_a_flood_hides_no_other_line_and_nobody_elses() -> None:
    log = Log()
    log.flood(1000, box="flooding")
    assert len(log.flood(FULL, box="other")) == FULL
    before = len(log.lines)
    log.line("closing: %s", "elsewhere in the code", line=2, box="flooding")
    log.line("refused", box="flooding")
    assert log.lines[before:] == ["closing: elsewhere in the code", "refused"]


def test_who_takes_many_names_is_one_in_the_end() -> None:
    log = Log()
    for number in range(10_000):
        log.line("closing", box=f"box {number}")
    assert len(log.lines) < MAX_KINDS + FULL + 20
    log.now += INTERVAL_S
    assert log.flood(1, box="another") == ["closing: 100% of 0"]
    assert log.flood(5, box="another")[-1] == "closing: 100% of 4"


def test_the_loggers_are_there() -> None:
    for name in LOGGERS:
        module = importlib.import_module(name)
        assert module.log.name == name
