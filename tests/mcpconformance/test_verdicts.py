"""Meaning of the suite's checks for a server."""

from __future__ import annotations

import pytest

from mcpconformance.suite import Check, Required
from mcpconformance.verdicts import FAILED, NOT_APPLICABLE, PASSED, WARNED, Offer, Verdict, judge

NOTHING = Offer(tools=["run"], capabilities=["tools"])
GOOD = Check(id="good", status="SUCCESS")
BAD = Check(id="bad", status="FAILURE", reason="it was wrong")
SHOULD = Check(id="should", status="WARNING", reason="it should")
LISTED = "sep-2575-server-sends-tools-list-changed-on-subscription"


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([GOOD, GOOD], Verdict(outcome=PASSED, succeeded=2)),
        ([GOOD, BAD], Verdict(outcome=FAILED, succeeded=1, note="`bad`: it was wrong")),
        ([GOOD, SHOULD], Verdict(outcome=WARNED, succeeded=1, note="`should`: it should")),
        (
            [BAD, SHOULD],
            Verdict(outcome=FAILED, succeeded=0, note="`bad`: it was wrong; `should`: it should"),
        ),
        (
            [GOOD, Check(id="x", status="FAILURE", untestable=True)],
            Verdict(outcome=PASSED, succeeded=1, note="1 more check not applicable"),
        ),
        (
            [GOOD, Check(id="x", status="SKIPPED"), Check(id=LISTED, status="WARNING")],
            Verdict(outcome=PASSED, succeeded=1, note="2 more checks not applicable"),
        ),
        (
            [Check(id="x", status="FAILURE", untestable=True)],
            Verdict(
                outcome=NOT_APPLICABLE,
                succeeded=0,
                note="none of its checks can be made without the suite's own tools",
            ),
        ),
        (
            [GOOD, Check(id="sep-2549-prompts-list-caching-hints", status="FAILURE")],
            Verdict(outcome=PASSED, succeeded=1, note="1 more check not applicable"),
        ),
        ([GOOD, Check(id="x", status="INFO")], Verdict(outcome=PASSED, succeeded=1)),
    ],
)
def test_a_scenario_that_every_server_is_asked(checks: list[Check], verdict: Verdict) -> None:
    assert judge(Required(name="ping"), checks, NOTHING) == verdict


@pytest.mark.parametrize(
    ("scenario", "note"),
    [
        ("prompts-list", "it has no prompts"),
        ("tasks-lifecycle", "it has no tasks"),
        ("tools-call-image", "the suite's `test_image_content` is not there"),
    ],
)
def test_what_a_server_does_not_have_is_never_passed(scenario: str, note: str) -> None:
    for checks in ([BAD], [GOOD]):
        verdict = judge(Required(name=scenario), checks, NOTHING)
        assert verdict == Verdict(outcome=NOT_APPLICABLE, succeeded=0, note=note)


def test_tasks_are_judged_without_the_suite_s_own_tools() -> None:
    offer = Offer(tools=["run"], capabilities=["io.modelcontextprotocol/tasks"])
    verdict = judge(Required(name="tasks-lifecycle"), [BAD], offer)
    assert verdict.note == "the suite's `slow_compute` is not there"
    refused = Check(id="sep-2663-server-rejects-undeclared-client", status="FAILURE")
    gate = Required(name="tasks-capability-negotiation")
    assert judge(gate, [GOOD, refused], offer).outcome == PASSED
    assert judge(gate, [GOOD, BAD], offer).outcome == FAILED


def test_what_a_server_says_that_it_has_is_judged() -> None:
    offer = Offer(
        tools=["slow_compute", "test_image_content", "test_trigger_tool_change"],
        capabilities=["prompts", "io.modelcontextprotocol/tasks"],
    )
    for scenario in ("prompts-list", "tasks-lifecycle", "tools-call-image"):
        assert judge(Required(name=scenario), [BAD], offer).outcome == FAILED
    hints = Check(id="sep-2549-prompts-list-caching-hints", status="FAILURE")
    assert judge(Required(name="caching"), [GOOD, hints], offer).outcome == FAILED
    listed = Check(id=LISTED, status="WARNING")
    assert judge(Required(name="server-stateless"), [GOOD, listed], offer).outcome == WARNED
