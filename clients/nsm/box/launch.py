"""Becomes the jail: the last steps, each of which changes something."""

from __future__ import annotations

import os
import platform
import signal
from typing import NoReturn

from nsm import landlock
from nsm.box import bwrap, opening
from nsm.box.plan import BoxError, Plan
from nsm.box.profile import Profile


def make_state(profile: Profile, home: str) -> None:
    """Make the directories that boxes of a profile keep, where they are absent.

    Raises:
        BoxError: one cannot be made.
    """
    for state in profile.state:
        path = os.path.join(home, state.host)
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            raise BoxError(
                f"{path} cannot be made: {error.strerror}",
                hint="It is where the agent keeps its things; make it a directory of yours.",
            ) from error


def become(plan: Plan, program: str, *, sockets: str = "") -> NoReturn:
    """Execute bwrap: the process stays, its exit code is the command's.

    Raises:
        BoxError: bwrap cannot be executed.
    """
    from nsm.seccomp import filter_program  # noqa: PLC0415  # not for --dry-run's sake

    for number in _open_descriptors():
        os.set_inheritable(number, False)
    syscalls = filter_program(platform.machine())
    opened = opening.open_sources(plan.mounts)
    if not opening.is_known_to(program):
        # It finds them by path once more; what has been exchanged up to now is at least noticed.
        for number in opened.values():
            os.close(number)
        opened = {}
    lines = [
        *bwrap.arguments(plan, _memory_file, syscalls=syscalls, sockets=sockets, opened=opened),
        *bwrap.variables(plan),
    ]
    # Through a descriptor: other users read command lines, and /proc/1 in the box shows it.
    listed = _memory_file(b"".join(os.fsencode(line) + b"\0" for line in lines))
    _set_signals()
    landlock.close_scopes()
    try:
        os.execve(  # noqa: S606
            program, ["bwrap", "--args", str(listed), "--", *plan.command], {}
        )
    except OSError as error:
        raise BoxError(
            f"{program} cannot be executed: {error.strerror}",
            hint="`claudebox --check` tells what is missing.",
        ) from error


def _set_signals() -> None:
    # What the terminal sends to the whole group is for the command; bwrap would die of it, and
    # with it everything in the box.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    # Python ignores these for itself.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _open_descriptors() -> list[int]:
    """All but the three; what a caller has left open would be a way out of the box."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        numbers = list(range(os.sysconf("SC_OPEN_MAX")))
    return [number for number in numbers if number > 2 and _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _memory_file(data: bytes) -> int:
    number = os.memfd_create("nsm-box", 0)
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]
    os.lseek(number, 0, os.SEEK_SET)
    return number
