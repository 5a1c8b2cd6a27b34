"""The log: whatever becomes of where it goes, logging neither raises nor blocks."""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import variables_for
from nsmd.host.logs import LogHandler

if TYPE_CHECKING:
    from collections.abc import Generator


def record(text: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("nsmd.test", logging.INFO, "file", 1, text, args, None)


@contextmanager
def opened(path: Path) -> Generator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_lines(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as descriptor:
        handler = LogHandler(descriptor, "/elsewhere")
        handler.emit(record("one %d", 1))
        handler.emit(record("wrong %d", "x"))
        handler.emit(record("\udc80 and " + "x" * 10_000))
    first, wrong, long = (tmp_path / "log").read_text().splitlines()
    assert first == "one 1"
    assert wrong.startswith("INFO nsmd.test: 'wrong %d' (cannot be put: TypeError")
    assert long == "\\udc80 and " + "x" * 10_000


def test_one_that_cannot_be_set_aside_goes_on(tmp_path: Path) -> None:
    """A directory that was made read-only does the same: lines still have a place, if too large a
    one.
    """
    path = tmp_path / "supervisor.log"
    (tmp_path / "supervisor.log.1").mkdir()
    with opened(path) as descriptor:
        handler = LogHandler(descriptor, str(path), max_bytes=10)
        for number in range(5):
            handler.emit(record("a line, number %d", number))
        assert handler.lost == 0
    assert len(path.read_text().splitlines()) == 5


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


def test_a_reader_that_is_gone() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        handler = LogHandler(ours.fileno(), "/elsewhere")
        handler.emit(record("lost"))
        handler.emit(record("lost"))
    assert handler.lost == 2
    handler.emit(record("closed altogether"))
    assert handler.lost == 3


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


def test_another_file_is_not_ours_to_rotate(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    with opened(path) as descriptor:
        handler = LogHandler(descriptor, str(tmp_path / "supervisor.log"), max_bytes=10)
        for _ in range(3):
            handler.emit(record("x" * 60))
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


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
