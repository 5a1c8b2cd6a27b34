"""The token that clients show, read from its file."""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Callable

from nsm import httptoken

log = logging.getLogger(__name__)


class TokenFile:
    """Token for clients, as its file has it now.

    Each request checks the file, which takes 2 us, and reads it if it has changed: a new file needs
    no reload.

    Args:
        path: path of the file.
        changed: called when there is another token, or none any more.
        command: makes such a token, for messages.

    Attributes:
        problem: why nobody can be admitted now; empty if there is a token.
    """

    def __init__(
        self,
        path: str,
        changed: Callable[[], None] = lambda: None,
        *,
        command: str = httptoken.COMMAND,
    ) -> None:
        self._path = path
        self._command = command
        self._changed = changed
        self._seen: tuple[int, ...] | None = None
        self._token = b""
        self.problem = "it has not been read"

    def __repr__(self) -> str:
        return f"<TokenFile {self.problem or 'there'}>"

    def prepare(self) -> None:
        """Make the file if it is missing; `problem` has errors."""
        try:
            httptoken.ensure(self._path, command=self._command)
        except httptoken.TokenError as error:
            self._note("", str(error))
        self.look()

    def look(self) -> None:
        """Read the file if it has changed."""
        try:
            status = os.lstat(self._path)
            seen: tuple[int, ...] = (
                status.st_dev,
                status.st_ino,
                status.st_mode,
                status.st_size,
                status.st_mtime_ns,
                status.st_ctime_ns,
            )
        except OSError:
            seen = ()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._note(httptoken.read(self._path, command=self._command), "")
        except FileNotFoundError:
            self._note("", f"{self._path} is gone; `{self._command}` makes another one")
        except httptoken.TokenError as error:
            self._note("", str(error))

    def matches(self, given: bytes) -> bool:
        """Return whether a text is the token, in a time that does not show how much of it is right.

        Args:
            given: text that the client shows.
        """
        self.look()
        return bool(self._token) and hmac.compare_digest(self._token, given)

    def signature(self, text: bytes) -> str:
        """Return the token's signature of a text; empty if there is no token."""
        self.look()
        return hmac.new(self._token, text, "sha256").hexdigest() if self._token else ""

    def _note(self, token: str, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("no client over HTTP is admitted: %s", problem)
        before, self._token, self.problem = self._token, token.encode(), problem
        if before and before != self._token:
            log.info("clients over HTTP need another token from now on")
            self._changed()
