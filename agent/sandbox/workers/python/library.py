"""Modules: those of the standard library, those written lately, and `__main__` as a script."""

from __future__ import annotations

import contextlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


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
    """Give code the name and the arguments of a script, until the next execution, and let it import
    what lies beside it.

    Args:
        argv: None for code that is no script's.
        namespace: of `__main__`.
    """
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
