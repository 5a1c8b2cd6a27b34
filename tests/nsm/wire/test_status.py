"""The supervisor itself, as a value."""

from __future__ import annotations

import pytest

import samples
from nsm.wire.errors import ForbiddenError
from nsm.wire.status import read_status


def test_status() -> None:
    assert read_status(samples.status()).jail.uid == 1000
    assert read_status(samples.status(jail={"kind": "x"})).jail.note == ""


def test_the_status_that_a_box_is_told() -> None:
    with pytest.raises(ForbiddenError, match="version 1\\.2 is there"):
        read_status({"version": "1.2"})
