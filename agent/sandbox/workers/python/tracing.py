"""Tracers and profilers of code, which see no frame of the worker."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Tracing:
    """Stands in for `sys.settrace` and `sys.setprofile`.

    Args:
        own_files: files whose frames are hidden.
    """

    def __init__(self, own_files: frozenset[str]) -> None:
        self._own_files = own_files
        self._functions = [self._hide_from("trace"), self._hide_from("profile")]
        self._given: list[Any] = [None, None]

    def _hide_from(self, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        """Keep frames of the worker from the functions that code gives to `sys.settrace` or
        `sys.setprofile`, e.g. those below `print`.

        Returns:
            Python's own functions, to get and to set.
        """
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
