"""Reason why a project cannot be copied on write, as those who wait for a session are told."""

from __future__ import annotations

from copy import copy

from nsmd.jail.project import NoCopyError


def test_each_who_waits_can_be_told() -> None:
    error = NoCopyError("/p", "it is too old").in_place_of_a_fork("no")
    again = copy(error)
    assert type(again) is NoCopyError
    assert (str(again), again.hint) == (str(error), error.hint)
