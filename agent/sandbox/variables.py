"""Environment variables of a Python that runs already."""

from __future__ import annotations

import contextlib
import importlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def set_variables(variables: Mapping[str, str]) -> None:
    """Set variables, and have what a Python reads of them at its start read again."""
    os.environ.update(variables)
    if "TZ" in variables:
        importlib.import_module("time").tzset()
    if any(name == "LANG" or name.startswith("LC_") for name in variables):
        c_library = importlib.import_module("_locale")
        with contextlib.suppress(c_library.Error):  # one that is not there: the other one stays
            c_library.setlocale(c_library.LC_CTYPE, "")
