"""Frames that come out of a jail, checked field by field.

Every frame of an agent is untrusted input: code next to the agent may have taken it over. Nothing
here trusts a type, a size or a name; anything that does not fit raises `AgentProtocolError`, which
ends only that session. `docs/contributing/agent-protocol.md` describes the frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast

from nsm.dataclass import dataclass, replace
from nsm.wire.code import Truncation
from nsm.wire.decode import Constraint, Converted, DecodeError, at_most, between, decode
from nsm.wire.frames import without_surrogates
from nsm.wire.tuples import NamedTuple
from nsmd.agent_link.file_frames import (
    MAX_CHUNK_BYTES,
    MAX_WORDS,
    Chunk,
    Count,
    ErrorName,
    FileClosedFrame,
    FileContentFrame,
    FileDataFrame,
    FileDirectoryFrame,
    FileEntriesFrame,
    FileErrorFrame,
    FileEventsFrame,
    FileFrame,
    FileWatchingFrame,
    TransferFrame,
    Words,
)
from nsmd.model.names import is_module_name
from nsmd.model.text import shortened
from nsmd.model.values import Outcome, StreamName

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
        """Outcome of it, in a word."""
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


MAX_DISPLAYS = 1000
MAX_NOTES = 8
MAX_NOTE = 400
MAX_IMPORTS = 16
MAX_STREAM_BYTES = 4 * 1024 * 1024 + 4096
"""Largest size of one stream in a result: our agents keep no more. Older ones keep all."""
MAX_NOTED_CODE = 2000
"""Characters of an execution's code that an agent remembers (`NOTED_CODE`)."""
MAX_NOTED = 64
"""Largest number of executions that the agent tells a new owner of the channel. Our agents tell a
few: the running one, and those whose results were not acknowledged.
"""
MAX_TRUNCATED = 2
MAX_TOLD = 100
"""Capabilities, open transfers and recent executions that are read of those that an agent tells."""
MAX_ID = 256
"""Characters of an id that comes back: of an execution that a client named, or a transfer."""

MAX_MATCHES = 500
MAX_MATCH = 1000
"""Characters of one completion."""
MAX_INDENT = 1000

InputStatus = Literal["complete", "incomplete", "invalid", "unknown"]
"""State of a text as input at a prompt: complete or not; unknown if nobody could be asked."""


class AgentProtocolError(Exception):
    """The agent said something that none of our agents says."""


def _texts(told: list[Any]) -> frozenset[str]:
    return frozenset([each for each in told[:MAX_TOLD] if type(each) is str])


def _printable(matches: list[str]) -> tuple[str, ...]:
    """Leave out what would move the cursor of a terminal.

    Not refused, since which characters are printable depends on the Python that is asked.
    """
    return tuple(match for match in matches if match.isprintable())


def _is_id(id_: str) -> bool:
    return len(id_) <= MAX_ID and id_.isprintable()


def _is_indent(indent: str) -> bool:
    return len(indent) <= MAX_INDENT and not indent.strip(" \t")


def _is_truncation(stream: str, told: Truncation) -> bool:
    numbers = (told.omitted_bytes, told.total_bytes or 0, told.file_bytes or 0)
    is_bounded = all(abs(number) < 2**53 for number in numbers)
    return is_bounded and len(told.file or "") <= MAX_WORDS and stream in ("stdout", "stderr")


def _is_import(module: str, seconds: float) -> bool:
    return is_module_name(module) and 0 <= seconds < 1e9


_NOTHING: Mapping[str, Any] = MappingProxyType({})


_MOST = {"displays": MAX_DISPLAYS, "truncated": MAX_TRUNCATED, "imports": MAX_IMPORTS}
"""Lengths of lists and maps of an outcome, checked before it is read. `Outcome` belongs to the
model, which does not know the limits of frames.
"""


def _outcome(told: dict[str, Any]) -> Outcome:
    """Read an outcome, and shorten texts and lists that are too long."""
    for name, most in _MOST.items():
        items: object = told.get(name)
        if isinstance(items, list | dict) and len(cast("Sized", items)) > most:
            raise DecodeError(told[name], f"at most {most} items").within(name)
    if isinstance(notes := told.get("notes"), list):
        told = {**told, "notes": notes[:MAX_NOTES]}
    return _bounded(decode(Outcome, told))


def _bounded(outcome: Outcome) -> Outcome:
    truncated = outcome.truncated
    if not (
        abs(outcome.exit_code) < 2**53
        and abs(outcome.duration_s) < 2**53
        and 0 <= outcome.checkpoints < 2**53
        and len(outcome.restart_reason) <= MAX_WORDS
        and (not truncated or all(map(_is_truncation, truncated, truncated.values())))
        and (not outcome.imports or all(map(_is_import, outcome.imports, outcome.imports.values())))
    ):
        raise ValueError("an outcome whose numbers and texts are not that large")
    if not outcome.notes and len(outcome.stdout) + len(outcome.stderr) <= MAX_STREAM_BYTES // 4:
        return outcome
    stdout, stdout_cut = shortened(outcome.stdout, MAX_STREAM_BYTES)
    stderr, stderr_cut = shortened(outcome.stderr, MAX_STREAM_BYTES)
    left_out = dict(truncated)
    for name, cut in (("stdout", stdout_cut), ("stderr", stderr_cut)):
        if cut:
            known = truncated.get(name, Truncation(0, None))
            left_out[name] = known._replace(omitted_bytes=known.omitted_bytes + cut)
    notes = tuple(note[:MAX_NOTE] for note in outcome.notes)
    return replace(outcome, stdout=stdout, stderr=stderr, truncated=left_out, notes=notes)


def without_bytes(outcome: Outcome) -> Outcome:
    """The outcome with U+FFFD, which takes more room, in place of bytes that are not UTF-8."""
    try:
        outcome.stdout.encode()
        outcome.stderr.encode()
    except UnicodeEncodeError:
        stdout, stderr = map(without_surrogates, (outcome.stdout, outcome.stderr))
        return _bounded(replace(outcome, stdout=stdout, stderr=stderr))
    return outcome


Integer = Annotated[int, between(-(2**53) + 1, 2**53 - 1)]
Id = Annotated[str, Constraint(_is_id, "an id of ours")]
Matches = Annotated[
    list[Annotated[str, at_most(MAX_MATCH, "characters")]], at_most(MAX_MATCHES, "matches")
]
Indent = Annotated[str, Constraint(_is_indent, f"at most {MAX_INDENT} blanks and tab characters")]


class ReadyFrame(NamedTuple):
    """The agent can take work."""

    protocol: Integer = 0
    python: str = ""
    capabilities: Annotated[frozenset[str], Converted(list[Any], _texts)] = frozenset()


class OutputFrame(NamedTuple):
    """A piece of output while an execution runs."""

    id: str
    stream: StreamName
    text: str


class ResultFrame(NamedTuple):
    """An execution has ended."""

    id: str
    outcome: Annotated[Outcome, "", Converted(dict[str, Any], _outcome)]


class StatusFrame(NamedTuple):
    """Answer to `status`: the running execution and the number of background processes."""

    running: str | None
    background: Integer = 0


class ErrorFrame(NamedTuple):
    """The agent refused something; `id` is the execution it concerns, if any."""

    id: str | None
    message: Words = "the agent reported an error"


class InputFrame(NamedTuple):
    """Answer to `input`: the bytes that an execution has taken so far; `open` if it takes more."""

    id: str
    offset: Count
    open: bool


class CompletionsFrame(NamedTuple):
    """Completions that may replace `code[start:end]`, in code points.

    The frame does not have the code: the caller checks that `end` lies in it.
    """

    id: str
    start: Count
    end: Count
    matches: Annotated[tuple[str, ...], Converted(Matches, _printable)] = ()
    available: bool = False


class CheckedFrame(NamedTuple):
    """Answer to the question whether code is complete, with the indentation of the next line."""

    id: str
    status: InputStatus
    indent: Indent = ""


class ForkedFrame(NamedTuple):
    """The interpreter has forked for whoever traces it, or says why not."""

    id: str
    error: str = ""


class ListeningFrame(NamedTuple):
    """A socket listens in the session; its descriptor comes with the frame (`AgentLink`)."""

    id: str


class RunnerFrame(NamedTuple):
    """A runner has been started; its channel comes with the frame."""

    id: str


class NamesFrame(NamedTuple):
    """Code can look names up; the channel for its connections comes with the frame."""

    id: str


class PortsFrame(NamedTuple):
    """A relay can ask the agent for connections; its channel comes with the frame."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """An execution whose result the new owner of the channel still has to get.

    Attributes:
        runs: it runs, or waits for its interpreter's set-up; if False, its result follows.
        note: the note that was sent with it; the agent may say anything here.
        code: beginning of its code.
    """

    id: str
    runs: bool
    note: Mapping[str, Any]
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedFrame:
    """First frame for a new owner of the channel.

    Attributes:
        files: open transfers.
        recent: the last executions that had a result, the newest last.
        count: number of executions so far; None if the agent does not say.
        jobs: jobs that run.
        checkpoints: earlier states that undo can go back to.
    """

    executions: tuple[Noted, ...]
    files: tuple[str, ...]
    recent: tuple[str, ...]
    count: int | None
    jobs: tuple[str, ...]
    checkpoints: int = 0


class _Noted(NamedTuple):
    """Facts about one execution in a `resumed` frame."""

    note: Mapping[str, Any] = _NOTHING
    code: str = ""


class _Resumed(NamedTuple):
    """The fields of a `resumed` frame; those of an execution are in two maps."""

    executions: Annotated[Mapping[Id, Any], at_most(MAX_NOTED, "executions")] = _NOTHING
    notes: Mapping[str, _Noted] = _NOTHING
    files: tuple[Id, ...] = ()
    recent: tuple[Id, ...] = ()
    executed: Annotated[int | None, "count", between(0, 2**53)] = None
    jobs: Annotated[tuple[JobId, ...], at_most(MAX_JOBS, "jobs")] = ()
    checkpoints: Annotated[int, between(0, 2**53)] = 0


class OtherFrame(NamedTuple):
    """A type that this side does not use (`pong`, `idle`, newer ones)."""

    type: str


AgentFrame = (
    ReadyFrame
    | OutputFrame
    | ResultFrame
    | StatusFrame
    | TransferFrame
    | InputFrame
    | CompletionsFrame
    | CheckedFrame
    | ForkedFrame
    | ListeningFrame
    | NamesFrame
    | PortsFrame
    | RunnerFrame
    | JobAnswerFrame
    | JobEndedFrame
    | ErrorFrame
    | ResumedFrame
    | OtherFrame
)


_KINDS: Mapping[str, type[AgentFrame]] = {
    "ready": ReadyFrame,
    "output": OutputFrame,
    "result": ResultFrame,
    "status": StatusFrame,
    "input_taken": InputFrame,
    "file": FileFrame,
    "file_data": FileDataFrame,
    "file_closed": FileClosedFrame,
    "file_directory": FileDirectoryFrame,
    "file_content": FileContentFrame,
    "file_entries": FileEntriesFrame,
    "file_watching": FileWatchingFrame,
    "file_events": FileEventsFrame,
    "file_error": FileErrorFrame,
    "completions": CompletionsFrame,
    "checked": CheckedFrame,
    "forked": ForkedFrame,
    "listening": ListeningFrame,
    "names": NamesFrame,
    "ports": PortsFrame,
    "runner": RunnerFrame,
    "job": JobFrame,
    "jobs": JobsFrame,
    "job_output": JobOutputFrame,
    "job_written": JobWrittenFrame,
    "job_error": JobErrorFrame,
    "job_ended": JobEndedFrame,
    "error": ErrorFrame,
}


def _without_excess(frame: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out of a `resumed` frame what nobody asks for, before it is read."""
    found = dict(frame)
    for name in ("files", "recent"):
        if isinstance(told := found.get(name), list):
            found[name] = told[:MAX_TOLD]
    if isinstance(notes := found.get("notes"), dict):
        known = cast("Mapping[str, Any]", notes)
        executions = cast("Mapping[str, Any]", found.get("executions"))
        asked = executions if isinstance(executions, dict) else ()
        found["notes"] = {id_: known[id_] for id_ in asked if id_ in known}
    return found


def parse(frame: Mapping[str, Any]) -> AgentFrame:
    """Parse one frame, or raise `AgentProtocolError`: a field is missing or of the wrong type."""
    kind = frame.get("type")
    if not isinstance(kind, str):
        raise AgentProtocolError("a frame has no type")
    try:
        if kind == "resumed":
            return _resumed(decode(_Resumed, _without_excess(frame)))
        found = decode(_KINDS[kind], frame) if kind in _KINDS else OtherFrame(type=kind)
    except DecodeError as error:
        raise AgentProtocolError(f"in a frame {kind!r}, {error}") from error
    if isinstance(found, CompletionsFrame) and found.start > found.end:
        raise AgentProtocolError("completions start behind their end")
    if isinstance(found, JobOutputFrame) and not found.is_whole:
        raise AgentProtocolError("the pieces of a job's output are not its length")
    return found


def sequence(frame: Mapping[str, Any]) -> int | None:
    """The frame's sequence number, if it has one."""
    value = frame.get("seq")
    return value if type(value) is int and 0 < value < 2**53 else None


def _resumed(told: _Resumed) -> ResumedFrame:
    executions: list[Noted] = []
    for known, state in told.executions.items():
        noted = told.notes.get(known, _Noted())
        runs, code = state == "running", noted.code[:MAX_NOTED_CODE]
        executions.append(Noted(id=known, runs=runs, note=noted.note, code=code))
    return ResumedFrame(
        executions=tuple(executions),
        files=told.files,
        recent=told.recent,
        count=told.executed,
        jobs=told.jobs,
        checkpoints=told.checkpoints,
    )
