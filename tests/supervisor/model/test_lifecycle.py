"""The table of a session's life is complete and says what the documentation says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.model.lifecycle import Effect, LifecycleError, LifecycleEvent, SessionState, advance

LIVE = (SessionState.STARTING, SessionState.IDLE, SessionState.RUNNING)


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("event", [LifecycleEvent.END, LifecycleEvent.LOST])
def test_a_live_session_can_always_be_ended(state: SessionState, event: LifecycleEvent) -> None:
    following, effects = advance(state, event)
    assert following is SessionState.ENDING
    assert Effect.KILL in effects


@given(st.lists(st.sampled_from(list(LifecycleEvent)), max_size=30))
def test_any_legal_history_reports_at_most_once_and_never_leaves_the_end(
    history: list[LifecycleEvent],
) -> None:
    state, reports, kills = SessionState.STARTING, 0, 0
    for event in history:
        try:
            following, effects = advance(state, event)
        except LifecycleError:
            continue
        if state is SessionState.ENDED:
            assert following is SessionState.ENDED
        reports += effects.count(Effect.REPORT)
        kills += effects.count(Effect.KILL)
        state = following
    assert reports <= 1
    assert kills <= 1
