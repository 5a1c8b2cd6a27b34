"""The directory of one box's sockets, below the supervisor's own."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
from collections.abc import Collection

from nsm import paths
from nsm.wire.errors import NsmError, StartFailedError
from nsmd.host.listeners import PlaceError, bound

log = logging.getLogger(__name__)

DIRECTORY = "boxes"
"""Name in the runtime directory."""

CONTROL, PROXY = "control.sock", "proxy.sock"
"""Names of the sockets in the box (`nsmbox.model.plan`)."""

_ID = re.compile("[0-9a-f]{8}")


class BoxDirectory:
    """Directory of one box's sockets.

    Args:
        box_id: id of the box.

    Attributes:
        directory: its absolute path.
    """

    def __init__(self, box_id: str) -> None:
        self.directory = os.path.join(paths.runtime_dir(), DIRECTORY, box_id)

    def make(self) -> None:
        """Make the directory.

        Raises:
            NsmError: it cannot be made.
        """
        try:
            paths.ensure_private_dir(os.path.dirname(self.directory))
            os.mkdir(self.directory, 0o700)
        except (paths.PathError, OSError) as error:
            raise _impossible(str(error)) from error

    def listen(self, name: str) -> socket.socket:
        """Make a listening socket in it, which only this user can reach.

        Raises:
            NsmError: it cannot be made.
        """
        path = os.path.join(self.directory, name)
        try:
            paths.check_socket_path(path)
            return bound(path)
        except (paths.PathError, PlaceError) as error:
            raise _impossible(str(error)) from error

    def remove(self) -> None:
        """Remove it with its content; may be repeated."""
        try:
            shutil.rmtree(self.directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s cannot be removed: %s", self.directory, error)


def remove_others(known: Collection[str]) -> None:
    """Remove the directories of boxes that have ended.

    Args:
        known: ids of the others.
    """
    directory = os.path.join(paths.runtime_dir(), DIRECTORY)
    try:
        names = os.listdir(directory)
    except OSError:
        return
    for name in names:
        if _ID.fullmatch(name) and name not in known:
            BoxDirectory(name).remove()


def _impossible(why: str) -> NsmError:
    return StartFailedError(
        f"The box's socket cannot be made: {why}",
        hint="`nsm doctor` checks the supervisor's directories.",
    )
