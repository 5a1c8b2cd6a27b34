"""HOME for older artifacts' wrappers, which keep files there: our directory, not the user's home.

jail.nix makes each wrapper create a `passwd` and a `group` for its HOME's user once, and shows them
in every jail. In this directory they already exist: they name nobody, and wrappers that start at
once do not disturb each other.
"""

from __future__ import annotations

import os
from contextlib import suppress

from nsm.jail.failure import EXHAUSTED, exhausted
from nsm.wire.errors import StartFailedError
from nsmd.jail.user import JailUser

DATA = (".local", ".local/share", ".local/share/jail.nix")
"""Directory in which jail.nix keeps them."""


class WrapperHome:
    """Home directory for older artifacts' wrappers.

    Args:
        user: user that wrappers run as.
        path: path of the directory, made when needed.
    """

    def __init__(self, user: JailUser, path: str) -> None:
        self._user = user
        self._path = path

    def __repr__(self) -> str:
        return f"<WrapperHome {self._path}>"

    def path(self) -> str:
        """Path of the directory for that user.

        Raises:
            StartFailedError: it cannot be made, or that user cannot go there.
        """
        try:
            self._make()
            return self._user.way_to(os.path.realpath(self._path))
        except OSError as error:
            if error.errno in EXHAUSTED:
                raise exhausted(error) from error
            raise StartFailedError(
                f"Artifacts without a schema need a HOME to write to, and {self._path} cannot be "
                f"one: {error}.",
                hint="Build the environment again with nsm's lib.mkSandbox, which needs none.",
            ) from error

    def _make(self) -> None:
        for path in (self._path, *(os.path.join(self._path, below) for below in DATA)):
            with suppress(FileExistsError):
                os.makedirs(path, mode=0o700)
                self._user.give(path)
        uid = self._user.uid
        self._write("passwd", f"user:x:{uid}:{uid}:user:/workspace:/bin/sh\n")
        self._write("group", f"user:x:{uid}:\n")

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self._path, DATA[-1], name)
        with suppress(FileExistsError), open(path, "x", encoding="ascii") as file:
            file.write(text)
            self._user.give(path)
