"""Environments as values."""

from __future__ import annotations

import pytest

import samples
from nsm.wire.environments import EnvironmentRow
from nsm.wire.frames import RemoteProtocolError


def test_an_environment_has_its_aliases() -> None:
    assert EnvironmentRow.from_wire(samples.environment_row(aliases=["py"])).aliases == ("py",)
    with pytest.raises(RemoteProtocolError):
        EnvironmentRow.from_wire(samples.environment_row(aliases=[1]))
