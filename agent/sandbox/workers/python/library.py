"""Parts of Python's own that the worker changes: modules, imports, tracers, hooks of forks.

Code finds modules anew and `__main__` as a script; slow imports are reported; tracers and profilers
see no frame of the worker; functions that libraries want called around a fork are.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from sandbox.workers.python.reporter import Outbox


class Library:
    """Imports modules of the standard library."""

    def __init__(self) -> None:
        self._path = list(sys.path)

    def load(self, name: str) -> Any:
        """A module of the standard library, whatever lies in the working directory."""
        module = sys.modules.get(name)
        if module is None:
            import importlib

            path = sys.path
            sys.path = list(self._path)
            try:
                module = importlib.import_module(name)
            finally:
                sys.path = path
        return module


def find_modules_anew() -> None:
    """Have imports find modules written since the last look, within a time stamp's resolution."""
    for finder in list(sys.path_importer_cache.values()):
        invalidate = getattr(finder, "invalidate_caches", None)
        if invalidate is not None:
            invalidate()


def set_arguments(argv: list[str] | None, namespace: dict[str, Any]) -> None:
    """Give code the name and the arguments of a script, if it is one's, until the next execution,
    and let it import what lies beside it."""
    with contextlib.suppress(Exception):  # code may have put anything there
        if "__file__" in namespace and sys.argv[:1] == [namespace["__file__"]]:
            directory = os.path.dirname(namespace.pop("__file__"))
            sys.argv = [""]
            if directory in sys.path:  # not always first: the script may have put some before it
                sys.path.remove(directory)
        if argv:
            sys.argv, namespace["__file__"] = argv, argv[0]
            directory = os.path.dirname(argv[0])
            if directory:  # else the jail does not see the file
                sys.path.insert(0, directory)


SLOW_IMPORT_S = 0.05
"""Shortest time of an import that is worth a report."""


class ImportTimer:
    """Reports imports of installed modules that take long, with all that they import themselves. It
    is on once the process is there that runs code.

    Python's import takes a lock for each module that is not loaded yet, and for no other. This puts
    another kind of lock in its place, which takes the time. So imports of loaded modules cost the
    same as before, and tracebacks have no frame more.
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


class Tracing:
    """Stands in for `sys.settrace` and `sys.setprofile`; hides frames of its own files."""

    def __init__(self, own_files: frozenset[str]) -> None:
        self._own_files = own_files
        self._functions = [self._hide_from("trace"), self._hide_from("profile")]
        self._given: list[Any] = [None, None]

    def _hide_from(self, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        """Keep frames of the worker from the functions that code gives to `sys.settrace` or
        `sys.setprofile`, e.g. those below `print`. Return Python's own functions, to get and to
        set."""
        original_set: Any = getattr(sys, f"set{name}")
        original_get: Any = getattr(sys, f"get{name}")
        own_files = self._own_files

        def set_function(function: Any, /) -> None:
            if function is None:
                original_set(None)
                return

            def filtered(frame: Any, event: str, argument: Any) -> Any:
                if frame.f_code.co_filename in own_files:
                    return None
                return function(frame, event, argument)

            setattr(filtered, "given", function)  # noqa: B010  # a function has no such field
            original_set(filtered)

        def get_function() -> Any:
            function = original_get()
            return getattr(function, "given", function)

        setattr(sys, f"set{name}", set_function)
        setattr(sys, f"get{name}", get_function)
        return original_get, original_set

    def resume(self) -> None:
        for (_, set_function), function in zip(self._functions, self._given):
            if function is not None:
                set_function(function)

    def suspend(self) -> None:
        """Between two executions nothing of what runs is code's.

        Tracers and profilers in C, which did not come through `sys`, cannot be set again, and stay.
        """
        for place, (get_function, set_function) in enumerate(self._functions):
            function = get_function()
            self._given[place] = function if hasattr(function, "given") else None
            if self._given[place] is not None:
                set_function(None)


FOR_THREADS = ("logging", "threading")
"""Modules whose fork hooks only reset locks that another thread may have held at the fork."""


def steps_of_fork(
    hooks: Sequence[Mapping[str, Callable[[], object]]],
) -> Sequence[Callable[[], object]]:
    """Functions that a fork would have run in the child, in its order, but for those of locks; from
    arguments of `os.register_at_fork`.

    Locks need no reset where the parent had one thread, which held none. Functions to run before a
    fork may take locks that those to run after it release.
    """
    missed = [
        hook
        for hook in hooks
        if getattr(hook.get("after_in_child"), "__module__", "") not in FOR_THREADS
    ]
    before = [hook.get("before") for hook in reversed(missed)]
    steps = (*before, *(hook.get("after_in_child") for hook in missed))
    return [step for step in steps if step is not None]


def run_fork_steps(steps: Sequence[Callable[[], object]]) -> None:
    """Run functions that the fork which made this process has left out."""
    for step in steps:
        try:
            step()
        except BaseException:  # noqa: S112  # as a fork does
            continue
    threading = sys.modules.get("threading")
    if threading is not None:
        with contextlib.suppress(AttributeError):
            threading.main_thread()._set_native_id()  # noqa: SLF001
