"""Rows of live sessions, and reports of those that were ended."""

from __future__ import annotations

import samples
from nsm.wire.errors import UnknownSessionError
from nsm.wire.messages import read
from nsm.wire.sessions import KillReport, SessionRow


def test_a_session_row_has_the_fields_of_the_wire_in_their_order() -> None:
    wire = samples.session_row()
    assert read(SessionRow, wire)._asdict() == {**wire, "ports": tuple(wire["ports"])}
    assert list(SessionRow._fields) == list(wire)


def test_a_kill_report() -> None:
    report = read(KillReport, samples.kill_report())
    assert [(one.id, one.name) for one in report.killed] == [("s-1", "a"), ("s-2", None)]
    assert report.errors[0].target == "b"
    assert isinstance(report.errors[0].error, UnknownSessionError)
