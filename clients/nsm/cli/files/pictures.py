"""Files for the pictures of `nsm run`. No name comes from a jail, and no file is overwritten."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm import below

if TYPE_CHECKING:
    from nsm.cli.render.results import Picture

_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
"""Fails where anything has the name, a link that leads nowhere as well (open(2))."""


class Folder:
    """A directory for pictures.

    Args:
        directory: made at once where it is missing, and behind no link below the working directory;
            None for a fresh private one below the user's temporary directory, which is made when
            there is a picture.

    Raises:
        OSError: the directory cannot be made.
    """

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        if directory is not None:
            with below.opened_around(directory, make=True) as (root, place):
                if place:
                    below.make_directories(root, place, mounts=True)
        self._number = 0

    def write(self, picture: Picture, stem: str) -> str:
        """Write a picture to a file with a new name.

        Args:
            stem: beginning of the name; unsuitable characters are replaced.

        Returns:
            The file's absolute path.

        Raises:
            OSError: it cannot be written; nothing is left of it.
        """
        descriptor, path = self._create(_safe(stem), picture.extension)
        try:
            with open(descriptor, "wb") as file:
                file.write(picture.data)
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise
        return path

    def _create(self, stem: str, extension: str) -> tuple[int, str]:
        if self._directory is None:
            import tempfile  # noqa: PLC0415  # 8 ms that only pictures pay

            self._directory = tempfile.mkdtemp(prefix="nsm-")
        while True:
            self._number += 1
            name = f"{stem}-{self._number}.{extension}"
            path = os.path.join(os.path.abspath(self._directory), name)
            try:
                # Code may have made the directory a link since.
                with below.opened_around(path) as (root, place):
                    return below.open_below(root, place, _NEW_FILE, 0o666, mounts=True), path
            except FileExistsError:
                continue


def _safe(stem: str) -> str:
    stem = "".join(character if character in _SAFE else "_" for character in stem)
    return stem.lstrip(".-") or "image"
