"""Start of a job's program, and what is told if it cannot be started."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource

from sandbox.limits import RESOURCES
from sandbox.linux import IGNORED_BY_PYTHON, leave_forks_alone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from typing import Any


WHY_NOT_STARTED = {
    errno.ENOENT: "no such program, or the interpreter that its first line names is missing",
    errno.EACCES: "not executable: its permissions do not allow it",
    errno.ENOEXEC: "not a program for this machine: a script needs a first line like #!/bin/sh",
    errno.ETXTBSY: "a process has it open to write: close the file first",
    errno.E2BIG: "its arguments and variables together are too long",
    errno.EAGAIN: "the session has reached its limit of processes: end some",
    errno.ENOMEM: "no memory is left for another process",
    errno.EMFILE: "the session has reached its limit of open files: end some jobs",
}

TERMINFO_PLACES = ("/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo", "/usr/lib/terminfo")
"""Directories in which distributions keep descriptions of terminals (terminfo(5))."""


class JobRefusal(Exception):  # noqa: N818  # clients have a JobError
    """A request about a job cannot be carried out; `number` is an errno."""

    def __init__(self, message: str, number: int = errno.EINVAL) -> None:
        super().__init__(message)
        self.number = number


def start_program(
    argv: Sequence[str],
    cwd: str,
    variables: Mapping[str, str],
    actions: Sequence[Any],
    limits: Mapping[str, int],
    *,
    has_forks: bool = False,
) -> int:
    """Start a program with posix_spawn(3): a fork would copy the agent's memory for nothing.

    The program is the leader of a session and of a process group. Everything that the agent has
    open is close-on-exec. Raise JobRefusal or OSError if it cannot be started.

    Args:
        actions: for its descriptors 0 to 2, as of posix_spawn(3).
        has_forks: the session has forks, which the program must not reach.
    """
    try:
        os.chdir(cwd)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        # With the errno, it would be taken for one about the program.
        raise JobRefusal(f"working directory {cwd!r:.300}: {why}") from None
    try:
        program = find_program(argv[0], variables.get("PATH", os.defpath))
        start = functools.partial(
            os.posix_spawn,
            program,
            list(argv),
            variables,
            file_actions=actions,
            setsid=True,
            setsigdef=IGNORED_BY_PYTHON,
        )
        with limited(limits):
            return in_a_scope(start) if has_forks else start()
    finally:
        os.chdir("/")


def in_a_scope(start: Callable[[], int]) -> int:
    """Start a program in a Landlock domain, which its parent enters: a thread that then ends."""
    import threading

    answers: list[int | OSError] = []

    def run() -> None:
        try:
            leave_forks_alone()
            answers.append(start())
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(answers[0], OSError):
        raise answers[0]
    return answers[0]


def choose_for_oom_kill(pid: int) -> bool:
    """Have the kernel kill a program before the agent when memory runs out; False to try again.

    The kernel wakes us a moment before it opens /proc/PID to us, and before the program runs. It
    stays closed for a program that we may not read.
    """
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        return error.errno != errno.EACCES
    with contextlib.suppress(OSError):
        os.write(fd, b"1000")
    os.close(fd)
    return True


def not_started(name: str, number: int) -> JobRefusal:
    """Make the error for a program that the kernel does not start."""
    if number == errno.EBADF:
        number = errno.EMFILE  # a pipe of ours has a number that the program may not have
    why = WHY_NOT_STARTED.get(number, os.strerror(number))
    return JobRefusal(f"{name!r:.300}: {why}", number)


SUFFIXES = {"python": ".py", "bash": ".sh", "node": ".js"}

REQUIRE = (
    'globalThis.require ??= process.getBuiltinModule?.("module")'
    '.createRequire(process.cwd() + "/"); '
)
"""Node takes a program with a top-level `await` for a module, in which there is no `require`."""

UNBUFFERED = {"python": ("-u",)}
"""Options with which output comes as it is printed."""


def write_program(name: str, program: str, code: Sequence[str], directory: str) -> tuple[str, ...]:
    """Write code as a program for an interpreter; returns its arguments, the file last.

    Raise JobRefusal if the file cannot be written.

    Args:
        code: that of its set-up comes first, as in its own process.
        directory: where it looks for modules that belong to the code.
    """
    path = os.path.join(directory, f".nsm-job-{os.urandom(4).hex()}{SUFFIXES[name]}")
    text = "\n".join(code)
    if name == "node" and "await" in text and "require" in text and text[:2] != "#!":
        text = REQUIRE + text
    try:
        with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(path)
        number = error.errno or 0
        raise JobRefusal(f"the code cannot be written: {os.strerror(number)}", number) from None
    return (program, *UNBUFFERED.get(name, ()), path)


def find_program(name: str, path: str) -> str:
    """The file of a program, as a shell finds it. Raise JobRefusal if there is none, or none that
    is executable."""
    if "/" in name:
        if os.path.isdir(name):
            raise JobRefusal(f"{name!r:.300}: a directory, not a program", errno.EACCES)
        return name
    refused = ""
    for directory in path.split(os.pathsep):
        file = os.path.join(directory or ".", name)
        if not os.path.isfile(file):
            continue
        if os.access(file, os.X_OK):
            return file
        refused = refused or file
    if refused:
        raise JobRefusal(f"{refused!r:.300}: {WHY_NOT_STARTED[errno.EACCES]}", errno.EACCES)
    raise JobRefusal(f"{name!r:.300}: no such program in PATH", errno.ENOENT)


@contextlib.contextmanager
def limited(limits: Mapping[str, int]) -> Generator[None, None, None]:
    """Have a program that is started meanwhile begin with these limits.

    A filter keeps the agent from limiting other processes, and there is no moment in between at
    which the new one could limit itself. So the agent has its limits for that time. It cannot raise
    a hard limit again: that of memory it keeps, since it needs far less. The other hard limits are
    the session's.
    """
    before: dict[int, tuple[int, int]] = {}
    for name, value in limits.items():
        kind = RESOURCES[name]
        before[kind] = resource.getrlimit(kind)
        hard = before[kind][1]
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (wanted, wanted if kind == resource.RLIMIT_DATA else hard))
        if kind == resource.RLIMIT_DATA:
            del before[kind]
    try:
        yield
    finally:
        for kind, both in before.items():
            resource.setrlimit(kind, both)


def terminal_type(wanted: object, variables: Mapping[str, str]) -> str:
    """Choose the TERM of a program with a terminal: what is wanted if terminfo knows that here.

    Args:
        wanted: TERM of the terminal that shows it.
        variables: the session's; its TERM stays if somebody has set it.
    """
    own = variables.get("TERM", "")
    if own not in ("", "dumb"):
        return own
    places = [*variables.get("TERMINFO_DIRS", "").split(":"), *TERMINFO_PLACES]
    for name in (wanted, "xterm"):
        if not isinstance(name, str) or not name or "/" in name:
            continue
        for folder in (name[0], f"{ord(name[0]):x}"):  # term(5)
            if any(os.path.isfile(os.path.join(place, folder, name)) for place in places if place):
                return name
    return "dumb"
