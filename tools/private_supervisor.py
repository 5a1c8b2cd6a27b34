"""A supervisor for one program only, in a directory of its own.

Used by the demonstration and the benchmarks: the user's own supervisor is neither used nor
disturbed, and nothing stays behind, however the program ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

END_TIMEOUT_S = 15.0  # the supervisor allows its jails 10 s
MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un


class NotStartedError(Exception):
    """The supervisor did not start; the message has its own words."""


@contextmanager
def private_supervisor(
    prefix: str,
    configuration: str = "",
    more: Mapping[str, str] = {},
    program: Sequence[str] = ("-P", "-m", "nsmd"),
) -> Generator[dict[str, str]]:
    """Start a supervisor in a new directory; end it and remove the directory afterwards.

    For use in the main thread: Ctrl-C is put off while the supervisor starts and ignored while it
    ends, so that it cannot be forgotten in between.

    Args:
        prefix: of the directory's name.
        configuration: text of its `config.toml`.
        more: environment variables for the supervisor alone.
        program: arguments of Python that run it.

    Yields:
        The variables that lead nsm's programs to it.

    Raises:
        NotStartedError: it did not start.
    """
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=temporary_directory(prefix)))
    process = None
    try:
        variables = variables_for(directory)
        if configuration:
            folder = Path(variables["XDG_CONFIG_HOME"], "nsm")
            folder.mkdir(parents=True)
            (folder / "config.toml").write_text(configuration)
        with interrupts_deferred():
            process, reading = start({**variables, **more}, directory / "log", program)
        with open(reading, "rb") as ready:
            answer = ready.readline()
        if answer != b"\n":
            reason = answer.decode(errors="replace").strip() or tail(directory / "log")
            raise NotStartedError(f"the supervisor did not start: {reason}")
        yield variables
    finally:
        # A second Ctrl-C must not keep this from ending what was started.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if process is not None:
                end(process)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            signal.signal(signal.SIGINT, handler)


@contextmanager
def interrupts_deferred() -> Generator[None]:
    """Put SIGINT off until the end of the block (by a handler: a mask would be inherited)."""
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if received:
        raise KeyboardInterrupt


def variables_for(directory: Path) -> dict[str, str]:
    """The variables that lead nsm's programs to a supervisor in `directory`."""
    return {
        "NSM_SOCKET": str(directory / "control.sock"),
        "NSM_AUTOSTART": "0",
        "XDG_STATE_HOME": str(directory / "state"),
        "XDG_CONFIG_HOME": str(directory / "config"),
    }


def start(
    variables: dict[str, str], log: Path, program: Sequence[str] = ("-P", "-m", "nsmd")
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a supervisor.

    Returns:
        The process, and the descriptor from which one line comes when its socket answers.
    """
    reading, writing = os.pipe()
    try:
        with log.open("ab") as log_file:
            process = subprocess.Popen(
                [sys.executable, *program, "--ready-fd", str(writing)],
                env={**os.environ, **variables},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                pass_fds=[writing],
                start_new_session=True,  # Ctrl-C goes to the program, which ends it in order
            )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return process, reading


def temporary_directory(prefix: str) -> str:
    """Directory for temporary files: the usual one, unless a socket below it would have too long a
    path.
    """
    usual = tempfile.gettempdir()
    room = MAX_SOCKET_PATH_BYTES - len(f"/{prefix}xxxxxxxx/control.sock")
    return usual if len(os.fsencode(usual)) <= room else "/tmp"  # noqa: S108 - mkdtemp is safe there


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the supervisor to end, and wait; its jails end with it, however it ends."""
    process.terminate()
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(path: Path) -> str:
    """The last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-5:])
