"""Starts a program under a monitor, and gives what came of it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio

from nsmd.nix.monitor import STEP_S, SWEEP_S
from nsmd.nix.progress import Progress

log = logging.getLogger(__name__)

MARGIN_S = 1.0
"""For a monitor to end, beyond what it takes at most by itself."""

_CHUNK_BYTES = 64 * 1024

_MAX_REPORT_BYTES = 1024 * 1024
"""An `end` is some 150 KiB at most. A line that is longer comes from something broken."""

_START = "import sys; sys.path.append(sys.argv.pop(1)); from nsmd.nix.monitor import main; main()"
"""Isolated and without `site`, for a quick start; where the package lies is named."""

_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

OnProgress = Callable[[Progress, int], None]
"""Called with the progress, and the bytes of the log that are in its file. It must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What came of a run.

    Attributes:
        stdout: what it printed, as far as there was room.
        exit_code: None where a signal ended it, or it was not started.
        signal: that ended it.
        not_started: why it was not; empty where it was.
        timed_out, overflowed: why it was stopped, if it was.
        error: nix's own words.
        tail: last lines of its log.
        progress: how far it came.
        log_bytes: in the file of its log.
    """

    stdout: bytes = b""
    exit_code: int | None = None
    signal: int | None = None
    not_started: str = ""
    timed_out: bool = False
    overflowed: bool = False
    error: str = ""
    tail: tuple[str, ...] = ()
    progress: Progress = field(default_factory=Progress)
    log_bytes: int = 0


async def run_monitored(
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    timeout_s: float,
    max_output_bytes: int,
    on_progress: OnProgress | None = None,
    log_fd: int | None = None,
    step_s: float = STEP_S,
    directory: str = "/",
) -> Ended:
    """Run nix to its end.

    Args:
        command: program and arguments.
        variables: all of its environment.
        timeout_s: seconds; then it is stopped.
        max_output_bytes: of its standard output; beyond, it is stopped.
        log_fd: an open file that takes its log, bounded; stays the caller's.
        step_s: seconds that it has for each signal that asks it to end.
        directory: its working directory.

    Cancellation: stops nix, and returns when it and all it started are gone: after milliseconds,
        or two steps and some where it heeds no signal.
    """
    run = _Run.start(command, variables, log_fd, step_s, directory)
    try:
        return await run.to_its_end(timeout_s, max_output_bytes, on_progress)
    finally:
        run.stop()
        with trio.CancelScope(shield=True):
            await run.gone()
        run.close()


class _Run:
    """A monitor, and our ends of its pipes."""

    def __init__(self, monitor: subprocess.Popen[bytes], report: int, step_s: float) -> None:
        assert monitor.stdin is not None
        assert monitor.stdout is not None
        self._monitor = monitor
        self._pidfd = os.pidfd_open(monitor.pid)
        self._hold = monitor.stdin
        self._stdout = monitor.stdout
        self._report = report
        self._stop_s = 2 * step_s + SWEEP_S + MARGIN_S
        for descriptor in (report, self._stdout.fileno()):
            os.set_blocking(descriptor, False)
        self._end: dict[str, Any] | None = None
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._overflowed = False

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        variables: Mapping[str, str],
        log_fd: int | None,
        step_s: float,
        directory: str,
    ) -> _Run:
        """Start a monitor that starts the command."""
        report, reports = os.pipe()
        inherited = [reports] if log_fd is None else [reports, log_fd]
        numbers = [str(reports), str(-1 if log_fd is None else log_fd), str(step_s)]
        try:
            monitor = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, _PACKAGES, *numbers, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=directory,
                env=dict(variables),
                pass_fds=inherited,
                start_new_session=True,
                umask=0o022,  # as nix expects; its builders inherit it
            )
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(reports)
        return cls(monitor, report, step_s)

    def __repr__(self) -> str:
        return f"<run of nix, monitor pid={self._monitor.pid}>"

    async def to_its_end(
        self, timeout_s: float, max_output_bytes: int, on_progress: OnProgress | None
    ) -> Ended:
        """Read what it says until it has ended."""
        timed_out = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_output, max_output_bytes)
            with trio.move_on_after(timeout_s) as limit:
                await self._read_reports(on_progress)
            if limit.cancelled_caught:
                timed_out = True
                self.stop()
                with trio.move_on_after(self._stop_s):
                    await self._read_reports(on_progress)
            # Nix and all it started are gone, and with them all that can write.
            nursery.cancel_scope.cancel()
        self._take_output(max_output_bytes)
        return self._ended(timed_out=timed_out)

    def stop(self) -> None:
        """Ask for its end; harmless when it has ended."""
        self._hold.close()

    async def gone(self) -> None:
        """Wait until it has ended; kill it where it does not."""
        with trio.move_on_after(self._stop_s) as bound:
            await trio.lowlevel.wait_readable(self._pidfd)
        if bound.cancelled_caught:
            log.error("%r did not end and is killed", self)
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await trio.lowlevel.wait_readable(self._pidfd)
        self._monitor.wait()

    def close(self) -> None:
        """Give the descriptors back."""
        self._stdout.close()
        os.close(self._report)
        os.close(self._pidfd)

    async def _read_reports(self, on_progress: OnProgress | None) -> None:
        rest = b""
        while self._end is None:
            await trio.lowlevel.wait_readable(self._report)
            with suppress(BlockingIOError):
                data = os.read(self._report, _CHUNK_BYTES)
                if not data or len(rest) > _MAX_REPORT_BYTES:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take_report(json.loads(line), on_progress)

    def _take_report(self, report: Mapping[str, Any], on_progress: OnProgress | None) -> None:
        if "end" in report:
            self._end = report["end"]
        elif on_progress is not None:
            on_progress(Progress.from_plain(report["progress"]), report["log_bytes"])

    async def _read_output(self, limit: int) -> None:
        while self._take_output(limit):
            await trio.lowlevel.wait_readable(self._stdout.fileno())

    def _take_output(self, limit: int) -> bool:
        """Read what is there; whether more may come."""
        while True:
            try:
                data = os.read(self._stdout.fileno(), _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._output_bytes += len(data)
            if self._output_bytes > limit:
                self._overflowed = True
                self.stop()
            else:
                self._output.append(data)

    def _ended(self, *, timed_out: bool) -> Ended:
        end = self._end or {"not_started": "the process that watches it ended unexpectedly"}
        return Ended(
            stdout=b"".join(self._output),
            exit_code=end.get("exit_code"),
            signal=end.get("signal"),
            not_started=end.get("not_started", ""),
            timed_out=timed_out,
            overflowed=self._overflowed,
            error=end.get("error", ""),
            tail=tuple(end.get("tail", ())),
            progress=Progress.from_plain(end.get("progress", {})),
            log_bytes=end.get("log_bytes", 0),
        )
