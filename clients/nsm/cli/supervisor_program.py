"""Verbs that the supervisor's program carries out by itself, without serving anyone."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from nsm import paths


def need_installed() -> None:
    """
    Raises:
        PathError: the supervisor is not installed here, so that nothing of it can be here.
    """
    from importlib.util import find_spec  # noqa: PLC0415  # most verbs that are loaded with this do without

    if paths.supervisor_command()[0] == sys.executable and find_spec("nsmd") is None:
        raise paths.PathError(
            "the supervisor is not installed here. In a box it never is: ask outside of it."
        )


def replace_us(*options: str) -> NoReturn:
    """Become `nsm-supervisor` with these options."""
    sys.stdout.flush()
    command = paths.supervisor_command()
    need_installed()
    try:
        os.execv(command[0], [*command, *options])  # noqa: S606
    except OSError as error:
        raise paths.PathError(
            f"the supervisor's program {command[0]!r} can't be started: {error.strerror}. "
            "Set NSM_SUPERVISOR to its path, or unset it."
        ) from error
