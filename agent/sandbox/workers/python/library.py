"""The standard library, whatever lies in the working directory."""

from __future__ import annotations

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
