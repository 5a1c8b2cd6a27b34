"""Run of a command under a monitor, with its result."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from nsm.dataclass import dataclass, field, replace
from nsm.wire.decode import decode
from nsmd.host.child_processes import MARGIN_S, MonitoredProcess
from nsmd.host.command_monitor import STEP_S, CommandProgress
from nsmd.host.monitor import SWEEP_S

_CHUNK_BYTES = 64 * 1024

_MAX_REPORT_BYTES = 1024 * 1024
"""Limit of a report. An `end` has at most some 150 KiB."""

OnProgress = Callable[[CommandProgress, int], None]
"""Called with the progress, and the size of the log file. It must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutcome:
    """Outcome of a run.

    Attributes:
        stdout: its output, as far as there was room.
        exit_code: exit code; None if a signal ended it, or if it was not started.
        not_started: why it was not started; else empty.
    """

    stdout: bytes = b""
    exit_code: int | None = None
    signal: int | None = None
    not_started: str = ""
    timed_out: bool = False
    overflowed: bool = False
    error: str = ""
    tail: tuple[str, ...] = ()
    progress: CommandProgress = field(default_factory=CommandProgress)
    log_bytes: int = 0


async def run_monitored(
    command: Sequence[str],
    *,
    reader: str,
    variables: Mapping[str, str],
    timeout_s: float,
    max_output_bytes: int,
    on_progress: OnProgress | None = None,
    log_fd: int | None = None,
    step_s: float = STEP_S,
    directory: str = "/",
) -> CommandOutcome:
    """Run a command to its end.

    Args:
        timeout_s: seconds; then it is stopped.
        log_fd: an open file for its log, bounded; the caller closes it.
        step_s: seconds to wait after each signal that asks it to end.

    Cancellation: stops it, and returns when it and all that it started are gone: after
    milliseconds, or a little over two steps if it ignores signals.
    """
    held = MonitoredProcess.start(
        "nsmd.host.command_monitor",
        [str(-1 if log_fd is None else log_fd), str(step_s), reader, *command],
        inherited=[] if log_fd is None else [log_fd],
        variables=variables,
        directory=directory,
        stdout=subprocess.PIPE,
        stop_s=2 * step_s + SWEEP_S + MARGIN_S,
        max_report_bytes=_MAX_REPORT_BYTES,
        what=os.path.basename(command[0]),
    )
    try:
        return await _Run(held).to_its_end(timeout_s, max_output_bytes, on_progress)
    finally:
        await held.end()


class _Run:
    """A monitor, and its reports so far."""

    def __init__(self, held: MonitoredProcess) -> None:
        assert held.process.stdout is not None
        self._held = held
        self._stdout = held.process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self._end: dict[str, Any] | None = None
        self._output: list[bytes] = []
        self._output_bytes = 0
        self._overflowed = False

    async def to_its_end(
        self, timeout_s: float, max_output_bytes: int, on_progress: OnProgress | None
    ) -> CommandOutcome:
        """Read reports until it has ended."""
        timed_out = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_output, max_output_bytes)
            with trio.move_on_after(timeout_s) as limit:
                await self._read_reports(on_progress)
            if limit.cancelled_caught:
                timed_out = True
                self._held.stop()
                with trio.move_on_after(self._held.stop_s):
                    await self._read_reports(on_progress)
            # The command and all that it started are gone, so nothing can write any more.
            nursery.cancel_scope.cancel()
        self._take_output(max_output_bytes)
        return self._ended(timed_out=timed_out)

    async def _read_reports(self, on_progress: OnProgress | None) -> None:
        while self._end is None and (report := await self._held.next_report()) is not None:
            if "end" in report:
                self._end = report["end"]
            elif on_progress is not None:
                on_progress(decode(CommandProgress, report["progress"]), report["log_bytes"])

    async def _read_output(self, limit: int) -> None:
        while self._take_output(limit):
            await trio.lowlevel.wait_readable(self._stdout.fileno())

    def _take_output(self, limit: int) -> bool:
        """Read available output; returns whether more may come."""
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
                self._held.stop()
            else:
                self._output.append(data)

    def _ended(self, *, timed_out: bool) -> CommandOutcome:
        end = self._end or {"not_started": "the process that watches it ended unexpectedly"}
        stdout, overflowed = b"".join(self._output), self._overflowed
        return replace(
            decode(CommandOutcome, end), stdout=stdout, timed_out=timed_out, overflowed=overflowed
        )
