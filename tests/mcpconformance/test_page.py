"""The tables of the page."""

from __future__ import annotations

from mcpconformance import page
from mcpconformance.page import FRONT, NSM, Results, Row, Session
from mcpconformance.suite import Required
from mcpconformance.verdicts import FAILED, NOT_APPLICABLE, PASSED, WARNED, Verdict

RESULTS = Results(
    suite="1.2.3",
    rows={
        "2026-07-28": [
            Row(
                required=Required(name="ping"),
                verdicts={
                    NSM: Verdict(outcome=PASSED, succeeded=2),
                    FRONT: Verdict(outcome=FAILED, succeeded=1, note="`a`: x | y\nz"),
                },
            ),
            Row(
                required=Required(name="tasks", unscored="extension"),
                verdicts={
                    NSM: Verdict(outcome=NOT_APPLICABLE, succeeded=0, note="it has none"),
                    FRONT: Verdict(outcome=WARNED, succeeded=3, note="`b`: it should"),
                },
            ),
        ]
    },
    sessions=[
        Session(client="one 1", way="HTTP", revision="2026-07-28", faults=[]),
        Session(client="two 2", way="stdio", revision="2025-11-25", faults=["run: 'a', not 'b'"]),
    ],
)


def test_every_scenario_has_its_row() -> None:
    lines = page.tables(RESULTS).splitlines()
    assert "| `ping` | passed (2) | **failed**: `a`: x \\| y z |" in lines
    assert (
        "| `tasks` (not scored: extension) | not applicable: it has none | warned: `b`: it should |"
    ) in lines
    assert f"| 2026-07-28 | {NSM} | 1 | 0 | 0 | 1 | 2 |" in lines
    assert f"| 2026-07-28 | {FRONT} | 0 | 1 | 1 | 0 | 4 |" in lines
    assert "| one 1 | HTTP | 2026-07-28 | passed |" in lines
    assert "| two 2 | stdio | 2025-11-25 | **failed**: run: 'a', not 'b' |" in lines


def test_what_failed_is_told_once_more() -> None:
    assert page.failures(RESULTS) == [
        f"2026-07-28 ping, {FRONT}: `a`: x | y\nz",
        "two 2, stdio, 2025-11-25: run: 'a', not 'b'",
    ]
