"""Sessions that nobody used for 15 s and for 70 s still answer.

A parent-death signal once ended every session after ten idle seconds, and no short test saw it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import trio

from e2e.idle import CODE, SECONDS, idle_sessions, session_name

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.node


@pytest.mark.run_last
@pytest.mark.parametrize("seconds", SECONDS)
def test_idle_sessions_answer(run_directory: Path, seconds: float) -> None:
    idle = idle_sessions(run_directory)
    trio.run(trio.sleep, max(0.0, idle.since_s + seconds - time.monotonic()))
    with idle.client() as client:
        for env, (_, second) in CODE.items():
            result = client.run(second, env=env, session=session_name(env, seconds))
            assert not result.session.created
            assert "42" in (result.stdout or str(result.displays))
