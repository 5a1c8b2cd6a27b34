"""Environments as values."""

from __future__ import annotations

import pytest

import samples
from nsm.wire.environments import EnvironmentRow
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.messages import read


def test_an_environment_has_its_aliases() -> None:
    assert read(EnvironmentRow, samples.environment_row(aliases=["py"])).aliases == ("py",)
    with pytest.raises(RemoteProtocolError):
        read(EnvironmentRow, samples.environment_row(aliases=[1]))
