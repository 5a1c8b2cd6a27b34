"""The secret that clients of MCP over HTTP show: a file that only its user can read.

Whoever has it may run code as the listener's clients may. It is made when it is first needed; the
supervisor looks at the file with each request, so that another one holds at once.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress

from nsm import paths

log = logging.getLogger(__name__)

TOKEN_BYTES = 32
"""256 bits: nobody guesses it, however often they may try."""

COMMAND = "nsm http token"
"""Command that makes the token of MCP over HTTP; messages name it."""

MAX_FILE_BYTES = 1024
"""Largest token file. A longer one has no token."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{32,512}=*")
"""A token that an Authorization header can carry (RFC 6750, 2.1), and that is not too short to be a
secret.
"""


class TokenError(Exception):
    """Error for a token that is missing or cannot be used; the message says why and what to do."""


def ensure(path: str, *, command: str = COMMAND, prefix: str = "") -> str:
    """The token in a file, which is made where it is missing.

    Args:
        command: makes such a token, for messages.
        prefix: beginning of a new token, of which the rest is hexadecimal then.
    """
    try:
        return read(path, command=command)
    except FileNotFoundError:
        _write(path, instead=False, prefix=prefix)
    return read(path, command=command)  # of two who made it at once, that of the first


def rotate(path: str, *, command: str = COMMAND, prefix: str = "") -> str:
    """Put another token in the place of the one that is there, if any; returns it. Arguments are
    as of `ensure`.
    """
    _write(path, instead=True, prefix=prefix)
    return read(path, command=command)


def read(path: str, *, command: str = COMMAND) -> str:
    """The token in a file; `command` makes such a token, for messages.

    Raises:
        FileNotFoundError: there is no such file.
        TokenError: others can read it, it is no regular file, or it holds no token.
    """
    remove = f"Remove it, and `{command}` makes another one."
    try:
        # Not blocking, should it be a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TokenError(f"{path} cannot be opened: {error.strerror}. {remove}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise TokenError(f"{path} is not a regular file of yours. {remove}")
        if status.st_mode & 0o077:
            raise TokenError(
                f"{path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}), who may have "
                f"read it. `{command} --rotate` makes another one."
            )
        text = os.read(descriptor, MAX_FILE_BYTES + 1).decode("latin-1").strip()
    except OSError as error:
        raise TokenError(f"{path} cannot be read: {error.strerror}.") from error
    finally:
        os.close(descriptor)
    if not _TOKEN.fullmatch(text):
        raise TokenError(
            f"{path} holds no token: expected 32 to 512 letters, digits or ._~+/- in one line. "
            f"`{command} --rotate` makes one."
        )
    return text


def _write(path: str, *, instead: bool, prefix: str) -> None:
    """Write a new token, whole or not at all. One that is there stays unless `instead`."""
    token = secrets.token_hex(TOKEN_BYTES) if prefix else secrets.token_urlsafe(TOKEN_BYTES)
    text = f"{prefix}{token}\n".encode()
    try:
        paths.ensure_private_dir(os.path.dirname(path))
        if instead:
            paths.replace_file(path, text, sync=True)
            return
        beside = f"{path}.{secrets.token_hex(4)}"
        paths.replace_file(beside, text, sync=True)
        try:
            with suppress(FileExistsError):  # somebody else was first
                os.link(beside, path, follow_symlinks=False)
        finally:
            os.unlink(beside)
    except (paths.PathError, OSError) as error:
        raise TokenError(f"{path} cannot be written: {error}") from error


class TokenFile:
    """Token for clients, as its file has it now.

    Each request checks the file, which takes 2 us, and reads it if it has changed: a new file needs
    no reload.

    Args:
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
        command: str = COMMAND,
    ) -> None:
        self._path = path
        self._command = command
        self._changed = changed
        self._seen: tuple[int, ...] | None = None
        self._token = b""
        self.problem = "it has not been read"

    def prepare(self) -> None:
        """Make the file if it is missing; `problem` has errors."""
        try:
            ensure(self._path, command=self._command)
        except TokenError as error:
            self._set("", str(error))
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
            self._set(read(self._path, command=self._command), "")
        except FileNotFoundError:
            self._set("", f"{self._path} is gone; `{self._command}` makes another one")
        except TokenError as error:
            self._set("", str(error))

    def matches(self, given: bytes) -> bool:
        """Tell whether a client's text is the token, in a time that does not show how much of it is
        right.
        """
        self.look()
        return bool(self._token) and hmac.compare_digest(self._token, given)

    def signature(self, text: bytes) -> str:
        """Return the token's signature of a text; empty if there is no token."""
        self.look()
        return hmac.new(self._token, text, "sha256").hexdigest() if self._token else ""

    def _set(self, token: str, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("no client over HTTP is admitted: %s", problem)
        before, self._token, self.problem = self._token, token.encode(), problem
        if before and before != self._token:
            log.info("clients over HTTP need another token from now on")
            self._changed()
