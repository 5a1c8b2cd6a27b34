"""Refusals, in the forms that E2B's clients turn into their own exceptions."""

from __future__ import annotations

from nsm.wire.errors import (
    BadProjectError,
    BadRequestError,
    CodeTooLargeError,
    DisconnectedError,
    DrainingError,
    EnvironmentUnavailableError,
    FileError,
    FileTooLargeError,
    ForbiddenError,
    JobError,
    NotRunningError,
    NsmError,
    OverloadedError,
    SessionEndedError,
    SessionHiddenError,
    SessionLimitError,
    ShuttingDownError,
    UnknownEnvironmentError,
    UnknownJobError,
    UnknownSessionError,
)

STATUSES = {
    "invalid_argument": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "already_exists": 409,
    "failed_precondition": 400,
    "resource_exhausted": 429,
    "no_space": 507,
    "internal": 500,
    "unknown": 500,
    "unimplemented": 501,
    "gone": 502,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
"""Codes, and the HTTP status of each. All but `gone` and `no_space` are codes of Connect's."""

_CONNECT = {"gone": "unavailable", "no_space": "resource_exhausted"}

_FILE_CODES = {
    "ENOENT": "not_found",
    "EEXIST": "already_exists",
    "ENOTEMPTY": "failed_precondition",
    "EACCES": "permission_denied",
    "EPERM": "permission_denied",
    "EROFS": "permission_denied",
    "EMFILE": "resource_exhausted",
    "ENOSPC": "no_space",
    "EDQUOT": "no_space",
    "EFBIG": "no_space",
}


class RefusalError(Exception):
    """A request that cannot be carried out.

    Args:
        code: one of `STATUSES`.
        message: what happened, and what to do.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """HTTP status."""
        return STATUSES[self.code]

    @property
    def connect_code(self) -> str:
        """Code in an answer of Connect."""
        return _CONNECT.get(self.code, self.code)


def gone(sandbox: str) -> RefusalError:
    """The refusal where a sandbox is no longer there. Clients know it by "was not found"."""
    return RefusalError("gone", f"The sandbox {sandbox} was not found")


def refusal_of(error: NsmError, sandbox: str = "") -> RefusalError:
    """Make the refusal that an error of nsm's becomes.

    Args:
        sandbox: id of the sandbox that the request is about.
    """
    text = str(error)
    match error:
        case UnknownSessionError() | SessionEndedError():
            return gone(sandbox)
        case UnknownJobError():
            return RefusalError("not_found", text)
        case FileTooLargeError():
            return RefusalError("no_space", text)
        case FileError() | JobError():
            code = _FILE_CODES.get(str(error.data.get("errno")), "invalid_argument")
            return RefusalError(code, text)
        case BadRequestError() | BadProjectError() | CodeTooLargeError():
            return RefusalError("invalid_argument", text)
        case UnknownEnvironmentError() | EnvironmentUnavailableError():
            return RefusalError("not_found", text)
        case ForbiddenError():
            return RefusalError("permission_denied", text)
        case SessionLimitError() | OverloadedError():
            return RefusalError("resource_exhausted", text)
        case (
            NotRunningError()
            | DisconnectedError()
            | ShuttingDownError()
            | DrainingError()
            | SessionHiddenError()
        ):
            return RefusalError("unavailable", text)
        case _:
            return RefusalError("internal", text)
