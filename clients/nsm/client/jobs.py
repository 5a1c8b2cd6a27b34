"""Handles of jobs of the blocking client: programs that run in sessions beside interpreters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client.job_steps import COLLECT_BYTES, WAIT_S, Collected, JobHandle
from nsm.wire.files import PIECE_BYTES
from nsm.wire.jobs import chunks_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsm.client.job_steps import JobResult
    from nsm.client.steps import Calls
    from nsm.wire.jobs import JobChunk, JobInfo, JobOutput, StartedJob


class Job(JobHandle):
    """A handle of a job. Another one, also in another process, is `nsm.Client.job`.

    Attributes:
        id: unique in its session.
        session: id of its session.
        info: the job, when something was last heard of it.
        offset: where `read` and iterating go on.
        started: its session, when `exec` started it; None for a handle that was asked for later.
    """

    def __init__(
        self, client: Calls, session: str, info: JobInfo, started: StartedJob | None = None
    ) -> None:
        super().__init__(session, info, started)
        self._client = client

    def read(self, *, wait_s: float = 0.0, max_bytes: int = PIECE_BYTES) -> JobOutput:
        """Read what comes next of the output.

        Args:
            wait_s: how long to wait if there is nothing, seconds; at most a minute.
            max_bytes: 0 to wait for the end of the job only.
        """
        return self._client.carry_out(self._read(wait_s, max_bytes))

    def __iter__(self) -> Iterator[JobChunk]:
        """Iterate over the output, from `offset` on, until the job has ended.

        As long as somebody reads, nothing is lost: the job waits, if it prints faster.
        """
        while True:
            output = self.read(wait_s=WAIT_S)
            yield from chunks_of(output)
            if output.is_last:
                return

    def collect(self, *, max_bytes: int = COLLECT_BYTES) -> JobResult:
        """Wait for the end, and return the output from `offset` on.

        Args:
            max_bytes: to be kept of both streams together; the end of the output is left out.
        """
        collected = Collected(max_bytes)
        for chunk in self:
            collected.add(chunk)
        return collected.result(self.info)

    def wait(self, timeout_s: float | None = None) -> JobInfo:
        """Wait until the job has ended.

        Args:
            timeout_s: seconds; None to wait as long as it takes.

        Returns:
            The job; its `running` is true if the time was over first.
        """
        return self._client.carry_out(self._wait(timeout_s))

    def write(self, data: bytes) -> None:
        """Give it input; returns when all of it has been taken.

        Raises:
            JobError: it does not read its input any more, or was started without one.
        """
        self._client.carry_out(self._write(data))

    def feed(self, data: bytes) -> None:
        """Give it its whole input, as much of it as it reads."""
        self._client.carry_out(self._feed(data))

    def close_stdin(self) -> None:
        """End its input. In a terminal this is Ctrl-D, which the program may take otherwise."""
        self._client.carry_out(self._close_stdin())

    def signal(self, signal: str | int) -> None:
        """Send a signal to its process group, by number or name (``TERM``)."""
        self._client.carry_out(self._change("job_signal", signal=str(signal)))

    def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C in a terminal does."""
        self.signal("INT")

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self._client.carry_out(self._change("job_resize", rows=rows, columns=columns))

    def stop(self, *, grace_s: float | None = None) -> JobInfo:
        """Interrupt it, have it end, and kill it if it does not, then all that it has started.

        Of a job that has ended, this kills what it has left behind.

        Args:
            grace_s: seconds until the kill; None for the configured time.

        Returns:
            The job, which has ended.
        """
        return self._client.carry_out(self._stop(grace_s))
