"""The process between the supervisor and nix: reads nix's log, and ends nix and all it started.

It is a process of its own for two reasons. Builders leave nix's process group and session, see
`nsmd.host.monitors`. And a build may print gigabytes: reading those here leaves the supervisor's
event loop to the calls.

It needs nothing but the standard library. Descriptor 0 is the supervisor's hold: when that is
closed, nix is stopped. Descriptor 1 is nix's standard output, untouched. To a third one go lines of
JSON: `{"progress": ..., "log_bytes": n}` now and then, and one `{"end": ...}`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nsmd.environments.nix.messages import Reader
from nsmd.host.monitors.process_tree import (
    Ladder,
    adopt_orphans,
    reap_orphans,
    sweep,
    watch_signals,
)

REPORT_INTERVAL_S = 0.2
"""At most so often: a person reads it."""

STEP_S = 2.5
"""How long nix has for each of SIGINT and SIGTERM. It answers them by killing its builders, which
takes milliseconds; both steps and the sweep fit into the daemon's deadline for its own end."""

TAIL_LINES = 25
"""Last lines of the log that go into errors."""

MAX_HEAD_BYTES = 4 * 1024 * 1024
"""Of a log that are written as they come; of what follows, the end is written at the end."""

MAX_END_BYTES = 256 * 1024
"""The end of a log that is longer than that."""

MAX_INPUT_LINE_BYTES = 1024 * 1024
"""A longer line is cut; nix's own are as long as a builder's longest."""

CHUNK_BYTES = 64 * 1024


class Log:
    """The log of a run: its end in memory, and bounded in a file.

    Args:
        descriptor: of an open, empty file; None for none.
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
        """Write what waits."""
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
            except OSError:  # the disk is full: the build goes on without
                self._descriptor = None
                return
            self.written += count
            data = data[count:]


class Monitor:
    """One run of nix.

    Args:
        command: nix and its arguments.
        hold: becomes readable when the supervisor no longer wants it.
        report: a descriptor for reports.
        log: takes the log.
        step_s: as `STEP_S`.
    """

    def __init__(
        self, command: Sequence[str], hold: int, report: int, log: Log, step_s: float
    ) -> None:
        self._command = command
        self._hold = hold
        self._report = report
        self._log = log
        self._ladder = Ladder([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], step_s)
        self._reader = Reader()
        self._rest = b""
        self._cut = False
        self._next_report_s = 0.0
        self._changed = False

    def run(self) -> None:
        """Start nix, watch it to its end, and tell of it."""
        wake = watch_signals()
        die_with_parent = adopt_orphans()
        try:
            # Without threads, so that running code after the fork is safe.
            nix = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                # Should this process be killed, nix ends its builders.
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),  # noqa: PLW1509
            )
        except OSError as error:
            self._send({"end": {"not_started": str(error)}})
            return
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the output ends with nix
        assert nix.stderr is not None
        errors = nix.stderr.fileno()
        os.set_blocking(errors, False)
        pidfd = os.pidfd_open(nix.pid)
        self._watch(nix, pidfd, errors, wake)
        sweep()
        self._drain(errors)
        self._log.close()
        self._send({"end": self._end(nix.returncode)})

    def _watch(self, nix: subprocess.Popen[bytes], pidfd: int, errors: int, wake: int) -> None:
        """Read the log until nix has ended, and stop it when that is asked for."""
        poll = select.poll()
        for descriptor in (self._hold, pidfd, errors, wake):
            poll.register(descriptor, select.POLLIN)
        while True:
            now = time.monotonic()
            if number := self._ladder.step(now):
                with suppress(ProcessLookupError):
                    os.killpg(nix.pid, number)  # not reaped yet, so still its own
            due_s = min(self._ladder.due_s, self._next_report_s if self._changed else float("inf"))
            timeout = None if due_s == float("inf") else max(0.0, due_s - now) * 1000
            ready = {descriptor for descriptor, _ in poll.poll(timeout)}
            if errors in ready and not self._read(errors):
                poll.unregister(errors)
            if pidfd in ready:
                nix.wait()
                return
            asked = self._hold in ready
            if asked:
                poll.unregister(self._hold)
            if wake in ready:
                numbers = set(os.read(wake, CHUNK_BYTES))
                asked = asked or bool(numbers - {signal.SIGCHLD})
                if signal.SIGCHLD in numbers:
                    reap_orphans(nix.pid)
            if asked:
                self._ladder.begin(now)
            self._report_progress()

    def _read(self, errors: int) -> bool:
        """Read what is there of the log; whether more may come."""
        try:
            data = os.read(errors, CHUNK_BYTES)
        except BlockingIOError:
            return True
        *lines, rest = (self._rest + data).split(b"\n")
        if self._cut and lines:  # the rest of a line whose beginning was taken
            lines.pop(0)
            self._cut = False
        for line in lines:
            self._log.add(self._reader.take(line))
        if len(rest) > MAX_INPUT_LINE_BYTES or (rest and not data):
            if not self._cut:
                self._log.add(self._reader.take(rest))
            self._cut, rest = True, b""
        self._rest = b"" if self._cut else rest
        self._changed = True
        return bool(data)

    def _drain(self, errors: int) -> None:
        """Read nix's last output. A process that could not be killed may hold the pipe open."""
        poll = select.poll()
        poll.register(errors, select.POLLIN)
        while poll.poll(0) and self._read(errors):
            pass

    def _report_progress(self) -> None:
        now = time.monotonic()
        if not self._changed or now < self._next_report_s:
            return
        self._changed = False
        self._next_report_s = now + REPORT_INTERVAL_S
        self._log.flush()
        progress = self._reader.progress.to_plain()
        os.set_blocking(self._report, False)
        try:
            self._send({"progress": progress, "log_bytes": self._log.written})
        finally:
            os.set_blocking(self._report, True)

    def _end(self, returncode: int) -> dict[str, Any]:
        return {
            "exit_code": returncode if returncode >= 0 else None,
            "signal": -returncode if returncode < 0 else None,
            "stopped": self._ladder.begun,
            "error": self._reader.error,
            "tail": list(self._log.tail),
            "log_bytes": self._log.written,
            "progress": self._reader.progress.to_plain(),
        }

    def _send(self, report: dict[str, Any]) -> None:
        data = json.dumps(report).encode() + b"\n"
        try:
            # Of progress, shorter than PIPE_BUF: all of it, or none (pipe(7)).
            while data:
                data = data[os.write(self._report, data) :]
        except (BlockingIOError, BrokenPipeError):
            pass  # nobody reads now, or any more


def main() -> None:
    """`... REPORT_FD LOG_FD STEP_S PROGRAM ARGUMENT...`; a LOG_FD of -1 means none."""
    report, log, step_s, *command = sys.argv[1:]
    for text in (report, log):
        if int(text) >= 0:
            os.set_inheritable(int(text), False)
    kept = Log(int(log) if int(log) >= 0 else None)
    Monitor(command, 0, int(report), kept, float(step_s)).run()
