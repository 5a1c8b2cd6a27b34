"""The table of a session's life is complete and says what the documentation says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.model.lifecycle import (
    TABLE,
    Effect,
    LifecycleError,
    LifecycleEvent,
    SessionState,
    advance,
)

LIVE = (SessionState.STARTING, SessionState.IDLE, SessionState.RUNNING)


def test_every_row_leads_to_a_state_and_known_effects() -> None:
    for (state, event), (following, effects) in TABLE.items():
        assert isinstance(state, SessionState)
        assert isinstance(event, LifecycleEvent)
        assert isinstance(following, SessionState)
        assert all(isinstance(effect, Effect) for effect in effects)


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("event", [LifecycleEvent.END, LifecycleEvent.LOST])
def test_a_live_session_can_always_be_ended(state: SessionState, event: LifecycleEvent) -> None:
    following, effects = advance(state, event)
    assert following is SessionState.ENDING
    assert Effect.KILL in effects


@pytest.mark.parametrize("state", [SessionState.STARTING, SessionState.ENDING])
def test_the_end_of_the_jail_is_reported_and_waiters_are_answered(state: SessionState) -> None:
    following, effects = advance(state, LifecycleEvent.GONE)
    assert following is SessionState.ENDED
    assert effects == (Effect.FAIL_ALL, Effect.REPORT)


def test_an_answer_without_a_question_is_a_fault_of_ours() -> None:
    with pytest.raises(LifecycleError, match="ANSWERED is impossible in state IDLE"):
        advance(SessionState.IDLE, LifecycleEvent.ANSWERED)


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
