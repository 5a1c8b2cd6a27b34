"""Times that imports take."""

from __future__ import annotations

import _thread
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandbox.workers.python.outbox import Outbox


SLOW_IMPORT_S = 0.05
"""Shortest time of an import that is worth a report."""


class ImportTimer:
    """Reports imports of installed modules that take long, with all that they import themselves.

    Python's import takes a lock for each module that is not loaded yet, and for no other. This puts
    another kind of lock in its place, which takes the time. So imports of loaded modules cost the
    same as before, and tracebacks have no frame more.

    Args:
        on_import: is called with the name of each module that was imported.

    Attributes:
        is_on: it reports. Not before the process is there that runs code.
    """

    def __init__(self, out: Outbox, on_import: Callable[[str], None]) -> None:
        # What a call needs is at hand: code may have replaced it.
        self._now = time.monotonic
        self._get_ident = _thread.get_ident
        self._main_thread = _thread.get_ident()
        self._modules = sys.modules
        self._places = tuple(os.path.join(path, "") for path in sys.path if path)
        self._out = out
        self._outer: object = None
        self._began_s = 0.0
        self.is_on = False
        self._replace_locks(on_import)

    def _replace_locks(self, on_import: Callable[[str], None]) -> None:
        bootstrap: Any = sys.modules["_frozen_importlib"]
        base: Any = getattr(bootstrap, "_ModuleLockManager", None)
        if base is None:  # another kind of Python: it reports nothing
            return
        timer = self

        class TimedLock(base):  # type: ignore[misc]
            def __enter__(self) -> None:
                timer.begin(self)
                base.__enter__(self)

            def __exit__(self, *error: object) -> None:
                base.__exit__(self, *error)
                on_import(self._name)
                timer.end(self, self._name, failed=error[0] is not None)

        TimedLock.__name__ = base.__name__
        bootstrap._ModuleLockManager = TimedLock  # noqa: SLF001

    def begin(self, lock: object) -> None:
        """Begin to measure, unless this is part of another import."""
        if self.is_on and self._outer is None and self._get_ident() == self._main_thread:
            self._outer = lock
            self._began_s = self._now()

    def end(self, lock: object, name: str, *, failed: bool) -> None:
        """Report an import that took long and succeeded."""
        if self._outer is not lock:
            return
        self._outer = None
        seconds = self._now() - self._began_s
        if seconds >= SLOW_IMPORT_S and not failed:
            file = getattr(self._modules.get(name), "__file__", None)
            # What code has put into its own directories cannot be imported in advance.
            if type(file) is str and file.startswith(self._places):
                self._out.report_import(name, seconds)
