"""Entry of the command `nsm`: Ctrl-C while its modules are loaded ends it without a traceback."""

from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False  # `typing` is one of these modules
if TYPE_CHECKING:
    from typing import Any, NoReturn

_signal: Any = import_module("_signal")
"""`signal` without the enumerations around it."""

_EXIT_INTERRUPTED = 130  # as in `options`


def program() -> NoReturn:
    """Run `nsm.cli.main.program`."""
    # Whoever started us may want SIGINT to be ignored.
    is_usual = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if is_usual:
        _signal.signal(_signal.SIGINT, _end)
    from nsm.cli import main  # noqa: PLC0415  # this is what takes long

    try:
        if is_usual:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        main.program()
    except KeyboardInterrupt:
        os._exit(_EXIT_INTERRUPTED)


def _end(*_: object) -> None:
    os._exit(_EXIT_INTERRUPTED)
