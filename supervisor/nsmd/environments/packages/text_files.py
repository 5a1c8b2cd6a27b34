"""Text files that somebody else has written, read without waiting for them. Blocks."""

from __future__ import annotations

import errno
import os
import stat

from nsm.below import open_below


class TextFileError(Exception):
    """A file cannot be used; the message is a clause that says why."""


def read_text(path: str, max_bytes: int, *, follow: bool = False, root: int | None = None) -> str:
    """Read a regular file of UTF-8 text.

    Args:
        follow: it lies in a directory in which no code can put a link.
        root: descriptor of a directory below which it has to lie, with no link on its way; `path`
            is relative to it.

    Raises:
        TextFileError: it cannot be read, is none, or is larger.
    """
    try:
        # A pipe would keep the build waiting for somebody who writes. A link in a project may have
        # been put there by code, to see what is in another file.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        flags |= 0 if follow else os.O_NOFOLLOW
        opened = (
            os.open(path, flags) if root is None else open_below(root, path, flags, mounts=True)
        )
        with open(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise TextFileError("it is no regular file")
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise TextFileError(f"it is larger than {max_bytes} bytes")
        return data.decode()
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise TextFileError(
                "it is a symbolic link, or behind one: name the file itself"
            ) from error
        raise TextFileError(f"it cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TextFileError("it is not UTF-8 text") from error
