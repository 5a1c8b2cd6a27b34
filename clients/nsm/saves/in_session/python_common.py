"""Helpers of the programs that save and restore Python sessions.

They run in the same module as this file, before the program's own text.
"""

# pyright: basic

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main_dict() -> dict[str, Any]:
    """Return the variables of the session."""
    return sys.modules["__main__"].__dict__


def load_module(name: str, path: str) -> types.ModuleType:
    """Load a module from a file under a name of our own; code may have another of that kind."""
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec", dont_inherit=True), module.__dict__)
    return module


def words(error: BaseException) -> str:
    """Return the message of an error, whatever that does."""
    text = ""
    with contextlib.suppress(BaseException):
        text = str(error)
    if isinstance(error, pickle.PickleError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a file that appears whole."""
    with open(f"{path}.new", "w", encoding="ascii") as file:
        json.dump(value, file)
    os.rename(f"{path}.new", path)


def installed_packages() -> dict[str, str]:
    """Return the versions of installed distributions by name."""
    found: dict[str, str] = {}
    for place in reversed([path for path in sys.path if isinstance(path, str)]):
        with contextlib.suppress(OSError):
            for name in os.listdir(place or "."):
                if name.endswith(".dist-info"):
                    package, _, version = name[: -len(".dist-info")].partition("-")
                    found[package.lower()] = version
    return found
