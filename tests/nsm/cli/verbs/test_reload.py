"""Messages of `nsm reload` while it waits."""

from __future__ import annotations

from nsm.cli.verbs.supervisor import waits
from nsm.wire.messages import read
from nsm.wire.status import ReloadReport

DEPLOY = {"program": "deploy", "client": "claude-code", "scope": "box:shop"}


def report(*programs: dict[str, str]) -> ReloadReport:
    return read(ReloadReport, {"waits_for": list(programs), "waits_s": 10.0})


def test_programs_and_who_asked_for_them_are_named() -> None:
    told = waits(report(DEPLOY, {**DEPLOY, "program": "restart-db", "client": "\x1b[2Jmine"}))
    assert told == (
        "waiting 10 s at most for programs that the bridge has started, which are stopped then: "
        "deploy (asked for by claude-code in box:shop), "
        "restart-db (asked for by \\x1b[2Jmine in box:shop)"
    )
