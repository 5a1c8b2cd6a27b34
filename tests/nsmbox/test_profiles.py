"""Profiles as files: what all of them have to hold."""

from __future__ import annotations

import pytest

from nsmbox import profiles
from nsmbox.host import mcp


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_holds_together(name: str) -> None:
    it = profiles.load(name)
    assert it.about
    assert bool(it.program) == bool(it.install), "how to get what may be missing"
    assert it.mcp in ("", *mcp.KINDS)
    assert not it.arguments or it.program
    for state in it.state:
        # A box's own: what the host's agent keeps is never shown.
        assert state.host.split("/")[0] != state.box.split("/")[0]
        assert not state.host.startswith(("/", "..")), state
    assert len({state.host for state in it.state}) == len(it.state)
    if it.mcp in ("claude", "gemini"):  # the first directory has the file
        assert it.state


def test_each_agent_that_can_be_told_has_a_profile() -> None:
    assert {profiles.load(name).mcp for name in profiles.names()} - {""} == set(mcp.KINDS)
