"""Jobs: programs that run in sessions beside their interpreters. Their start, and their handles."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, TypedDict

from nsm.client import places
from nsm.client.steps import Async, AsyncPart, Blocking, BlockingPart, Calls, ask, method
from nsm.wire import jobs as wire
from nsm.wire.code import RunOptions
from nsm.wire.errors import BadRequestError, JobError
from nsm.wire.jobs import JobInfo, JobOutput, StartedJob, chunks_of
from nsm.wire.operation import PIECE_BYTES
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from nsm.client.places import ProjectCalls
    from nsm.client.steps import Steps
    from nsm.wire.code import Place, SessionRef
    from nsm.wire.jobs import JobChunk
    from nsm.wire.operation import OperationCall

    TerminalSize: TypeAlias = tuple[int, int]
    """Rows and columns."""

WAIT_S = 30.0
"""Time that one request waits for something to happen; then it is asked again."""

COLLECT_BYTES = 16 * 1024 * 1024
"""Output that `collect` keeps by default."""


class ProgramSettings(TypedDict, total=False):
    """Settings of a program; `nsm.Client.exec` describes them."""

    cwd: str | None
    environ: Mapping[str, str] | None
    stdin: bytes | bool
    tty: TerminalSize | None
    timeout_s: float | None
    wait_s: float


class JobSettings(ProgramSettings, places.PlaceSettings, total=False):
    """Settings of a program, and of the session that it is started in."""


class JobResult(NamedTuple):
    """A job that has ended, with its output.

    Attributes:
        missing: bytes of output that are not here: lost, or more than was to be kept.
        info: its exit code, what it used, and how it ended.
    """

    stdout: bytes
    stderr: bytes
    exit_code: int
    missing: int
    info: JobInfo


class JobMethods(Calls):
    """A handle of a job. Another one, also in another process, is `nsm.Client.job`.

    Attributes:
        id: unique in its session.
        session: id of its session.
        info: the job, when something was last heard of it.
        offset: where `read` and iterating go on.
        started: its session, when `exec` started it; None for a handle that was asked for later.
    """

    def _begin(self, session: str, info: JobInfo, started: StartedJob | None) -> None:
        self.id = info.id
        self.session = session
        self.info = info
        self.offset = 0
        self.started: SessionRef | None = None if started is None else started.session
        self._first: JobOutput | None = None if started is None else started.first

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<nsm.{name} {self.id} of {self.session} {' '.join(self.info.argv):.40}>"

    @method
    def read(self, *, wait_s: float = 0.0, max_bytes: int = PIECE_BYTES) -> Steps[JobOutput]:
        """Read what comes next of the output.

        Args:
            wait_s: how long to wait if there is nothing, seconds; at most a minute.
            max_bytes: 0 to wait for the end of the job only.
        """
        return (yield from self._read(wait_s, max_bytes))

    def _read(self, wait_s: float, max_bytes: int = PIECE_BYTES) -> Steps[JobOutput]:
        output, self._first = self._first, None
        if output is None or output.offset - output.missing != self.offset or not max_bytes:
            call = wire.job_read(
                *(self.session, self.id),
                offset=self.offset,
                wait_s=wait_s,
                bytes=max_bytes,
                hold=max_bytes > 0,
            )
            output = yield from ask(call)
        self.info, self.offset = output.job, output.next_offset
        return output

    @method
    def collect(self, *, max_bytes: int = COLLECT_BYTES) -> Steps[JobResult]:
        """Wait for the end, and return the output from `offset` on.

        Args:
            max_bytes: to be kept of both streams together; the end of the output is left out.
        """
        collected = Collected(max_bytes)
        while True:
            output = yield from self._read(WAIT_S)
            for chunk in chunks_of(output):
                collected.add(chunk)
            if output.is_last:
                return collected.result(self.info)

    @method
    def wait(self, timeout_s: float | None = None) -> Steps[JobInfo]:
        """Wait until the job has ended.

        Args:
            timeout_s: seconds; None to wait as long as it takes.

        Returns:
            The job; its `running` is true if the time was over first.
        """
        return (yield from self._wait(timeout_s))

    def _wait(self, timeout_s: float | None = None) -> Steps[JobInfo]:
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        while self.info.running:
            wait_s = WAIT_S if limit is None else min(WAIT_S, max(0.0, limit - time.monotonic()))
            call = wire.job_read(self.session, self.id, bytes=0, wait_s=wait_s)
            self.info = (yield from ask(call)).job
            if limit is not None and time.monotonic() >= limit:
                break
        return self.info

    @method
    def write(self, data: bytes) -> Steps[None]:
        """Give it input; returns when all of it has been taken.

        Raises:
            JobError: it does not read its input any more, or was started without one.
        """
        yield from self._write(data)

    def _write(self, data: bytes) -> Steps[None]:
        for start in range(0, len(data), PIECE_BYTES):
            piece = bytes(data[start : start + PIECE_BYTES])
            while piece:
                call = wire.job_write(
                    self.session, self.id, piece, wait_s=WAIT_S, write_id=_fresh_id()
                )
                written = yield from ask(call)
                self.info = written.job
                piece = piece[written.taken :]

    @method
    def feed(self, data: bytes) -> Steps[None]:
        """Give it its whole input, as much of it as it reads."""
        try:
            yield from self._write(data)
            yield from self._close_stdin()
        except JobError as error:
            if error.data.get("errno") != "EPIPE":  # it reads none, or no more
                raise

    @method
    def close_stdin(self) -> Steps[None]:
        """End its input. In a terminal this is Ctrl-D, which the program may take otherwise."""
        yield from self._close_stdin()

    def _close_stdin(self) -> Steps[None]:
        call = wire.job_write(self.session, self.id, eof=True, write_id=_fresh_id())
        self.info = (yield from ask(call)).job

    @method
    def signal(self, signal: str | int) -> Steps[None]:
        """Send a signal to its process group, by number or name (``TERM``)."""
        self.info = yield from ask(wire.job_signal(self.session, self.id, str(signal)))

    @method
    def interrupt(self) -> Steps[None]:
        """Interrupt it, as Ctrl-C in a terminal does."""
        self.info = yield from ask(wire.job_signal(self.session, self.id, "INT"))

    @method
    def resize(self, rows: int, columns: int) -> Steps[None]:
        """Change the size of its terminal."""
        self.info = yield from ask(wire.job_resize(self.session, self.id, rows, columns))

    @method
    def stop(self, *, grace_s: float | None = None) -> Steps[JobInfo]:
        """Interrupt it, have it end, and kill it if it does not, then all that it has started.

        Of a job that has ended, this kills what it has left behind.

        Args:
            grace_s: seconds until the kill; None for the configured time.

        Returns:
            The job, which has ended.
        """
        self.info = yield from ask(wire.job_stop(self.session, self.id, grace_s))
        return (yield from self._wait())


class Job(JobMethods, BlockingPart):
    __doc__ = JobMethods.__doc__

    def __init__(
        self, client: Blocking, session: str, info: JobInfo, started: StartedJob | None = None
    ) -> None:
        super().__init__(client)
        self._begin(session, info, started)

    def __iter__(self) -> Iterator[JobChunk]:
        """Iterate over the output, from `offset` on, until the job has ended.

        As long as somebody reads, nothing is lost: the job waits, if it prints faster.
        """
        while True:
            output = self.read(wait_s=WAIT_S)
            yield from chunks_of(output)
            if output.is_last:
                return


class AsyncJob(JobMethods, AsyncPart):
    """A handle of a job, as `nsm.Job`; each method is awaited.

    Several tasks may use it, one reads and another writes.
    """

    def __init__(
        self, client: Async, session: str, info: JobInfo, started: StartedJob | None = None
    ) -> None:
        super().__init__(client)
        self._begin(session, info, started)

    async def __aiter__(self) -> AsyncIterator[JobChunk]:
        """Iterate over the output, from `offset` on, until the job has ended."""
        while True:
            output = await self.read(wait_s=WAIT_S)
            for chunk in chunks_of(output):
                yield chunk
            if output.is_last:
                return


class Collected:
    """Output of a job that is kept, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}
        self._missing = 0

    def add(self, chunk: JobChunk) -> None:
        kept = chunk.data[: self._room]
        self._room -= len(kept)
        self._streams[chunk.stream] += kept
        self._missing += chunk.missing + len(chunk.data) - len(kept)

    def result(self, info: JobInfo) -> JobResult:
        stdout, stderr = map(bytes, self._streams.values())
        return JobResult(stdout, stderr, info.exit_code or 0, self._missing, info)


def start(
    calls: ProjectCalls,
    session: str,
    argv: Sequence[str],
    settings: JobSettings,
    inherit: Iterable[str],
) -> Steps[StartedJob]:
    """Start a program in a session.

    Args:
        inherit: names of variables of this process that the supervisor asked for.

    Raises:
        BadRequestError: the program and its arguments are not a list of texts.
        JobError: it cannot be started.
    """
    places.check_names(settings, JobSettings)
    if isinstance(argv, str) or not argv:
        raise BadRequestError(
            f"the program must be a list of texts, not {argv!r:.80}",
            hint="For a line of shell, use ['sh', '-c', LINE].",
        )
    cwd, tty = settings.get("cwd"), settings.get("tty")
    stdin = bool(settings.get("stdin"))
    environ = settings.get("environ") or {}
    options = RunOptions(settings.get("timeout_s"), stdin=stdin)
    program: dict[str, Any] = {
        "argv": tuple(_text(each, "argument") for each in argv),
        "cwd": None if cwd is None else _text(cwd, "working directory"),
        "environ": {
            _text(name, "variable"): _text(value, f"value of {name}")
            for name, value in environ.items()
        },
        "tty": None if tty is None else wire.JobTerminal(*tty, os.environ.get("TERM", "")),
        "wait_s": 0.0 if stdin else settings.get("wait_s", 0.0),
    }

    def call(place: Place) -> OperationCall[StartedJob]:
        return wire.job_start(place, options, **program)

    return (yield from calls.in_session(session, settings, inherit, call))


def _text(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise JobError(
            f"the {what} {value!a:.80} is not UTF-8 text",
            hint="Put it into a file, and have a script read it.",
        ) from None
    return value


def _fresh_id() -> str:
    return os.urandom(8).hex()
