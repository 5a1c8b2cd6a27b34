"""The supervisor itself, as a value."""

from __future__ import annotations

import pytest

import samples
from nsm.wire.errors import ForbiddenError
from nsm.wire.status import Status


def test_status() -> None:
    assert Status.from_wire(samples.status()).jail.uid == 1000
    assert Status.from_wire(samples.status(jail={"kind": "x"})).jail.note == ""


def test_the_status_that_a_box_is_told() -> None:
    with pytest.raises(ForbiddenError, match="version 1\\.2 is there"):
        Status.from_wire({"version": "1.2"})
