"""Jobs of sessions: the part of `nsm.AsyncClient` that starts and finds them, and their handles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from nsm.client import jobs, operations
from nsm.client.projects import DEFAULT, AsyncProjectCalls
from nsm.wire.answers import read
from nsm.wire.errors import JobError
from nsm.wire.jobs import JobInfo, JobOutput, StartedJob, WrittenInput, chunks_of
from nsm.wire.sessions import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from typing import Any

    from nsm.client.jobs import JobResult, TerminalSize
    from nsm.client.projects import ProjectArgument
    from nsm.wire.jobs import JobChunk
    from nsm.wire.messages import Hello
    from nsm.wire.results import SessionRef


class AsyncJobCalls(AsyncProjectCalls):
    """Calls about jobs. `nsm.AsyncClient` is one of these."""

    server: Hello | None

    async def call(self, op: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        """Any operation: the client's part."""
        raise NotImplementedError

    async def exec(
        self,
        session: str,
        argv: Sequence[str],
        *,
        env: str = "",
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        stdin: bytes | bool = False,
        tty: TerminalSize | None = None,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
        project: ProjectArgument = DEFAULT,
        mount_point: str | None = None,
        project_mode: str | None = None,
        network: str | None = None,
        existing: bool = False,
    ) -> AsyncJob:
        """Start a program in a session, beside its interpreter; see `nsm.Client.exec`.

        Cancellation: the program may have been started.
        """

        def arguments(**given: Any) -> dict[str, Any]:
            where = operations.where_arguments(
                env=env,
                session=session,
                mount_point=mount_point,
                project_mode=project_mode,
                network=network,
                existing=existing,
                inherit=self.server.inherit if self.server else (),
                **given,
            )
            return jobs.start_arguments(
                argv,
                where,
                cwd=cwd,
                environ=environ,
                stdin=stdin,
                tty=tty,
                timeout_s=timeout_s,
                wait_s=wait_s,
            )

        wire = await self.call_in(
            project, project_mode, lambda args: self.call("job_start", args), arguments
        )
        started = read(StartedJob, wire)
        job = AsyncJob(self, started.session.id, started.job)
        job.began(started)
        if isinstance(stdin, bytes) and stdin:
            await job.feed(stdin)
        return job

    async def job(self, session: str, job_id: str) -> AsyncJob:
        """The handle of a job that somebody has started; see `nsm.Client.job`."""
        args = {"target": session, "job": job_id, "bytes": 0}
        return AsyncJob(self, session, read(JobInfo, await self.call("job_read", args), "job"))

    async def jobs(self, session: str) -> list[JobInfo]:
        """The jobs of a session that run, and the last ones that have ended, oldest first."""
        return read(list[JobInfo], await self.call("job_list", {"target": session}), "jobs")


class AsyncJob:
    """A handle of a job, as `nsm.client.jobs.Job`; each method is awaited.

    Several tasks may use it, one reads and another writes.

    Attributes:
        id: unique in its session.
        session: id of its session.
        info: the job, when something was last heard of it.
        offset: where `read` and iterating go on.
        started: its session, when `exec` started it; None for a handle that was asked for later.
    """

    def __init__(self, client: AsyncJobCalls, session: str, info: JobInfo) -> None:
        self._client = client
        self.id = info.id
        self.session = session
        self.info = info
        self.offset = 0
        self.started: SessionRef | None = None
        self._first: JobOutput | None = None

    def began(self, started: StartedJob) -> None:
        """Take what came with the answer to its start."""
        self.started, self._first = started.session, started.first

    def __repr__(self) -> str:
        return f"<nsm.AsyncJob {self.id} of {self.session} {' '.join(self.info.argv):.40}>"

    async def _call(self, op: str, **args: Any) -> dict[str, Any]:
        return await self._client.call(op, {"target": self.session, "job": self.id, **args})

    async def read(self, *, wait_s: float = 0.0, max_bytes: int = PIECE_BYTES) -> JobOutput:
        """Read what comes next of the output."""
        output, self._first = self._first, None
        if output is None or output.offset - output.missing != self.offset or not max_bytes:
            args = jobs.read_arguments(self.offset, wait_s, max_bytes)
            output = read(JobOutput, await self._call("job_read", **args))
        self.info, self.offset = output.job, output.next_offset
        return output

    async def __aiter__(self) -> AsyncIterator[JobChunk]:
        """Iterate over the output, from `offset` on, until the job has ended."""
        while True:
            output = await self.read(wait_s=jobs.WAIT_S)
            for chunk in chunks_of(output):
                yield chunk
            if output.is_last:
                return

    async def collect(self, *, max_bytes: int | None = None) -> JobResult:
        """Wait for the end, and return the output from `offset` on."""
        collected = jobs.Collected(jobs.COLLECT_BYTES if max_bytes is None else max_bytes)
        async for chunk in self:
            collected.add(chunk)
        return collected.result(self.info)

    async def wait(self, timeout_s: float = math.inf) -> JobInfo:
        """Wait until the job has ended, or the time is over."""
        limit_s = trio.current_time() + timeout_s
        while self.info.running:
            wait_s = min(jobs.WAIT_S, max(0.0, limit_s - trio.current_time()))
            await self._tell("job_read", offset=0, bytes=0, wait_s=wait_s)
            if trio.current_time() >= limit_s:
                break
        return self.info

    async def _tell(self, op: str, **args: Any) -> None:
        self.info = read(JobInfo, await self._call(op, **args), "job")

    async def write(self, data: bytes) -> None:
        """Give it input; returns when all of it has been taken."""
        for piece in jobs.input_pieces(data):
            args = piece
            while True:
                written = read(WrittenInput, await self._call("job_write", **args))
                self.info = written.job
                if written.taken >= len(args["data"]):
                    break
                args = jobs.next_piece(args, written.taken)

    async def feed(self, data: bytes) -> None:
        """Give it its whole input, as much of it as it reads."""
        try:
            await self.write(data)
            await self.close_stdin()
        except JobError as error:
            if not jobs.reads_no_more(error):
                raise

    async def close_stdin(self) -> None:
        """End its input. In a terminal this is Ctrl-D, which the program may take otherwise."""
        await self._tell("job_write", **jobs.end_arguments())

    async def signal(self, signal: str | int) -> None:
        """Send a signal to its process group, by number or name (``TERM``)."""
        await self._tell("job_signal", signal=str(signal))

    async def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C in a terminal does."""
        await self.signal("INT")

    async def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        await self._tell("job_resize", rows=rows, columns=columns)

    async def stop(self, *, grace_s: float | None = None) -> JobInfo:
        """Interrupt it, have it end, and kill it if it does not; returns when it has ended."""
        await self._tell("job_stop", **({} if grace_s is None else {"grace_s": grace_s}))
        return await self.wait()
