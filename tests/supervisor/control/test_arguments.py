"""Arguments that several operations read in the same way."""

from __future__ import annotations

from typing import Any

import pytest

from nsm.wire.errors import BadRequestError
from nsmd.control import arguments


@pytest.mark.parametrize(
    ("told", "seconds"),
    [({}, 0), ({"wait_s": 3}, 3), ({"wait_s": 61}, 60), ({"wait_s": 1e400}, 60)],
)
def test_waits_are_clamped(told: dict[str, Any], seconds: float) -> None:
    assert arguments.wait_s(told, 60) == seconds


@pytest.mark.parametrize("wrong", [-1, float("nan"), "1", True])
def test_no_time_to_wait(wrong: object) -> None:
    with pytest.raises(BadRequestError, match="wait_s"):
        arguments.wait_s({"wait_s": wrong}, 60)


def test_variables() -> None:
    assert arguments.variables({}) == {}
    assert arguments.variables({"environ": {"A_1": "\n"}}) == {"A_1": "\n"}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {"A": 1},
        {"A=": ""},
        {"": ""},
        {"1": ""},
        {1: ""},
        {"A": "a\0"},
        {"A": "x" * arguments.MAX_VARIABLE_CHARS},
        {f"A{number}": "" for number in range(arguments.MAX_VARIABLES + 1)},
    ],
)
def test_no_variables(wrong: object) -> None:
    with pytest.raises(BadRequestError, match="environ"):
        arguments.variables({"environ": wrong})
