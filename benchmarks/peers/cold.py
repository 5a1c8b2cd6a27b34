"""The peer: a jailed Python without nsm, started as fast as bubblewrap and CPython allow.

The same namespaces as a session of nsm's and the host's /usr, and nothing else: no /proc, /dev or
/tmp, no limits, no second process, `-I -S` so that Python imports next to nothing, built-in modules
only, pipes, posix_spawn(3) instead of subprocess. It is faster than a jail that is of use.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from pathlib import Path

CHILD = "import posix; exec(posix.read(0, 65536)); posix.write(1, b'.')"
"""Runs what comes on standard input and says when it is done."""

SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/libx32")
"""Paths that programs in /usr expect beside it: links into it, or directories where it is not
merged.
"""


class Cold:
    """Cold starts of a jailed Python.

    Args:
        python: the interpreter.
    """

    def __init__(self, python: str) -> None:
        self._command = (*jail(python), "--", python, "-I", "-S", "-c", CHILD)
        self._ending: deque[int] = deque()

    def once(self) -> None:
        """Start one, run a statement in it, and read that it was run. It ends by itself then."""
        input_reading, input_writing = os.pipe2(os.O_CLOEXEC)
        output_reading, output_writing = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.posix_spawn(
                self._command[0],
                self._command,
                {},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, input_reading, 0),
                    (os.POSIX_SPAWN_DUP2, output_writing, 1),
                ],
            )
            self._ending.append(pid)
            os.close(output_writing)  # else no end-of-file where it fails
            output_writing = -1
            os.write(input_writing, b"pass")
            answer = os.read(output_reading, 1)
        finally:
            for descriptor in (input_reading, input_writing, output_reading, output_writing):
                if descriptor >= 0:
                    os.close(descriptor)
        assert answer == b".", "the jail did not run Python; bubblewrap's own words are above"

    def reap(self, *, left: int = 0) -> None:
        """Wait for the ends of all but the last `left` of them."""
        while len(self._ending) > left:
            os.waitpid(self._ending.popleft(), 0)


def jail(python: str) -> tuple[str, ...]:
    """bwrap's command for a jail with an interpreter in it."""
    bwrap = shutil.which("bwrap")
    assert bwrap is not None, "nsm's set-up installs bubblewrap"
    return (bwrap, "--unshare-all", *system_arguments(python))


def system_arguments(python: str) -> list[str]:
    """bwrap's arguments for what an interpreter needs of the host's files."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for path in SYSTEM:
        if Path(path).is_symlink():
            arguments += ["--symlink", os.readlink(path), path]
        elif Path(path).is_dir():
            arguments += ["--ro-bind", path, path]
    prefix = Path(python).resolve().parent.parent
    if not prefix.is_relative_to("/usr"):
        arguments += ["--ro-bind", str(prefix), str(prefix)]
    return arguments
