"""Refusals, in the forms that E2B's clients turn into their own exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsm import NsmError

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

_GONE = ("unknown-session", "session-ended")

_CODES = {
    "unknown-job": "not_found",
    "file-too-large": "no_space",
    "bad-request": "invalid_argument",
    "bad-project": "invalid_argument",
    "code-too-large": "invalid_argument",
    "unknown-environment": "not_found",
    "environment-unavailable": "not_found",
    "forbidden": "permission_denied",
    "session-limit": "resource_exhausted",
    "overloaded": "resource_exhausted",
    "not-running": "unavailable",
    "cannot-start": "unavailable",
    "host-unreachable": "unavailable",
    "disconnected": "unavailable",
    "shutting-down": "unavailable",
    "draining": "unavailable",
    "session-hidden": "unavailable",
}
"""Errors of nsm by their codes."""

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
    """A request that cannot be carried out, with one of the codes in `STATUSES`."""

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
    """Make the refusal that an error of nsm's becomes, in a request about a sandbox."""
    if error.code in _GONE:
        return gone(sandbox)
    code = _CODES.get(error.code, "internal")
    if error.code in ("file-error", "job-error"):
        code = _FILE_CODES.get(str(error.data.get("errno")), "invalid_argument")
    return RefusalError(code, str(error))
