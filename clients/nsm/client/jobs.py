"""Jobs of the blocking client: programs that run in sessions beside their interpreters."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from nsm.wire.answers import read
from nsm.wire.errors import BadRequestError, JobError
from nsm.wire.jobs import JobInfo, JobOutput, WrittenInput, chunks_of
from nsm.wire.sessions import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, TypeAlias

    from nsm.client.job_calls import JobCalls
    from nsm.wire.jobs import JobChunk, StartedJob
    from nsm.wire.results import SessionRef

    TerminalSize: TypeAlias = tuple[int, int]
    """Rows and columns."""

WAIT_S = 30.0
"""Time that one request waits for something to happen; then it is asked again."""

COLLECT_BYTES = 16 * 1024 * 1024
"""Output that `collect` keeps by default."""


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


class Job:
    """A handle of a job. Another one, also in another process, is `nsm.Client.job`.

    Attributes:
        id: unique in its session.
        session: id of its session.
        info: the job, when something was last heard of it.
        offset: where `read` and iterating go on.
        started: its session, when `exec` started it; None for a handle that was asked for later.
    """

    def __init__(self, client: JobCalls, session: str, info: JobInfo) -> None:
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
        return f"<nsm.Job {self.id} of {self.session} {' '.join(self.info.argv):.40}>"

    def _call(self, op: str, **args: Any) -> dict[str, Any]:
        return self._client.call(op, {"target": self.session, "job": self.id, **args})

    def read(self, *, wait_s: float = 0.0, max_bytes: int = PIECE_BYTES) -> JobOutput:
        """Read what comes next of the output.

        Args:
            wait_s: how long to wait if there is nothing, seconds; at most a minute.
            max_bytes: 0 to wait for the end of the job only.
        """
        output, self._first = self._first, None
        if output is None or output.offset - output.missing != self.offset or not max_bytes:
            args = read_arguments(self.offset, wait_s, max_bytes)
            output = read(JobOutput, self._call("job_read", **args))
        self.info, self.offset = output.job, output.next_offset
        return output

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
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        while self.info.running:
            wait_s = WAIT_S if limit is None else min(WAIT_S, max(0.0, limit - time.monotonic()))
            args = {"offset": 0, "bytes": 0, "wait_s": wait_s}
            self.info = read(JobInfo, self._call("job_read", **args), "job")
            if limit is not None and time.monotonic() >= limit:
                break
        return self.info

    def write(self, data: bytes) -> None:
        """Give it input; returns when all of it has been taken.

        Raises:
            JobError: it does not read its input any more, or was started without one.
        """
        for piece in input_pieces(data):
            args = piece
            while True:
                written = read(WrittenInput, self._call("job_write", **args))
                self.info = written.job
                if written.taken >= len(args["data"]):
                    break
                args = next_piece(args, written.taken)

    def feed(self, data: bytes) -> None:
        """Give it its whole input, as much of it as it reads."""
        try:
            self.write(data)
            self.close_stdin()
        except JobError as error:
            if not reads_no_more(error):
                raise

    def close_stdin(self) -> None:
        """End its input. In a terminal this is Ctrl-D, which the program may take otherwise."""
        self.info = read(JobInfo, self._call("job_write", **end_arguments()), "job")

    def signal(self, signal: str | int) -> None:
        """Send a signal to its process group, by number or name (``TERM``)."""
        self.info = read(JobInfo, self._call("job_signal", signal=str(signal)), "job")

    def interrupt(self) -> None:
        """Interrupt it, as Ctrl-C in a terminal does."""
        self.signal("INT")

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self.info = read(JobInfo, self._call("job_resize", rows=rows, columns=columns), "job")

    def stop(self, *, grace_s: float | None = None) -> JobInfo:
        """Interrupt it, have it end, and kill it if it does not, then all that it has started.

        Of a job that has ended, this kills what it has left behind.

        Args:
            grace_s: seconds until the kill; None for the configured time.

        Returns:
            The job, which has ended.
        """
        self._call("job_stop", **({} if grace_s is None else {"grace_s": grace_s}))
        return self.wait()


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


def start_arguments(
    argv: Sequence[str],
    where: Mapping[str, Any],
    *,
    cwd: str | None,
    environ: Mapping[str, str] | None,
    stdin: bytes | bool,
    tty: TerminalSize | None,
    timeout_s: float | None,
    wait_s: float,
) -> dict[str, Any]:
    """The arguments of `job_start`.

    Args:
        where: those of `run` that say in which session.

    Raises:
        BadRequestError: the program and its arguments are not a list of texts.
    """
    if isinstance(argv, str) or not argv:
        raise BadRequestError(
            f"the program must be a list of texts, not {argv!r:.80}",
            hint="For a line of shell, use ['sh', '-c', LINE].",
        )
    args: dict[str, Any] = {**where, "argv": [_text(each, "argument") for each in argv]}
    if cwd is not None:
        args["cwd"] = _text(cwd, "working directory")
    if environ:
        args["environ"] = {
            _text(name, "variable"): _text(value, f"value of {name}")
            for name, value in environ.items()
        }
    if stdin is True or stdin:
        args["stdin"] = True
    if tty is not None:
        args["tty"] = {"rows": tty[0], "columns": tty[1]}
    if timeout_s is not None:
        args["timeout_s"] = timeout_s
    if wait_s and "stdin" not in args:
        args["wait_s"] = wait_s
    return args


def _text(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise JobError(
            f"the {what} {value!a:.80} is not UTF-8 text",
            hint="Put it into a file, and have a script read it.",
        ) from None
    return value


def read_arguments(offset: int, wait_s: float, max_bytes: int) -> dict[str, Any]:
    """The arguments of `job_read` for a reader that wants all."""
    return {"offset": offset, "wait_s": wait_s, "bytes": max_bytes, "hold": max_bytes > 0}


def input_pieces(data: bytes) -> Iterator[dict[str, Any]]:
    """The arguments of each `job_write` that it takes to send so much."""
    for start in range(0, len(data), PIECE_BYTES):
        piece = bytes(data[start : start + PIECE_BYTES])
        yield {"data": piece, "wait_s": WAIT_S, "write_id": os.urandom(8).hex()}


def next_piece(args: Mapping[str, Any], taken: int) -> dict[str, Any]:
    """The arguments of the `job_write` that sends what there was no room for."""
    return {**args, "data": args["data"][taken:], "write_id": os.urandom(8).hex()}


def reads_no_more(error: JobError) -> bool:
    """Return whether a job has refused input since it reads none, or no more."""
    return error.data.get("errno") == "EPIPE"


def end_arguments() -> dict[str, Any]:
    """The arguments of the `job_write` that ends the input."""
    return {"eof": True, "write_id": os.urandom(8).hex()}
