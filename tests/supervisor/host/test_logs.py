"""The log: its lines, its file, and floods; it neither raises nor blocks."""

from __future__ import annotations

import contextvars
import io
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import variables_for
from nsmd.host import logs
from nsmd.host.logs import FULL, INTERVAL_S, MAX_KINDS, FloodFilter, LogHandler

if TYPE_CHECKING:
    from collections.abc import Generator
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


def test_a_line_ends_with_what_it_is_about() -> None:
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


def record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("nsmd.test", logging.INFO, "file", 1, text, args, None)


@contextmanager
def opened(path: Path) -> Generator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_a_pipe_that_nobody_reads_does_not_block() -> None:
    reader, writer = os.pipe()
    try:
        handler = LogHandler(writer, "/elsewhere")
        for number in range(10_000):  # some 100 KiB; a pipe takes 64
            handler.emit(record("line %d", number))
        assert handler.lost > 0
        told = b""
        while handler.lost:
            told += os.read(reader, 65536)
            handler.emit(record("read again"))
        told += os.read(reader, 65536)
    finally:
        os.close(reader)
        os.close(writer)
    missing, last = told.decode().splitlines()[-2:]
    assert missing.endswith("lines of the log are missing here: nobody reads it")
    assert last == "read again"


def test_a_full_disk(tmp_path: Path) -> None:
    """A file that may not grow is one (setrlimit(2), RLIMIT_FSIZE)."""
    path = tmp_path / "log"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with opened(path) as descriptor:
            handler = LogHandler(descriptor, "/elsewhere")
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
            try:
                for _ in range(3):
                    handler.emit(record("0123456789"))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert handler.lost == 3
            handler.emit(record("there is room"))
    finally:
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_text().splitlines() == [
        "0123456789",
        "3 lines of the log are missing here: File too large",
        "there is room",
    ]


def test_our_own_log_is_rotated_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "supervisor.log"
    with opened(path) as descriptor:
        handler = LogHandler(descriptor, str(path), max_bytes=100)
        for number in range(5):
            handler.emit(record(f"{number}" * 60))
        # As the launcher of the next supervisor, or somebody with logrotate, does it.
        path.rename(tmp_path / "moved")
        handler.emit(record("after"))
        assert os.fstat(descriptor).st_ino == path.stat().st_ino
    assert path.read_text() == "after\n"
    assert (tmp_path / "moved").read_text() == "4" * 60 + "\n"
    assert (tmp_path / "supervisor.log.1").read_text() == "2" * 60 + "\n" + "3" * 60 + "\n"


@pytest.mark.parametrize("closed", [True, False])
def test_standard_streams_follow(tmp_path: Path, closed: bool) -> None:
    """A process whose standard error is the log, as clients start supervisors."""
    path = tmp_path / "supervisor.log"
    pid = os.fork()
    if pid == 0:  # pragma: no cover (the child ends here)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.dup2(descriptor, 2)
            if closed:
                os.close(1)
            else:
                os.dup2(descriptor, 1)
            os.close(descriptor)
            handler = LogHandler(2, str(path), max_bytes=10)
            handler.emit(record("the first line"))
            handler.emit(record("the second line"))
            os.write(2, b"by another way\n")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert path.read_text() == "the second line\nby another way\n"
    assert (tmp_path / "supervisor.log.1").read_text() == "the first line\n"


@pytest.mark.parametrize("closing", ["0<&- 1>&- 2>&-", "2>/dev/full"])
def test_a_supervisor_without_a_place_for_its_log(closing: str) -> None:
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory(prefix="nsm-") as directory, open(reader, "rb") as ready:
        process = subprocess.Popen(
            [
                *("/bin/sh", "-c", f'exec "$0" "$@" {closing}'),
                *(sys.executable, "-P", "-m", "nsmd", "--ready-fd", str(writer)),
            ],
            env=variables_for(Path(directory)),
            pass_fds=[writer],
        )
        os.close(writer)
        try:
            assert ready.readline() == b"\n"
            assert os.readlink(f"/proc/{process.pid}/fd/2").startswith("/dev/")
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0


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


def test_a_flood_is_shortened_and_counted() -> None:
    log = Log()
    said = log.flood(10_000)[FULL:]
    assert len(said) == 14, "one for each power of two"
    assert (
        said[0]
        == f"closing: 100% of {FULL} ({FULL + 1} like it in 0 s; most are left out from here on)"
    )
    assert f"({FULL + 8192} like it in " in said[-1]
    log.now += INTERVAL_S
    (line,) = log.flood(1)
    assert (
        line == f"closing: 100% of 0 ({10_000 - FULL} more like it are left out in the 60 s before)"
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


def test_floods_under_many_names_are_shortened_together() -> None:
    log = Log()
    for number in range(2 * MAX_KINDS):
        log.line("closing", box=f"box {number}")
    assert len(log.lines) < MAX_KINDS + FULL + 20
    log.now += INTERVAL_S
    assert log.flood(1, box="another") == ["closing: 100% of 0"]
    assert log.flood(5, box="another")[-1] == "closing: 100% of 4"
