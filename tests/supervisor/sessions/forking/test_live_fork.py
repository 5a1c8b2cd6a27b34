"""Refusals of forks that the supervisor makes by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from nsm.wire.errors import ForkRefusedError
from nsmd.sessions.forking.live_fork import check_forkable
from nsmd.sessions.session import Session


@pytest.mark.parametrize(("undo", "why"), [(0, "while code runs in it"), (1, "during an undo")])
def test_a_busy_session_is_refused_with_what_it_does(undo: int, why: str) -> None:
    original = SimpleNamespace(
        id="s",
        name="work",
        spec=SimpleNamespace(environment=SimpleNamespace(interpreter="python", image=None)),
        jail=None,
        running=SimpleNamespace(request=SimpleNamespace(undo=undo)),
        runs=SimpleNamespace(queued=False),
    )
    with pytest.raises(ForkRefusedError, match=f"'work' cannot be forked {why}"):
        check_forkable(cast("Session", original))
