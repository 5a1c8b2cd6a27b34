"""Starts a box on macOS, or prints how: `nsmbox.planning.seatbelt` says what it is.

Not verified on a Mac.
"""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import tempfile
from typing import NoReturn

from nsmbox.consent import masking
from nsmbox.model.plan import BoxError, Plan
from nsmbox.planning import seatbelt

OWN = "/private/tmp/nsm-box"
"""Stand-in for the box's own directory, in what is printed."""


def become(plan: Plan) -> NoReturn:
    """Make what the box has of its own, and execute `sandbox-exec`.

    The directory is left to the system, which clears its temporary directories: the process that
    made it is the one that becomes the command.

    Raises:
        BoxError: it cannot be.
    """
    for number in _numbers():
        os.set_inheritable(number, False)
    # Python ignores these for itself.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    own = os.path.realpath(tempfile.mkdtemp(prefix="nsm-box-"))
    try:
        start = seatbelt.start(plan, own, terminals=_terminals())
        make(start)
        os.chdir(plan.start or plan.directory)
        arguments = [seatbelt.PROGRAM, "-p", start.profile, *start.command]
        os.execve(seatbelt.PROGRAM, arguments, dict(start.variables))  # noqa: S606
    except OSError as error:
        raise BoxError(f"{seatbelt.PROGRAM} cannot be executed: {error.strerror}") from error
    finally:  # reached where there is no box
        shutil.rmtree(own, ignore_errors=True)


def make(start: seatbelt.Start) -> None:
    """Make directories, files and links; nothing is replaced.

    Raises:
        BoxError: something cannot be made.
    """
    try:
        for path, mode in start.directories:
            os.makedirs(path, exist_ok=True)
            os.chmod(path, mode)
        for path, data, mode in start.files:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(number, "wb") as file:
                file.write(data)
        for path, says in start.links:
            os.symlink(says, path)
    except OSError as error:
        raise BoxError(f"{error.filename} cannot be made: {error.strerror}") from error


def command(plan: Plan) -> str:
    """The whole, for bash; what is secret is the shell's own variable there, or masked.

    Raises:
        BoxError: the plan has what there is not on macOS.
    """
    start = seatbelt.start(plan, OWN, terminals=_terminals())
    secret = {one.name: one for one in plan.variables if one.secret}
    lines = [f"mkdir -p {shlex.quote(path)}" for path, _ in start.directories]
    lines += [
        f"base64 -d <<<{base64.b64encode(data).decode()} >{shlex.quote(path)}"
        for path, data, _ in start.files
    ]
    lines += [f"ln -s {shlex.quote(says)} {shlex.quote(path)}" for path, says in start.links]
    variables: list[str] = []
    for name, value in start.variables:
        if name in secret and secret[name].inherited:
            variables.append(f'{name}="${name}"')
        else:
            shown = masking.masked(name, value, secret=name in secret)
            variables.append(f"{name}={shlex.quote(shown)}")
    words = [
        f"cd {shlex.quote(plan.start or plan.directory)} && exec env -i",
        *variables,
        f"{seatbelt.PROGRAM} -p {shlex.quote(start.profile)}",
        " ".join(map(shlex.quote, start.command)),
    ]
    return "( " + "\n".join([*lines, " \\\n  ".join(words)]) + "\n)"


def _terminals() -> tuple[str, ...]:
    found: set[str] = set()
    for number in range(3):
        try:
            found.add(os.ttyname(number))
        except OSError:
            continue
    return tuple(sorted(found))


def _numbers() -> list[int]:
    """All open descriptors but the three."""
    return [int(name) for name in os.listdir("/dev/fd") if int(name) > 2 and _is_open(int(name))]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
