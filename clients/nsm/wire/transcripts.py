"""Transcripts that `logs` returns, and ended sessions, as values.

`to_wire` makes an event of an entry, `entry` an entry of an event; it and the `from_wire`s check
what a supervisor sent as `nsm.wire.fields` does. Apart from that module because `nsm ps` needs
none of it.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from nsm.wire.errors import NsmError, from_wire
from nsm.wire.fields import Fields
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.results import Truncation, truncations

StreamName: TypeAlias = Literal["stdout", "stderr"]


class SessionStart(NamedTuple):
    """The session that a transcript is of; the first entry.

    Attributes:
        name: None for a one-shot.
        interpreter: ``python``, ``bash`` or ``node``.
        client: the program that the session belongs to; `scope`: the name space of its name.
        started_at: Unix time, seconds, when it was handed out; for display.
        dropped: how many older executions are no longer kept.
    """

    id: str
    name: str | None
    env: str
    interpreter: str
    client: str
    scope: str
    started_at: float
    dropped: int


class ExecutionStart(NamedTuple):
    """Code that was sent to run. With one session's executions these never overlap, but for code
    that never ran: its start comes right before its end.

    Attributes:
        number: counts the session's executions from 1.
        client: the program that sent it.
        code: its beginning where it is long; `code_omitted` characters of its end are left out.
        started_at: Unix time, seconds; for display.
    """

    execution_id: str
    number: int
    client: str
    code: str
    code_omitted: int
    started_at: float


class OutputPiece(NamedTuple):
    """Text that an execution printed.

    Attributes:
        skipped: characters of the same stream that are left out right before `text`.
    """

    execution_id: str
    stream: StreamName
    text: str
    skipped: int


class Shown(NamedTuple):
    """One displayed value.

    Attributes:
        data: by MIME type; what is not text, and what is long, is left out.
        omitted: sizes of what is left out by MIME type, in characters as the code gave it (binary
            data is base64).
    """

    data: dict[str, str]
    omitted: dict[str, int]


class ExecutionEnd(NamedTuple):
    """How an execution ended. Fields as in `nsm.RunResult`, but for these.

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
    displays: tuple[Shown, ...]
    truncated: dict[str, Truncation]
    error: NsmError | None


Entry: TypeAlias = SessionStart | ExecutionStart | OutputPiece | ExecutionEnd
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

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check the answer to `logs`."""
        end = Fields(wire, "the end of a transcript")
        return cls(
            id=end.text("id"),
            name=end.optional("name", end.text),
            state=end.text("state"),
            end_reason=end.optional("end_reason", end.text),
            executions=end.integer("executions"),
        )


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

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Check one row of `ended` in the answer to `sessions`."""
        row = Fields(wire, "a row of an ended session")
        return cls(
            id=row.text("id"),
            name=row.optional("name", row.text),
            env=row.text("env"),
            client=row.text("client"),
            scope=row.text("scope"),
            executions=row.integer("executions"),
            lived_s=row.number("lived_s"),
            ended_s=row.number("ended_s"),
            reason=row.text("reason"),
        )


def to_wire(entry: Entry) -> tuple[str, dict[str, Any]]:
    """The event that travels for an entry: its name and data."""
    data = entry._asdict()
    match entry:
        case SessionStart():
            return "session", data
        case ExecutionStart():
            return "execution", data
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
    match event:
        case "session":
            return _session(Fields(data, "a transcript's session"))
        case "execution":
            return _execution(Fields(data, "a transcript's execution"))
        case "output":
            return _output(Fields(data, "a transcript's output"))
        case "finished":
            return _finished(Fields(data, "the end of an execution"))
        case _:
            return None


def _session(fields: Fields) -> SessionStart:
    return SessionStart(
        id=fields.text("id"),
        name=fields.optional("name", fields.text),
        env=fields.text("env"),
        interpreter=fields.text("interpreter"),
        client=fields.text("client"),
        scope=fields.text("scope"),
        started_at=fields.number("started_at"),
        dropped=fields.integer("dropped"),
    )


def _execution(fields: Fields) -> ExecutionStart:
    return ExecutionStart(
        execution_id=fields.text("execution_id"),
        number=fields.integer("number"),
        client=fields.text("client"),
        code=fields.text("code"),
        code_omitted=fields.integer("code_omitted"),
        started_at=fields.number("started_at"),
    )


def _output(fields: Fields) -> OutputPiece:
    return OutputPiece(
        execution_id=fields.text("execution_id"),
        stream=_stream(fields.text("stream")),
        text=fields.text("text"),
        skipped=fields.optional("skipped", fields.integer) or 0,
    )


def _stream(told: str) -> StreamName:
    match told:
        case "stdout":
            return "stdout"
        case "stderr":
            return "stderr"
        case _:
            raise RemoteProtocolError(f"the supervisor sent output of a stream {told!r:.40}")


def _finished(fields: Fields) -> ExecutionEnd:
    error = fields.optional("error", fields.map)
    return ExecutionEnd(
        execution_id=fields.text("execution_id"),
        exit_code=fields.optional("exit_code", fields.integer),
        duration_s=fields.number("duration_s"),
        timed_out=fields.flag("timed_out"),
        interrupted=fields.flag("interrupted"),
        interpreter_restarted=fields.flag("interpreter_restarted"),
        restart_reason=fields.text("restart_reason"),
        displays=tuple(_shown(Fields(wire, "a display")) for wire in fields.maps("displays")),
        truncated=truncations(fields.map("truncated")),
        error=None if error is None else from_wire(error),
    )


def _shown(fields: Fields) -> Shown:
    data, omitted = fields.map("data"), fields.map("omitted")
    texts, sizes = Fields(data, "a display"), Fields(omitted, "a display's sizes")
    return Shown(
        data={kind: texts.text(kind) for kind in data},
        omitted={kind: sizes.integer(kind) for kind in omitted},
    )
