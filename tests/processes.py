"""Processes that tests start themselves."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, AnyStr

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Generator


@contextmanager
def ending(process: subprocess.Popen[AnyStr]) -> Generator[subprocess.Popen[AnyStr]]:
    """Wait for its end after the block, and bring it about if the block fails.

    `Popen` as a context manager only waits, so that a failing test would never end.
    """
    with process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise
