"""The terminal's mode and its signals while `nsm attach` has it.

Between prompts the terminal does not echo, so that what is typed ahead does not get into the
output, and hands over each character at once, so that the next prompt finds them as they were
typed. Ctrl-C and Ctrl-Z stay signals there. (While a prompt is shown, prompt_toolkit puts the
terminal into raw mode and back.)
"""

from __future__ import annotations

import asyncio
import os
import signal
import termios
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from prompt_toolkit.input import Input

ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

_INPUT_FLAGS, _LOCAL_FLAGS, _CHARACTERS = 0, 3, 6
"""Places in what `termios.tcgetattr` returns."""


@contextmanager
def quiet(descriptor: int) -> Generator[None]:
    """Keep the terminal in the mode between prompts, and give it back as it was.

    Resources: takes over SIGCONT on the running loop, since a shell that the program was suspended
    to has its own mode.
    """
    before = termios.tcgetattr(descriptor)

    def set_mode() -> None:
        mode = termios.tcgetattr(descriptor)
        mode[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
        mode[_LOCAL_FLAGS] |= termios.ISIG
        mode[_INPUT_FLAGS] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
        mode[_CHARACTERS][termios.VMIN], mode[_CHARACTERS][termios.VTIME] = 1, 0
        termios.tcsetattr(descriptor, termios.TCSANOW, mode)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCONT, set_mode)
    try:
        set_mode()
        yield
    finally:
        loop.remove_signal_handler(signal.SIGCONT)
        with suppress(termios.error):  # it has been closed
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


@contextmanager
def handled(handlers: dict[signal.Signals, Callable[[], object]]) -> Generator[None]:
    """Take over signals on the running loop."""
    loop = asyncio.get_running_loop()
    try:
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


@contextmanager
def typing_ahead(keyboard: Input, on_leave: Callable[[], object]) -> Generator[None]:
    """Keep what is typed for the next prompt.

    Args:
        on_leave: called for Ctrl-D, and when the terminal has gone.
    """

    def read() -> None:
        keys = [key for key in keyboard.read_keys() if key.key != Keys.CPRResponse]
        if keyboard.closed or any(key.key == Keys.ControlD for key in keys):
            on_leave()
        store_typeahead(keyboard, [key for key in keys if key.key != Keys.ControlD])

    with keyboard.attach(read):
        yield


def end_by(number: int) -> None:
    """Die of a signal that was put off until the terminal was restored, so that whoever started
    us is told the truth."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
