"""The terminal while a job's own terminal shows in it: every key goes to the job."""

from __future__ import annotations

import os
import termios
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

DEFAULT_SIZE = (24, 80)


@contextmanager
def raw(descriptor: int) -> Generator[None]:
    """Hand over each key at once, and give the terminal back as it was."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        with suppress(termios.error):  # it has been closed
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def size_of(descriptor: int) -> tuple[int, int]:
    """Rows and columns of a terminal; the usual ones where it does not tell."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return DEFAULT_SIZE
    return size.lines or DEFAULT_SIZE[0], size.columns or DEFAULT_SIZE[1]
