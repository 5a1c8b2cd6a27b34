"""The clock of tests in virtual time."""

from __future__ import annotations

from inspect import iscoroutinefunction

import pytest

from virtual_time import run_in_virtual_time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put our mark before the one that pytest-trio gives to every test."""
    for item in items:
        mark = item.get_closest_marker("virtual_time")
        function = getattr(item, "function", None)
        if mark is not None and mark.args != (False,) and iscoroutinefunction(function):
            item.add_marker(pytest.mark.trio(run=run_in_virtual_time), append=False)
