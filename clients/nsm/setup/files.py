"""Reading and replacing files that are the user's, not nsm's."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from typing import TYPE_CHECKING

from nsm import paths
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_MAX_BYTES = 32 * 1024 * 1024
"""Claude Code's own file, with the histories of many projects, has a few MB."""


class SettingsFileError(NsmError):
    """A file can't be changed safely; none was."""

    code = "setup"


def read(path: str) -> bytes | None:
    """The content of a file; None where there is none. Links are followed.

    Raises:
        SettingsFileError: it is no regular file, or too large.
        OSError: it can't be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SettingsFileError(f"{path} is no regular file", hint="Nothing was changed.")
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise SettingsFileError(
            f"{path} has more than {_MAX_BYTES // 1024**2} MiB", hint="Nothing was changed."
        )
    return content


def check_writable(path: str) -> None:
    """Check that a file is not read-only: replacing it whole would need no right to write to it.

    Raises:
        SettingsFileError: it is; whoever made it so, NixOS for one, writes it another way.
    """
    with suppress(FileNotFoundError):
        if not os.stat(path).st_mode & 0o222 or not os.access(path, os.W_OK):
            raise SettingsFileError(
                f"{path} is read-only, and was left as it is",
                hint="Make it writable (`chmod u+w`), or add or remove nsm where that file is made "
                "from. Nothing was changed.",
            )


def replace(path: str, content: bytes | None, expected: bytes | None) -> list[str]:
    """Replace a file, whole or not at all; remove it for None.

    The new file has the old one's mode. A link stays a link: the file that it leads to is replaced.

    Args:
        expected: what the file holds; it is left as it is if it holds something else by now.

    Returns:
        The directories that were made for it.

    Raises:
        SettingsFileError: it holds something else.
        OSError: it can't be written.
    """
    real = os.path.realpath(path)
    if content is None:
        _check(path, expected)
        os.unlink(path)
        return []
    made = _make_directories(os.path.dirname(real))
    temporary = f"{real}.nsm-{os.urandom(6).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            with suppress(FileNotFoundError):
                status = os.stat(real)
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
                with suppress(PermissionError):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _check(path, expected)
        os.replace(temporary, real)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        remove_empty(made)
        raise
    return made


def remove_empty(directories: list[str]) -> None:
    """Remove directories, the innermost first, that have nothing in them."""
    for directory in reversed(directories):
        with suppress(OSError):
            os.rmdir(directory)


@contextmanager
def locked(wait: Callable[[], None]) -> Generator[None]:
    """Let one `nsm setup` at a time do what is inside.

    Args:
        wait: is called if another one is at it.
    """
    directory = record_dir()
    os.makedirs(paths.state_dir(), mode=0o700, exist_ok=True)  # private, as all want it later
    paths.ensure_private_dir(directory)
    fd = os.open(f"{directory}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            flock(fd, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            wait()
            flock(fd, LOCK_EX)
        yield
    finally:
        os.close(fd)


def record_dir() -> str:
    """The directory of the records of what was changed."""
    return os.path.join(paths.state_dir(), "setup")


def _check(path: str, expected: bytes | None) -> None:
    if read(path) != expected:
        raise SettingsFileError(
            f"{path} has changed meanwhile, and was left as it is",
            hint="Close the program that writes it, and run the command again.",
        )


def _make_directories(directory: str) -> list[str]:
    missing: list[str] = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    missing.reverse()
    for each in missing:
        os.mkdir(each, 0o700)
    return missing
