"""The process between the supervisor and a command, Nix for example: it reads the command's log,
and ends the command with all that it started. The supervisor reads logs of builds by the same
functions: lines cleaned for people, and the progress that they tell.

It is a process of its own for two reasons. Builders leave Nix's process group and session
(`nsmd.host.monitor`). And a build may print gigabytes: reading those here leaves the supervisor's
event loop to the calls.

It needs only the standard library. Descriptor 0 is the supervisor's hold: when that is closed, the
command is stopped. Descriptor 1 is the command's standard output, untouched. It writes lines of
JSON to a third one: `{"progress": ..., "log_bytes": n}` now and then, and one `{"end": ...}`.
"""

from __future__ import annotations

import importlib
import os
import re
import select
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nsm.dataclass import dataclass
from nsmd.host.monitor import CHUNK_BYTES, Monitor
from nsmd.host.processes import signal_group


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProgress:
    """Progress of a build at one moment.

    Attributes:
        phase: of Nix: ``evaluating``, ``fetching`` (inputs of the evaluation), ``downloading``
            (packages that need no build) or ``building``. Of packages: ``resolving``,
            ``installing``, ``compiling`` or ``publishing``.
        activity: present activity, for people, e.g. ``building pandas-2.2 (checkPhase)``; may be
            empty.
        built, to_build: numbers of derivations; the second grows while Nix finds more.
        copied, to_copy: numbers of store paths from elsewhere.
    """

    phase: str = "evaluating"
    activity: str = ""
    built: int = 0
    to_build: int = 0
    copied: int = 0
    to_copy: int = 0
    downloaded_bytes: int = 0
    to_download_bytes: int = 0


MAX_LINE_CHARS = 4096
"""Largest part of a log line to keep; builders print whole files in one line."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


class LogReader:
    """Reader of the log of one command, of plain lines. What it reads may come from anybody.

    Attributes:
        error: the command's error messages; empty if there are none.
    """

    @property
    def error(self) -> str:
        return ""

    @property
    def progress(self) -> CommandProgress:
        return CommandProgress()

    def read_line(self, line: bytes) -> list[str]:
        """Read a line without its end. Returns cleaned lines for people; mostly one or none."""
        return lines_of(line.decode(errors="replace"))


def lines_of(text: str) -> list[str]:
    """Lines of a text, without empty ones, cleaned and cut."""
    # Of a progress bar that is redrawn, the last state.
    shown = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    cleaned = (clean(line).rstrip() for line in shown)
    return [line for line in cleaned if line]


def clean(text: str) -> str:
    """Remove terminal control sequences, and cut the text: only its beginning is made printable."""
    if text.isprintable():
        return text[:MAX_LINE_CHARS]
    text = _ESCAPES.sub("", text)[:MAX_LINE_CHARS].expandtabs()[:MAX_LINE_CHARS]
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


STEP_S = 2.5
"""Time for a command after each of SIGINT and SIGTERM. Nix then kills its builders, which takes
milliseconds. Both steps and the sweep fit into the daemon's deadline for its own end.
"""

TAIL_LINES = 25
"""Last lines of the log that go into errors."""

MAX_HEAD_BYTES = 4 * 1024 * 1024
"""Beginning of a log that is written at once; of the rest, only the end is written, at the end."""

MAX_END_BYTES = 256 * 1024
"""Size of the end of a longer log."""

MAX_INPUT_LINE_BYTES = 1024 * 1024
"""A longer line is cut; Nix's own lines are as long as a builder's longest."""


class Log:
    """Log of a run: its end in memory, and a bounded file.

    Args:
        descriptor: descriptor of an open, empty file; None for none.
    """

    def __init__(self, descriptor: int | None) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._descriptor = descriptor
        self._pending: list[bytes] = []
        self._taken = 0
        self._end: deque[bytes] = deque()
        self._end_bytes = 0
        self._left_out = 0
        self.written = 0

    def add(self, lines: Sequence[str]) -> None:
        """Take some lines."""
        self.tail.extend(lines)
        if self._descriptor is None:
            return
        for line in lines:
            data = line.encode(errors="replace") + b"\n"
            if self._taken + len(data) <= MAX_HEAD_BYTES and not self._end:
                self._taken += len(data)
                self._pending.append(data)
                continue
            self._end.append(data)
            self._end_bytes += len(data)
            while self._end_bytes > MAX_END_BYTES:
                gone = len(self._end.popleft())
                self._end_bytes -= gone
                self._left_out += gone

    def flush(self) -> None:
        """Write pending lines."""
        data, self._pending = b"".join(self._pending), []
        self._write(data)

    def close(self) -> None:
        """Write the rest."""
        if self._left_out:
            self._pending.append(f"[{self._left_out} bytes of the log are left out]\n".encode())
        self._pending += self._end
        self.flush()

    def _write(self, data: bytes) -> None:
        while data and self._descriptor is not None:
            try:
                count = os.write(self._descriptor, data)
            except OSError:  # the disk is full: the build continues without
                self._descriptor = None
                return
            self.written += count
            data = data[count:]


class CommandMonitor(Monitor):
    """One run of a command."""

    def __init__(
        self,
        command: Sequence[str],
        hold: int,
        report: int,
        *,
        reader: LogReader,
        log: Log,
        step_s: float,
    ) -> None:
        super().__init__(hold, report, [signal.SIGINT, signal.SIGTERM], step_s)
        self._command = command
        self._log = log
        self._reader = reader
        self._rest = b""
        self._cut = False

    def start(self, die_with_parent: Callable[[signal.Signals], None]) -> None:
        # This process has no threads, so code may run after the fork.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # If this process is killed, the command ends what it has started.
            preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509
        )
        self.pid = self._process.pid
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the output ends with the command
        assert self._process.stderr is not None
        self._errors = self._process.stderr.fileno()
        os.set_blocking(self._errors, False)
        self.outputs = {self._errors}

    def send_signal(self, number: signal.Signals) -> None:
        if self.status is None:  # not reaped yet, so the group is still its own
            signal_group(self.pid, number)

    def news(self) -> Mapping[str, Any]:
        self.has_news = False
        self._log.flush()
        return {"progress": asdict(self._reader.progress), "log_bytes": self._log.written}

    def read(self, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return True
        *lines, rest = (self._rest + data).split(b"\n")
        if self._cut and lines:  # the rest of a line whose beginning was used
            lines.pop(0)
            self._cut = False
        for line in lines:
            self._log.add(self._reader.read_line(line))
        if len(rest) > MAX_INPUT_LINE_BYTES or (rest and not data):
            if not self._cut:
                self._log.add(self._reader.read_line(rest))
            self._cut, rest = True, b""
        self._rest = b"" if self._cut else rest
        self.has_news = True
        return bool(data)

    def finish(self) -> None:
        # Its last output. A process that could not be killed may hold the pipe open.
        poll = select.poll()
        poll.register(self._errors, select.POLLIN)
        while poll.poll(0) and self.read(self._errors):
            pass
        self._log.close()
        self.send(
            {
                "end": {
                    **self.how_it_ended(),
                    "error": self._reader.error,
                    "tail": list(self._log.tail),
                    "log_bytes": self._log.written,
                    "progress": asdict(self._reader.progress),
                }
            }
        )


def main() -> None:
    """`... REPORT_FD LOG_FD STEP_S READER PROGRAM ARGUMENT...`; a LOG_FD of -1 means none.

    READER is `MODULE:CLASS` of a `LogReader`.
    """
    report, log, step_s, named, *command = sys.argv[1:]
    for text in (report, log):
        if int(text) >= 0:
            os.set_inheritable(int(text), False)
    kept = Log(int(log) if int(log) >= 0 else None)
    module, _, name = named.partition(":")
    reader: LogReader = getattr(importlib.import_module(module), name)()
    monitor = CommandMonitor(command, 0, int(report), reader=reader, log=kept, step_s=float(step_s))
    monitor.run()
