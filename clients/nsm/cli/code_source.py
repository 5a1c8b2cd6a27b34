"""Code to run with `nsm run`: from an argument, a file, or standard input."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios

from nsm.client.local_files import LinkError, open_here
from nsm.wire import code as wire_code
from nsm.wire.errors import BadRequestError
from nsm.wire.frames import MAX_FRAME_BYTES


def read_code(argument: str | None, file: str | None) -> str:
    """The code as text.

    Args:
        argument: the code itself; ``-`` or None for standard input where there is no `file`.
        file: path; ``-`` for standard input.

    Raises:
        BadRequestError: it is not UTF-8 text, or holds a NUL character.
        OSError: the file can't be read.
    """
    if file is not None and file != "-":
        try:
            with open(open_here(file, os.O_RDONLY, follow=False), "rb") as stream:
                # One byte more than could be sent, so that a device or pipe without end is
                # noticed as too large.
                data = stream.read(MAX_FRAME_BYTES + 1)
        except LinkError as error:
            raise BadRequestError(error.message, hint="Name the file itself.") from error
        except OSError as error:
            message = f"the file {file!r} can't be read: {error.strerror}"
            raise BadRequestError(message, hint="Check its name and mode.") from error
        return _decode(data, f"the file {file!r}")
    if argument is None or argument == "-" or file == "-":
        hint = "Give the code another way."
        if not sys.stdin:  # whoever started us has closed it
            raise BadRequestError("standard input is closed", hint=hint)
        try:
            data = sys.stdin.buffer.read(MAX_FRAME_BYTES + 1)
        except OSError as error:
            message = f"standard input can't be read: {error.strerror}"
            raise BadRequestError(message, hint=hint) from error
        return _decode(data, "standard input")
    return _decode(os.fsencode(argument), "the code")


def has_unread_input() -> bool:
    """Tell whether standard input holds data now that nobody has begun to read."""
    if not sys.stdin:
        return False
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            # A shell that reads a list line by line has begun, and goes on with it.
            return os.lseek(descriptor, 0, os.SEEK_CUR) == 0 < os.fstat(descriptor).st_size
        if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
            return False
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) > 0
    except (OSError, ValueError):  # there is no descriptor
        return False


def language_of(file: str | None, code: str) -> str:
    """Language of the code (`python`, `node`, `bash`), from its first line
    (``#!/usr/bin/env python3``) or else the file's name; empty if neither says."""
    first = code.partition("\n")[0]
    if first.startswith("#!"):
        words = [word for word in first[2:].split() if not word.startswith("-") and "=" not in word]
        names = [word.rpartition("/")[2] for word in words]
        if names[:1] == ["env"]:
            names = names[1:]
        return wire_code.of_program(names[0]) if names else ""
    return wire_code.of_suffix(os.path.splitext(file or "")[1])


def argv_of(file: str | None, arguments: list[str]) -> list[str]:
    """Name and arguments that a script finds; empty for code that is in no file."""
    if file is None:
        return []
    return [file if file == "-" else os.path.abspath(file), *arguments]


def _decode(data: bytes, what: str) -> str:
    try:
        code = data.decode("utf-8-sig")  # a byte order mark is no part of the code
    except UnicodeDecodeError as error:
        raise BadRequestError(
            f"{what} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}",
            hint="Convert it, e.g. with `iconv -f latin1 -t utf-8`.",
        ) from None
    if (position := code.find("\0")) >= 0:
        raise BadRequestError(
            f"{what} is no code: character {position} is NUL",
            hint="Is it a compiled or compressed file?",
        )
    return code
