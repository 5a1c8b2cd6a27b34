"""Jobs of sessions: the part of `nsm.AsyncClient` that starts and finds them, and their handles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client import job_steps
from nsm.client.async_steps import AsyncCalls
from nsm.client.job_steps import COLLECT_BYTES, WAIT_S, Collected, JobHandle
from nsm.client.projects import ProjectCalls
from nsm.wire.files import PIECE_BYTES
from nsm.wire.jobs import chunks_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import Unpack

    from nsm.client.job_steps import JobResult, JobSettings
    from nsm.wire.jobs import JobChunk, JobInfo, JobOutput, StartedJob
    from nsm.wire.messages import Hello


class AsyncJobCalls(AsyncCalls, ProjectCalls):
    """Calls about jobs. `nsm.AsyncClient` is one of these."""

    server: Hello | None

    async def exec(
        self, session: str, argv: Sequence[str], **settings: Unpack[JobSettings]
    ) -> AsyncJob:
        """Start a program in a session, beside its interpreter; see `nsm.Client.exec`.

        Cancellation: the program may have been started.
        """
        inherit = self.server.inherit if self.server else ()
        started = await self.carry_out(job_steps.start(self, session, argv, settings, inherit))
        job = AsyncJob(self, started.session.id, started.job, started)
        stdin = settings.get("stdin")
        if isinstance(stdin, bytes) and stdin:
            await job.feed(stdin)
        return job

    async def job(self, session: str, job_id: str) -> AsyncJob:
        """The handle of a job that somebody has started; see `nsm.Client.job`."""
        return AsyncJob(self, session, await self.carry_out(job_steps.find(session, job_id)))

    async def jobs(self, session: str) -> list[JobInfo]:
        """The jobs of a session that run, and the last ones that have ended, oldest first."""
        return await self.carry_out(job_steps.list_all(session))


class AsyncJob(JobHandle):
    """A handle of a job, as `nsm.client.jobs.Job`; each method is awaited.

    Several tasks may use it, one reads and another writes.

    Attributes:
        id: unique in its session.
        session: id of its session.
        info: the job, when something was last heard of it.
        offset: where `read` and iterating go on.
        started: its session, when `exec` started it; None for a handle that was asked for later.
    """

    def __init__(
        self, client: AsyncCalls, session: str, info: JobInfo, started: StartedJob | None = None
    ) -> None:
        super().__init__(session, info, started)
        self._client = client

    async def read(self, *, wait_s: float = 0.0, max_bytes: int = PIECE_BYTES) -> JobOutput:
        """Read what comes next of the output."""
        return await self._client.carry_out(self._read(wait_s, max_bytes))

    async def __aiter__(self) -> AsyncIterator[JobChunk]:
        """Iterate over the output, from `offset` on, until the job has ended."""
        while True:
            output = await self.read(wait_s=WAIT_S)
            for chunk in chunks_of(output):
                yield chunk
            if output.is_last:
                return

    async def collect(self, *, max_bytes: int = COLLECT_BYTES) -> JobResult:
        """Wait for the end, and return the output from `offset` on."""
        collected = Collected(max_bytes)
        async for chunk in self:
            collected.add(chunk)
        return collected.result(self.info)

    async def wait(self, timeout_s: float | None = None) -> JobInfo:
        """Wait until the job has ended, or the time is over."""
        return await self._client.carry_out(self._wait(timeout_s))

    async def write(self, data: bytes) -> None:
        """Give it input; returns when all of it has been taken."""
        await self._client.carry_out(self._write(data))

    async def feed(self, data: bytes) -> None:
        """Give it its whole input, as much of it as it reads."""
        await self._client.carry_out(self._feed(data))

    async def close_stdin(self) -> None:
        """End its input. In a terminal this is Ctrl-D, which the program may take otherwise."""
        await self._client.carry_out(self._close_stdin())

    async def signal(self, signal: str | int) -> None:
        """Send a signal to its process group, by number or name (``TERM``)."""
        steps = self._change("job_signal", signal=str(signal))
        await self._client.carry_out(steps)

    async def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C in a terminal does."""
        await self.signal("INT")

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        await self._client.carry_out(self._change("job_resize", rows=rows, columns=columns))

    async def stop(self, *, grace_s: float | None = None) -> JobInfo:
        """Interrupt it, have it end, and kill it if it does not; returns when it has ended."""
        return await self._client.carry_out(self._stop(grace_s))
