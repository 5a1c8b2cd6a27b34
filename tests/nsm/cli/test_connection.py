"""Verbs that start no supervisor: what they say where none runs."""

from __future__ import annotations

from typing import Never

import pytest

from nsm.cli import connection
from nsm.cli.options import Done
from nsm.wire.errors import NotRunningError, SupervisorStartError


@pytest.mark.parametrize(
    ("kind", "message", "lines"),
    [
        (NotRunningError, "no supervisor listens on /x", ["nsm: no supervisor is running"]),
        (
            SupervisorStartError,
            "the supervisor did not start: config.toml: a mistake",
            [
                "nsm: no supervisor is running",
                (
                    "nsm: sessions of an earlier one are kept, but the supervisor did not start: "
                    "config.toml: a mistake"
                ),
                "nsm: Run it.",
            ],
        ),
    ],
)
def test_why_kept_sessions_are_not_taken_up_is_told(
    kind: type[NotRunningError],
    message: str,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def connect(**_: object) -> Never:
        raise kind(message, hint="Run it.")

    monkeypatch.setattr(connection, "Client", connect)
    with pytest.raises(Done) as caught:
        connection.running(code=1)
    assert caught.value.code == 1
    assert capsys.readouterr().err.splitlines() == lines
