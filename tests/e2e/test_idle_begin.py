"""The sessions that `test_idle_end.py` uses are made before all else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.idle import idle_sessions

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.node


@pytest.mark.run_first
def test_sessions_are_made_and_left_alone(run_directory: Path) -> None:
    with idle_sessions(run_directory).client() as client:
        assert {row.state for row in client.sessions()} == {"idle"}
