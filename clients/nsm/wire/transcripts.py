"""Transcripts that `logs` returns, and ended sessions, as values.

`to_wire` makes an event of an entry, `entry` an entry of an event.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from nsm.wire.code import Truncation
from nsm.wire.errors import ErrorField
from nsm.wire.messages import read
from nsm.wire.tuples import NamedTuple

StreamName: TypeAlias = Literal["stdout", "stderr"]

OWN_CODE = tuple(f"{mark} nsm {verb}\n" for mark in ("#", "//") for verb in ("save", "restore"))
"""Beginnings of code that nsm itself runs in a session (`nsm.saves.interpreters.code`)."""


class SessionStart(NamedTuple):
    """The session that a transcript is of; the first entry.

    Attributes:
        name: None for a one-shot.
        interpreter: ``python``, ``bash`` or ``node``.
        client: the program that the session belongs to; `scope`: the name space of its name.
        started_at: Unix time, seconds, when it was handed out; for display.
        dropped: how many older executions are no longer kept.
        after_restart: it begins with a restart of the supervisor; what ran before is not in it.
        labels: as in `nsm.SessionRow`; ``restored-from`` is the save that it was made of,
            ``forked-from`` the id of the session that it is a fork of.
    """

    id: str
    name: str | None
    env: str
    interpreter: str
    client: str
    scope: str
    started_at: float
    dropped: int
    after_restart: bool = False
    labels: dict[str, str] = {}  # noqa: RUF012  # nobody changes it


class ExecutionStart(NamedTuple):
    """Code that was sent to run. With one session's executions these never overlap, but for code
    that never ran: its start comes right before its end.

    Attributes:
        number: counts the session's executions from 1.
        client: the program that sent it.
        code: its beginning where it is long; `code_omitted` characters of its end are left out.
        started_at: Unix time, seconds; for display.
        stdin: it had standard input, which is not in the transcript.
        reset: it ran in a fresh interpreter of the session.
        argv: path of the file that the code was from, and its arguments; empty for other code.
        argv_omitted: number of arguments that are left out at the end.
    """

    execution_id: str
    number: int
    client: str
    code: str
    code_omitted: int
    started_at: float
    stdin: bool = False
    reset: bool = False
    argv: tuple[str, ...] = ()
    argv_omitted: int = 0


class OutputPiece(NamedTuple):
    """Text that an execution printed.

    Attributes:
        skipped: characters of the same stream that are left out right before `text`.
    """

    execution_id: str
    stream: StreamName
    text: str
    skipped: int = 0


class DisplayedValue(NamedTuple):
    """One displayed value.

    Attributes:
        data: by MIME type, text and images (base64, but for SVG); what is long is left out.
        omitted: sizes of what is left out by MIME type, in characters as the code gave it (binary
            data is base64).
    """

    data: dict[str, str]
    omitted: dict[str, int]


class ExecutionEnd(NamedTuple):
    """End of an execution. Fields as in `nsm.RunResult`, but for these.

    Attributes:
        exit_code: None where there is none, because of `error`.
        error: why the code did not run to an end of its own, e.g. because the session ended.
    """

    execution_id: str
    exit_code: int | None
    duration_s: float
    timed_out: bool
    interrupted: bool
    interpreter_restarted: bool
    restart_reason: str
    displays: tuple[DisplayedValue, ...]
    truncated: Mapping[str, Truncation]
    error: ErrorField | None


class JobStart(NamedTuple):
    """A job that was started. Its output is not in the transcript (`nsm attach --job` shows it).

    Attributes:
        job: number of the job in its session.
        client: the program that started it.
        command: its arguments as a line of shell, or its code; the beginning if that is long, and
            `command_omitted` characters are left out.
        started_at: Unix time, seconds; for display.
    """

    job: str
    client: str
    command: str
    command_omitted: int
    started_at: float


class JobEnd(NamedTuple):
    """The end of a job. An earlier supervisor may have noted its start.

    Attributes:
        command: its arguments as a line of shell; the beginning if that is long.
        outcome: ``ok``, ``error``, ``timeout`` or ``stopped``.
        exit_code: as a shell reports it.
        signal: number of the signal that ended it, or 0.
        output_bytes: how much it has printed.
    """

    job: str
    command: str
    outcome: str
    exit_code: int
    signal: int
    duration_s: float
    output_bytes: int


class FreshRun(NamedTuple):
    """Programs that ran in fresh interpreters; noted once their client has no more of them. Their
    code and output are not in the transcript.

    Attributes:
        client: the program that sent them.
        programs: how many there were.
        failed: how many of them did not end with exit code 0.
        not_run: how many of these were not run at all.
        started_at: Unix time, seconds; for display.
    """

    client: str
    programs: int
    failed: int
    not_run: int
    started_at: float
    duration_s: float


Entry: TypeAlias = (
    SessionStart | ExecutionStart | OutputPiece | ExecutionEnd | JobStart | JobEnd | FreshRun
)
"""One line of a transcript, so to speak."""


class LogEnd(NamedTuple):
    """Closing remarks of a transcript.

    Attributes:
        state: as in `nsm.SessionRow`, or ``ended``.
        end_reason: why it ended, for people; None while it lives.
        executions: how many there were, those that are no longer kept included.
    """

    id: str
    name: str | None
    state: str
    end_reason: str | None
    executions: int


class EndedRow(NamedTuple):
    """A session that is over and whose transcript is kept, as `nsm ps --all` shows it.

    Attributes:
        lived_s: how long it lived, seconds.
        ended_s: how long ago it ended, seconds.
        reason: why, for people.
    """

    id: str
    name: str | None
    env: str
    client: str
    scope: str
    executions: int
    lived_s: float
    ended_s: float
    reason: str


def to_wire(entry: Entry) -> tuple[str, dict[str, Any]]:
    """The event that travels for an entry: its name and data."""
    data = entry._asdict()
    match entry:
        case SessionStart():
            return "session", data
        case ExecutionStart():
            return "execution", data | {"argv": list(entry.argv)}
        case JobStart():
            return "job", data
        case JobEnd():
            return "job_ended", data
        case FreshRun():
            return "fresh", data
        case OutputPiece():
            if not entry.skipped:
                del data["skipped"]
            return "output", data
        case ExecutionEnd():
            return "finished", data | {
                "displays": [shown._asdict() for shown in entry.displays],
                "truncated": {name: what._asdict() for name, what in entry.truncated.items()},
                "error": None if entry.error is None else entry.error.to_wire(),
            }


def entry(event: str, data: Mapping[str, Any]) -> Entry | None:
    """The entry that an event of a `logs` request holds; None for kinds that nobody here knows.

    Raises:
        RemoteProtocolError: a field is missing or of the wrong type.
    """
    kind = _KINDS.get(event)
    return None if kind is None else read(kind, data)


_KINDS: dict[str, type[Entry]] = {
    "session": SessionStart,
    "execution": ExecutionStart,
    "output": OutputPiece,
    "finished": ExecutionEnd,
    "job": JobStart,
    "job_ended": JobEnd,
    "fresh": FreshRun,
}
