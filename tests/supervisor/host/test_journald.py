"""How lines of the log look, with and without the journal at the other end."""

from __future__ import annotations

import contextvars
import io
import logging
import os
import sys
from typing import TYPE_CHECKING

import pytest

from nsmd.host import logs

if TYPE_CHECKING:
    from pathlib import Path


def line(formatter: logging.Formatter, level: int = logging.INFO, *, fails: bool = False) -> str:
    """One line of the log."""
    wrong = None
    if fails:
        try:
            int("first\nsecond")
        except ValueError:
            wrong = sys.exc_info()
    record = logging.LogRecord("nsmd.app.daemon", level, "", 1, "said %d", (7,), wrong)
    return formatter.format(record)


@pytest.mark.parametrize(
    ("level", "priority"),
    [
        (logging.DEBUG, 7),
        (logging.INFO, 6),
        (logging.WARNING, 4),
        (logging.ERROR, 3),
        (logging.CRITICAL, 2),
    ],
)
def test_each_line_has_its_priority(level: int, priority: int) -> None:
    formatter = logs.JournalFormatter()
    assert line(formatter, level) == f"<{priority}>nsmd.app.daemon: said 7"
    lines = line(formatter, level, fails=True).splitlines()
    assert len(lines) > 3
    assert all(each.startswith(f"<{priority}>") for each in lines)


def test_only_the_journals_own_stream_is_written_for_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        found = os.fstat(stream.fileno())
        given = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        assert line(logs.formatter_for(stream, given)).startswith("<6>")
        other = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"}
        for elsewhere in (other, {}):
            plain = line(logs.formatter_for(stream, elsewhere))
            assert plain.endswith(" INFO nsmd.app.daemon: said 7")
            assert plain[0].isdigit()
    assert not logs.goes_to_journal(io.StringIO(), given)


def test_what_a_line_is_about_follows_it() -> None:
    formatter = logs.JournalFormatter()

    def there() -> tuple[str, str, str]:
        logs.about(client="editor")
        first = line(formatter)
        logs.about(session="a1b2", client='an "editor"\n<2>nsmd: forged')
        second = line(formatter)
        logs.about(client="")
        return first, second, line(formatter)

    first, second, third = contextvars.Context().run(there)
    assert first == "<6>nsmd.app.daemon: said 7 client=editor"
    assert second.startswith('<6>nsmd.app.daemon: said 7 client="an \\"editor\\"\\n<2>')
    assert second.endswith(" session=a1b2")
    assert "\n" not in second
    assert third == "<6>nsmd.app.daemon: said 7 session=a1b2"
    assert line(formatter) == "<6>nsmd.app.daemon: said 7"
