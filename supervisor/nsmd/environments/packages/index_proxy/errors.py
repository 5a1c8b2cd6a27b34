"""Requests that are not answered with what an index has, and the words for that."""

from __future__ import annotations


class FetchError(Exception):
    """A request is refused or has failed.

    Args:
        status: status for the jail.
        detail: one sentence without a full stop, for people. It never has a URL, which may hold a
            secret.
        retry_after: seconds after which the index wants to be asked again; empty if it said none.
    """

    def __init__(self, status: int, detail: str, *, retry_after: bytes = b"") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after = retry_after
