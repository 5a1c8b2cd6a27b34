"""The value of a secret, from its source. Standard library only.

No error has a part of what the source gave: it may be the value.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress

from nsmd.host.processes import signal_group
from nsmd.model.secrets import SecretSource

TIMEOUT_S = 30.0
"""Time limit of a command. Some ask the person, by a window or a touch of a key."""

MIN_CHARS, MAX_CHARS = 8, 4096
"""Bounds of a value: a shorter one would be found in texts that have nothing to do with it, and
servers refuse longer headers.
"""


class SourceError(Exception):
    """A source gave no usable value; the message is for people."""


def read_value(source: SecretSource, variables: Mapping[str, str]) -> str:
    """Read a value. Blocks for at most `TIMEOUT_S`.

    Args:
        variables: environment of the command, and where variables are looked up.

    Raises:
        SourceError: there is no usable value.
    """
    first = source.words[0]
    match source.kind:
        case "command":
            data = _output(source.words, variables)
        case "keyring":
            service, user = source.words
            words = ("secret-tool", "lookup", "service", service, "username", user)
            data = _output(words, variables)
        case "file":
            data = _content(first, variables)
        case "environment":
            if first not in variables:
                raise SourceError(
                    f"the supervisor's environment has no variable {first}; it has those with "
                    "which it was started"
                )
            data = os.fsencode(variables[first])
    return _checked(data)


def _checked(data: bytes) -> str:
    lines = data.rstrip(b"\r\n").split(b"\n")
    if lines == [b""]:
        raise SourceError("it gave nothing, expected one line")
    if len(lines) > 1:
        raise SourceError(f"it gave {len(lines)} lines, expected one")
    value = lines[0]
    if not all(0x21 <= byte <= 0x7E for byte in value):
        raise SourceError("its line has spaces or characters other than printable ASCII")
    if not MIN_CHARS <= len(value) <= MAX_CHARS:
        raise SourceError(
            f"its line has {len(value)} characters, expected {MIN_CHARS} to {MAX_CHARS}"
        )
    return value.decode("ascii")


def _content(path: str, variables: Mapping[str, str]) -> bytes:
    if path.startswith("~/"):
        path = os.path.join(variables.get("HOME", "/"), path[2:])
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise SourceError(f"the file {path} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SourceError(f"{path} is no ordinary file")
        return file.read(2 * MAX_CHARS)


def _output(words: tuple[str, ...], variables: Mapping[str, str]) -> bytes:
    """Run a command without a shell, and return its output."""
    program = words[0]
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it may have the value, too
            env=dict(variables),
            cwd=variables.get("HOME") if os.path.isdir(variables.get("HOME", "")) else "/",
            start_new_session=True,
        )
    except OSError as error:
        raise SourceError(f"{program} cannot be started: {error.strerror}") from None
    with process:
        try:
            data = _read(process, program)
            # It is not reaped: until then, its number is no other process's.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            # Whatever it has started and left behind, too.
            signal_group(process.pid, signal.SIGKILL)
        code = process.wait()
    if code:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise SourceError(f"{program} failed ({how}); run it yourself to see why")
    return data


def _read(process: subprocess.Popen[bytes], program: str) -> bytes:
    """Read all output until the command has ended, whoever else has the pipe.

    Raises:
        SourceError: it takes too long, or says too much.
    """
    assert process.stdout is not None, "it is a pipe"
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    deadline_s = time.monotonic() + TIMEOUT_S
    pidfd = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(pipe, select.POLLIN)
    data = b""
    try:
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            ready = {number for number, _ in poll.poll(left_s * 1000)}
            if not ready:
                raise SourceError(f"{program} did not end within {TIMEOUT_S:g} s, and was ended")
            with suppress(BlockingIOError):
                while piece := os.read(pipe, 65536):
                    data += piece
                    if len(data) > 2 * MAX_CHARS:
                        raise SourceError(f"{program} gave too much, expected one line")
                if pipe in ready:
                    poll.unregister(pipe)  # it has closed its output, and may go on
            if pidfd in ready:
                return data
    finally:
        os.close(pidfd)
