"""Trial of the program that a supervisor will become, while the supervisor still runs.

After the exec there is no way back. So the installed program is run first: it loads all that it
needs to serve, reads the configuration, and ends.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

import trio

from nsmd.fdstore.store import TRY_OPTION

TRY_TIMEOUT_S = 60.0
"""Time for the trial, which takes half a second; a machine that swaps, or is emulated, needs
longer.
"""

_MAX_SAID_CHARS = 2000


class SuccessorError(Exception):
    """The program would not start; the message has its own words."""


async def try_successor(command: Sequence[str]) -> str:
    """Run the next program without letting it serve.

    Args:
        command: command that will be executed.

    Returns:
        Its version.

    Raises:
        SuccessorError: it does not start, or not in time.

    Cancellation: ends it.
    """
    said = None
    try:
        with trio.move_on_after(TRY_TIMEOUT_S):
            said = await trio.run_process(
                [*command, TRY_OPTION],
                stdin=subprocess.DEVNULL,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                cwd="/",
                env=os.environ,
            )
    except OSError as error:
        raise SuccessorError(f"{command[0]} can't be started: {error.strerror}") from error
    if said is None:
        raise SuccessorError(f"it has not loaded within {TRY_TIMEOUT_S:g} s")
    if said.returncode != 0:
        words = said.stderr.decode(errors="replace").strip()[-_MAX_SAID_CHARS:]
        raise SuccessorError(words or f"it ends with {said.returncode}")
    return said.stdout.decode(errors="replace").strip()
