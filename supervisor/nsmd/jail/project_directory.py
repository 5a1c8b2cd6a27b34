"""A project's directory for a jail: exactly the one that was checked, or none."""

from __future__ import annotations

import os

from nsm.wire.errors import BadProjectError
from nsmd.jail.project_copy import NoCopyError
from nsmd.jail.user import JailUser, OtherGroupError
from nsmd.model.values import CheckedDirectory


def open_project(user: JailUser, project: CheckedDirectory) -> tuple[str, int]:
    """Return a project's path for the jails' user, and a descriptor of it.

    Raises:
        BadProjectError: it is not the directory that was checked, that user cannot go there, or
            could not change it in an overlay.
    """
    try:
        path = _way_to_own(user, project.path) if project.copied else user.way_to(project.path)
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError as error:
        raise BadProjectError(
            f"The project directory {project.path} cannot be shown: {error}.",
            hint="Open it to that user (chmod o+rx), start nsm as the project's owner, or set "
            "[defaults] jail_uid in config.toml.",
        ) from error
    except OSError as error:
        raise BadProjectError(
            f"The project directory {project.path} cannot be opened: {error.strerror}.",
            hint="Name another directory, or put it back.",
        ) from error
    found = os.fstat(fd)
    if (found.st_dev, found.st_ino) != (project.device, project.inode):
        os.close(fd)
        raise BadProjectError(
            f"The project directory {project.path} was replaced by another one.",
            hint="Start a new session.",
        )
    return path, fd


def _way_to_own(user: JailUser, path: str) -> str:
    """Return a path by which the files belong to that user.

    Raises:
        NoCopyError: that user's jails could not have an overlay of them.
    """
    try:
        return user.way_to_own(path)
    except OSError as error:
        if not os.path.isdir(path):
            raise  # this has another message
        hint = error.hint if isinstance(error, OtherGroupError) else None
        raise NoCopyError(path, error.strerror or str(error), hint) from error
