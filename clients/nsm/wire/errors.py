"""Errors that cross the control socket, each with a code, a message and a next step.

The server raises these types; `to_wire` turns one into the map that is sent, and
`from_wire` rebuilds the same type on the client, so both sides write
``except SessionLimitError`` and nobody compares strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from nsm.wire.decode import Converted

Data = Mapping[str, Any]


class NsmError(Exception):
    """Base of everything nsm reports to a person or a model.

    Attributes:
        code: stable identifier on the wire.
        message: what happened and what was expected.
        hint: what to do next; may be empty.
        data: plain values (str, int, float, bool, None, list, dict) for programs.
    """

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, *, hint: str = "", data: Data | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data: dict[str, Any] = dict(data or {})

    def __copy__(self) -> Self:
        # Exception's own copy calls the type with `args`, which not every subclass's takes.
        duplicate = type(self).__new__(type(self), *self.args)
        duplicate.__dict__.update(self.__dict__)
        return duplicate

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        end = "" if self.message.endswith((".", "!", "?")) else "."
        return f"{self.message}{end} {self.hint}"

    def to_wire(self) -> dict[str, Any]:
        """The error as the map that travels in an answer's `error` field."""
        return {
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "data": self.data,
        }


class InternalError(NsmError):
    """A fault of nsm's own; the supervisor's log has the details."""

    code = "internal"


class BadRequestError(NsmError):
    """An argument is missing, of the wrong type or out of range."""

    code = "bad-request"


class UnknownOperationError(NsmError):
    """The peer does not know this operation (older or newer version)."""

    code = "unknown-operation"


class ForbiddenError(NsmError):
    """This connection was not given the right that the operation needs."""

    code = "forbidden"


class UnknownEnvironmentError(NsmError):
    """No environment of that name is configured."""

    code = "unknown-environment"


class EnvironmentUnavailableError(NsmError):
    """The environment exists but cannot be used; the message says why."""

    code = "environment-unavailable"


class UnknownSessionError(NsmError):
    """No live session has that id or name."""

    code = "unknown-session"


class AmbiguousSessionError(NsmError):
    """Several live sessions have that name in different scopes."""

    code = "ambiguous-session"


class UnreadableSessionError(NsmError):
    """A session lives on, and this version of nsm cannot use it; the message says why."""

    code = "unreadable-session"


class WrongEnvironmentError(NsmError):
    """The session is bound to another environment."""

    code = "wrong-environment"


class SessionLimitError(NsmError):
    """`max_sessions` is reached."""

    code = "session-limit"


class OverloadedError(NsmError):
    """A bounded queue is full."""

    code = "overloaded"


class StartFailedError(NsmError):
    """The jail or the agent in it did not start; the message has its own words."""

    code = "start-failed"


class ForkRefusedError(NsmError):
    """A running session cannot be forked; the message says why, and it goes on as before."""

    code = "fork-refused"


class SessionEndedError(NsmError):
    """The session ended while the call was queued or running; the message says why."""

    code = "session-ended"


class SessionHiddenError(NsmError):
    """The session may be one whose holder does not answer; nothing was done."""

    code = "session-hidden"


class UnknownExecutionError(NsmError):
    """No execution of that id is running or remembered."""

    code = "unknown-execution"


class ResultLostError(NsmError):
    """Code that was sent again has been run, and its result is no longer there."""

    code = "result-lost"


class FateUnknownError(NsmError):
    """Nobody knows whether code that was sent again has been run."""

    code = "fate-unknown"


class CodeTooLargeError(NsmError):
    """The code exceeds `MAX_CODE_BYTES`."""

    code = "code-too-large"


class ResultTooLargeError(NsmError):
    """The code was run, and its answer has no room in a message."""

    code = "result-too-large"


class FileError(NsmError):
    """A file of a session cannot be read or written; the message says why."""

    code = "file-error"


class FileTooLargeError(FileError):
    """A file is larger than may be carried."""

    code = "file-too-large"


class JobError(NsmError):
    """A job cannot be started, or cannot do what was asked; `data` has the kernel's `errno`."""

    code = "job-error"


class UnknownJobError(JobError):
    """A session has no such job, or the job has ended or is forgotten."""

    code = "unknown-job"


class BadProjectError(NsmError):
    """The project directory cannot or must not be mounted."""

    code = "bad-project"


class NixUnavailableError(NsmError):
    """No usable nix was found; the message says what was."""

    code = "nix-unavailable"


class NixFailedError(NsmError):
    """Nix was run and gave no result; the message has its own words, `data` the end of its log."""

    code = "nix-failed"


class PackagesFailedError(NsmError):
    """An environment could not be made from packages; the message says why."""

    code = "packages-failed"


class ShuttingDownError(NsmError):
    """The supervisor is ending and takes no new work."""

    code = "shutting-down"


class DrainingError(NsmError):
    """The supervisor is being drained and takes no new work; nothing was run."""

    code = "draining"


class NotRunningError(NsmError):
    """No supervisor listens on the socket (raised by clients only)."""

    code = "not-running"


class SupervisorStartError(NotRunningError):
    """A supervisor was to start, and has not; the next try may succeed."""


class CannotStartError(SupervisorStartError):
    """A supervisor cannot start, which another try does not change (raised by clients only); the
    message has its own words."""

    code = "cannot-start"


class HostError(NsmError):
    """Another machine cannot be used as asked (raised by clients only); the message says why."""

    code = "host"


class HostUnreachableError(NotRunningError):
    """Another machine cannot be reached (raised by clients only)."""

    code = "host-unreachable"


class UnknownProgramError(NsmError):
    """The bridge has no such program for this client."""

    code = "unknown-program"


class BadProgramError(NsmError):
    """The program named by a definition of the bridge is not safe to start."""

    code = "bad-program"


class AuditFailedError(NsmError):
    """The audit log cannot be written, so the operation was refused."""

    code = "audit-failed"


class DisconnectedError(NsmError):
    """The connection ended before the answer came (raised by clients only)."""

    code = "disconnected"


_KINDS: list[type[NsmError]] = [
    *NsmError.__subclasses__(),
    CannotStartError,
    FileTooLargeError,
    HostUnreachableError,
    UnknownJobError,
]
_BY_CODE = {kind.code: kind for kind in _KINDS}


def from_wire(error: object) -> NsmError:
    """Rebuild the error that a peer sent; an unknown code gives a plain `NsmError`.

    Args:
        error: the value of an answer's `error` field, not yet trusted.
    """
    if not isinstance(error, Mapping):
        return InternalError("the supervisor answered with an error that is not a map")
    fields: Mapping[str, object] = error  # pyright: ignore[reportUnknownVariableType]
    code, data = fields.get("code"), fields.get("data")
    kind = _BY_CODE.get(code, NsmError) if isinstance(code, str) else NsmError
    return kind(
        str(fields.get("message") or "unknown error"),
        hint=str(fields.get("hint") or ""),
        data=data if isinstance(data, Mapping) else None,  # pyright: ignore[reportUnknownArgumentType]
    )


ErrorField: TypeAlias = Annotated[NsmError, Converted(dict[str, Any], from_wire)]
"""An error in a value that `nsm.wire.decode` reads."""


_MAX_CHARS = 60
"""Only the beginning is compared: megabytes take a second, in which nobody gets an answer."""


def closest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Choose the word that was probably meant; empty if none is close.

    Args:
        cutoff: as of `difflib.get_close_matches`.
    """
    from difflib import get_close_matches  # noqa: PLC0415  # only for a mistake

    return next(iter(get_close_matches(word[:_MAX_CHARS], list(known), n=1, cutoff=cutoff)), "")


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Ask about that word, in front of further sentences of a hint; empty if none is close."""
    close = closest(word, known, cutoff=cutoff)
    return f"Did you mean {close!r}? " if close else ""
