"""The clock of tests in virtual time."""

from __future__ import annotations

import pytest

from virtual_time import OURS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put our marks before the one that pytest-trio gives to every test."""
    for item in items:
        runs = [each.kwargs.get("run") for each in item.iter_markers("trio")]
        marks = [OURS[run] for run in runs if run in OURS]
        if marks:
            item.add_marker(marks[0], append=False)
