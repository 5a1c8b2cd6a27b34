"""Frames about jobs, checked field by field, as in `nsmd.agent_link.frames`."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from nsm.wire.decode import Constraint, at_most, between
from nsmd.agent_link.file_frames import MAX_CHUNK_BYTES, Chunk, Count, ErrorName, Words
from nsmd.model.values import StreamName

MAX_JOBS = 2000
MAX_JOB_ID = 12
MAX_ARGUMENTS = 4000
"""Jobs of one session, digits of the number of one, and its arguments, as far as they are told."""


def _is_job_id(id_: str) -> bool:
    return 0 < len(id_) <= MAX_JOB_ID and id_.isascii() and id_.isdecimal()


Seconds = Annotated[float, between(0.0, 1e12)]
JobId = Annotated[str, Constraint(_is_job_id, "the number of a job")]
JobOutcome = Literal["ok", "error", "timeout", "stopped"]
JobPiece = tuple[StreamName, Annotated[int, between(1, MAX_CHUNK_BYTES)]]


class JobFacts(NamedTuple):
    """A program that was started in a session, as its agent tells of it.

    Attributes:
        argv: the last arguments are left out if they are long.
        pid: in the session.
        exit_code, signal: None while it runs; the signal is 0 if none ended it.
        stopped: it was ended on request.
        output_bytes, input_bytes: what it has printed and was given so far.
    """

    job: JobId
    argv: Annotated[tuple[Words, ...], at_most(MAX_ARGUMENTS, "arguments")]
    cwd: Words
    pid: Count
    tty: bool
    running: bool
    takes_input: bool
    age_s: Seconds
    duration_s: Seconds
    exit_code: Annotated[int | None, between(0, 255)]
    signal: Annotated[int, between(0, 128)]
    timed_out: bool
    stopped: bool
    user_s: Seconds
    system_s: Seconds
    max_rss_bytes: Count
    output_bytes: Count
    input_bytes: Count

    @property
    def outcome(self) -> JobOutcome:
        """How it ended, in a word."""
        if self.timed_out:
            return "timeout"
        if self.stopped:
            return "stopped"
        return "error" if self.exit_code else "ok"


class JobFrame(NamedTuple):
    """Answer to most requests about a job; `known` if a request has not started it, as it was
    started before.
    """

    id: str
    job: JobFacts
    known: bool = False


class JobsFrame(NamedTuple):
    """The jobs of a session that its agent remembers, oldest first."""

    id: str
    jobs: Annotated[tuple[JobFacts, ...], at_most(MAX_JOBS, "jobs")]


class JobOutputFrame(NamedTuple):
    """Output of a job from an offset on.

    Attributes:
        offset: where `data` begins; `missing` bytes before it are lost.
        known: as in `JobFrame`, if the request was to start it and to wait for its first output.
        pieces: streams of the data, and how many bytes are of each, in order.
    """

    id: str
    offset: Count
    missing: Count
    pieces: Annotated[tuple[JobPiece, ...], at_most(MAX_CHUNK_BYTES, "pieces")]
    data: Chunk
    job: JobFacts
    known: bool = False

    @property
    def is_whole(self) -> bool:
        """True if the pieces are all of the data."""
        return sum(length for _, length in self.pieces) == len(self.data)


class JobWrittenFrame(NamedTuple):
    """The number of bytes that a job's input had room for."""

    id: str
    taken: Count
    job: JobFacts


class JobErrorFrame(NamedTuple):
    """A request about a job was refused; `code` is an error number's name, or ""."""

    id: str
    message: Words = "the agent could not say why"
    code: ErrorName = ""


class JobEndedFrame(NamedTuple):
    """A job has ended; nobody asked."""

    job: JobFacts


JobAnswerFrame = JobFrame | JobsFrame | JobOutputFrame | JobWrittenFrame | JobErrorFrame
