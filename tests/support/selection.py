"""Parameters of a test of which only some are run by `make test`, and all by `make soak`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark.structures import ParameterSet


def one_in(number: int, values: Iterable[object]) -> list[ParameterSet]:
    """Mark all but the first of each so many values `slow`: variations of those that stay."""
    return [
        pytest.param(value, marks=[pytest.mark.slow] if position % number else [])
        for position, value in enumerate(values)
    ]
