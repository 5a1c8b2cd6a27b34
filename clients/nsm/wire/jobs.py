"""Jobs: programs that run in sessions beside their interpreters."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from nsm.wire.code import OptionFields, PlaceFields, SessionRef
from nsm.wire.decode import Constraint, at_least, between
from nsm.wire.operation import PIECE_BYTES, Data, Seconds, operation
from nsm.wire.tuples import NamedTuple

JobStream: TypeAlias = Literal["stdout", "stderr"]


class JobInfo(NamedTuple):
    """One job, as it was when it was asked for. Times in seconds.

    Attributes:
        id: short, unique in its session.
        argv: its program and arguments; the last ones are left out if they are long.
        cwd, pid: in the session.
        tty: it has a terminal.
        takes_input: its standard input is open.
        age_s: time since its start; `duration_s`: until its end.
        exit_code: as a shell has it: 128+n after signal n, 124 at its time limit; None while it
            runs.
        signal: number of the signal that ended it; 0 for none.
        timed_out: it was ended at its time limit; `stopped`: on request.
        user_s, system_s: processor time of its process and of the children that it waited for,
            once it has ended.
        max_rss_bytes: the most memory that one of them had; no less than nsm's agent had at the
            start.
        output_bytes, input_bytes: what it has printed and was given so far.
    """

    id: str
    argv: tuple[str, ...]
    cwd: str
    pid: int
    tty: bool
    running: bool
    takes_input: bool
    age_s: float
    duration_s: float
    exit_code: int | None
    signal: int
    timed_out: bool
    stopped: bool
    user_s: float
    system_s: float
    max_rss_bytes: int
    output_bytes: int
    input_bytes: int


class JobOutput(NamedTuple):
    """Output of a job.

    Attributes:
        offset: where it begins; offsets count the bytes of both streams together.
        missing: bytes before it that are lost: the job printed more than is kept.
        pieces: the streams of `data`, in order, with the number of bytes of each.
        job: the job meanwhile.
    """

    offset: int
    missing: int
    pieces: tuple[tuple[JobStream, int], ...]
    data: bytes
    job: JobInfo

    @property
    def next_offset(self) -> int:
        """Offset of what follows."""
        return self.offset + len(self.data)

    @property
    def is_last(self) -> bool:
        """True if the job has ended, and nothing follows that it printed."""
        return not self.job.running and self.next_offset >= self.job.output_bytes


class FirstOutput(NamedTuple):
    """Output that came with the answer to a start; as in `JobOutput`."""

    offset: int
    missing: int
    pieces: tuple[tuple[JobStream, int], ...]
    data: bytes


class StartedJob(NamedTuple):
    """A job that was started, its session, and its first output if that was waited for."""

    session: SessionRef
    job: JobInfo
    output: FirstOutput | None = None

    @property
    def first(self) -> JobOutput | None:
        """The output, with the job."""
        return None if self.output is None else JobOutput(*self.output, job=self.job)


class JobChunk(NamedTuple):
    """Some bytes that a job has printed.

    Attributes:
        stream: ``stdout`` or ``stderr``; a terminal has ``stdout`` only.
        offset: of the first byte.
        missing: bytes before it that are lost.
    """

    stream: JobStream
    data: bytes
    offset: int
    missing: int


class WrittenInput(NamedTuple):
    """The number of bytes that a job had room for."""

    taken: int
    job: JobInfo


def signal_name(number: int) -> str:
    """The name of a signal, as people know it; real-time signals have a number only."""
    import signal  # noqa: PLC0415  # rarely needed

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def chunks_of(output: JobOutput) -> list[JobChunk]:
    """Cut output where its stream changes. With none, lost bytes are told by an empty chunk."""
    chunks: list[JobChunk] = []
    offset, missing, place = output.offset, output.missing, 0
    for stream, length in output.pieces:
        data = output.data[place : place + length]
        chunks.append(JobChunk(stream, data, offset + place, missing))
        missing, place = 0, place + length
    if missing:
        chunks.append(JobChunk("stdout", b"", offset, missing))
    return chunks


MAX_KEY_CHARS = 128


def is_key(key: str) -> bool:
    """Return whether a text may be the id of a call."""
    return 1 <= len(key) <= MAX_KEY_CHARS and key.isprintable()


Key: TypeAlias = Annotated[
    str | None, Constraint(is_key, f"1 to {MAX_KEY_CHARS} printable characters")
]
Size: TypeAlias = Annotated[int, between(1, 10_000)]


class JobTerminal(NamedTuple):
    """A terminal for a program."""

    rows: Size
    columns: Size
    term: str | None = None


@operation("run")
def job_start(
    place: PlaceFields,
    options: OptionFields,
    argv: Annotated[tuple[str, ...], Constraint(bool, "a program and its arguments")],
    *,
    cwd: str | None = None,
    environ: Mapping[str, str] = {},  # nobody changes it
    tty: JobTerminal | None = None,
    wait_s: Seconds = 0.0,
) -> StartedJob:
    """Start a program beside the interpreter. `wait_s` waits for output or an end, at most 1 s,
    and the answer has `output`. `stdin` says that input follows by `job_write`.
    """
    ...


@operation("manage", own=True, recorded=None)
def job_read(
    target: str,
    job: str,
    *,
    offset: Annotated[int, at_least(0)] = 0,
    bytes: Annotated[int, between(0, PIECE_BYTES)] = PIECE_BYTES,  # noqa: A002  # on the wire
    wait_s: Seconds = 0.0,
    hold: bool = False,
) -> JobOutput:
    """Read output from `offset` on. It answers when there is some, when the job has ended, or
    after `wait_s`, at most 60 s. With `bytes: 0` it only waits for the end. With `hold`, nothing
    from `offset` on is dropped for a minute, even if the job has to wait.
    """
    ...


@operation("manage", own=True, recorded=None)
def job_write(
    target: str,
    job: str,
    data: Data = b"",
    *,
    eof: bool = False,
    wait_s: Seconds = 0.0,
    write_id: Key = None,
) -> WrittenInput:
    """Write input. If there is no room at all, it waits up to `wait_s`. `eof` ends the input if
    all of `data` was taken. A request with a `write_id` that was there before is not carried out
    again.
    """
    ...


@operation("manage", own=True, key="job", recorded=("target", "job", "signal"))
def job_signal(target: str, job: str, signal: str) -> JobInfo:
    """Send a signal, by name or number, to the process group; `INT` in a terminal to what is in
    the foreground.
    """
    ...


@operation("manage", own=True, key="job", recorded=("target", "job"))
def job_stop(
    target: str,
    job: str,
    grace_s: Annotated[float | None, between(0, 1e9, "a number of seconds")] = None,
) -> JobInfo:
    """Interrupt a job; it gets SIGTERM after half of `grace_s`, and is killed after it. The
    answer comes at once.
    """
    ...


@operation("manage", own=True, key="job", recorded=None)
def job_resize(target: str, job: str, rows: Size, columns: Size) -> JobInfo:
    """Change the size of a job's terminal."""
    ...


@operation("manage", own=True, key="jobs", recorded=None)
def job_list(target: str) -> list[JobInfo]:
    """List the jobs that run, and the last ones that have ended, oldest first."""
    ...
