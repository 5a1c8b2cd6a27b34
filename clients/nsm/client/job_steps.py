"""Jobs of sessions, as steps (`nsm.client.steps`), and what their handles have in common."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from nsm.client import operations
from nsm.client.projects import DEFAULT
from nsm.wire.answers import read
from nsm.wire.errors import BadRequestError, JobError
from nsm.wire.files import PIECE_BYTES
from nsm.wire.jobs import JobInfo, JobOutput, StartedJob, WrittenInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, TypeAlias

    from nsm.client.projects import ProjectArgument, ProjectCalls
    from nsm.client.steps import Steps
    from nsm.wire.jobs import JobChunk
    from nsm.wire.results import SessionRef

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


class JobSettings(ProgramSettings, total=False):
    """Settings of a program, and of the session that it is started in."""

    env: str
    project: ProjectArgument
    mount_point: str | None
    project_mode: str | None
    network: str | None
    secrets: Sequence[str] | None
    must_exist: bool


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


class JobHandle:
    """A job as its handle knows it, and its operations as steps; `nsm.client.jobs.Job` says more.

    Args:
        session: id of its session.
        info: the job.
        started: the answer to its start; None for a handle that was asked for later.
    """

    def __init__(self, session: str, info: JobInfo, started: StartedJob | None = None) -> None:
        self.id = info.id
        self.session = session
        self.info = info
        self.offset = 0
        self.started: SessionRef | None = None if started is None else started.session
        self._first: JobOutput | None = None if started is None else started.first

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<nsm.{name} {self.id} of {self.session} {' '.join(self.info.argv):.40}>"

    def _ask(self, op: str, **args: Any) -> Steps[dict[str, Any]]:
        return (yield op, {"target": self.session, "job": self.id, **args})

    def _change(self, op: str, **args: Any) -> Steps[JobInfo]:
        """Ask for something that is answered with the job."""
        self.info = read(JobInfo, (yield from self._ask(op, **args)), "job")
        return self.info

    def _read(self, wait_s: float, max_bytes: int) -> Steps[JobOutput]:
        output, self._first = self._first, None
        if output is None or output.offset - output.missing != self.offset or not max_bytes:
            args = {"offset": self.offset, "wait_s": wait_s, "bytes": max_bytes}
            wire = yield from self._ask("job_read", **args, hold=max_bytes > 0)
            output = read(JobOutput, wire)
        self.info, self.offset = output.job, output.next_offset
        return output

    def _wait(self, timeout_s: float | None) -> Steps[JobInfo]:
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        while self.info.running:
            wait_s = WAIT_S if limit is None else min(WAIT_S, max(0.0, limit - time.monotonic()))
            yield from self._change("job_read", offset=0, bytes=0, wait_s=wait_s)
            if limit is not None and time.monotonic() >= limit:
                break
        return self.info

    def _write(self, data: bytes) -> Steps[None]:
        for start in range(0, len(data), PIECE_BYTES):
            piece = bytes(data[start : start + PIECE_BYTES])
            while True:
                args = {"data": piece, "wait_s": WAIT_S, "write_id": _fresh_id()}
                written = read(WrittenInput, (yield from self._ask("job_write", **args)))
                self.info = written.job
                piece = piece[written.taken :]
                if not piece:
                    break

    def _close_stdin(self) -> Steps[JobInfo]:
        return (yield from self._change("job_write", eof=True, write_id=_fresh_id()))

    def _feed(self, data: bytes) -> Steps[None]:
        try:
            yield from self._write(data)
            yield from self._close_stdin()
        except JobError as error:
            if error.data.get("errno") != "EPIPE":  # it reads none, or no more
                raise

    def _stop(self, grace_s: float | None) -> Steps[JobInfo]:
        yield from self._change("job_stop", **({} if grace_s is None else {"grace_s": grace_s}))
        return (yield from self._wait(None))


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
    operations.check_names(settings, JobSettings)
    program = _program_arguments(argv, settings)
    project_mode = settings.get("project_mode")

    def arguments(**given: Any) -> dict[str, Any]:
        where = operations.where_arguments(
            env=settings.get("env", ""),
            session=session,
            mount_point=settings.get("mount_point"),
            project_mode=project_mode,
            network=settings.get("network"),
            secrets=settings.get("secrets"),
            must_exist=settings.get("must_exist", False),
            inherit=inherit,
            **given,
        )
        return where | program

    project = settings.get("project", DEFAULT)
    wire = yield from calls.in_project("job_start", project, project_mode, arguments)
    return read(StartedJob, wire)


def find(session: str, job_id: str) -> Steps[JobInfo]:
    """Find a job that somebody has started."""
    wire = yield "job_read", {"target": session, "job": job_id, "bytes": 0}
    return read(JobInfo, wire, "job")


def list_all(session: str) -> Steps[list[JobInfo]]:
    """List the jobs of a session."""
    return read(list[JobInfo], (yield "job_list", {"target": session}), "jobs")


def _program_arguments(argv: Sequence[str], settings: ProgramSettings) -> dict[str, Any]:
    """Make the arguments of `job_start` but those that say in which session."""
    if isinstance(argv, str) or not argv:
        raise BadRequestError(
            f"the program must be a list of texts, not {argv!r:.80}",
            hint="For a line of shell, use ['sh', '-c', LINE].",
        )
    args: dict[str, Any] = {"argv": [_text(each, "argument") for each in argv]}
    if (cwd := settings.get("cwd")) is not None:
        args["cwd"] = _text(cwd, "working directory")
    if environ := settings.get("environ"):
        args["environ"] = {
            _text(name, "variable"): _text(value, f"value of {name}")
            for name, value in environ.items()
        }
    if settings.get("stdin"):
        args["stdin"] = True
    if (tty := settings.get("tty")) is not None:
        args["tty"] = {"rows": tty[0], "columns": tty[1], "term": os.environ.get("TERM", "")}
    if (timeout_s := settings.get("timeout_s")) is not None:
        args["timeout_s"] = timeout_s
    if (wait_s := settings.get("wait_s")) and "stdin" not in args:
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


def _fresh_id() -> str:
    return os.urandom(8).hex()
