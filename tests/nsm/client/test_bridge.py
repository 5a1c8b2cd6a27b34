"""`client.bridge` of both clients, against a fake supervisor and word for word alike."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

import nsm
import samples
from fakesupervisor import Exchange, FakeSupervisor
from nsm.wire.errors import BadRequestError, UnknownProgramError
from nsm.wire.host import ProgramHelp, ProgramResult, ProgramsReport

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROBLEM: dict[str, Any] = {"source": "/x.md", "line": 3, "reason": "no `name`", "name": None}
REPORT: dict[str, Any] = {
    "enabled": True,
    "programs": [samples.program_row()],
    "problems": [PROBLEM],
}
BARE = {
    key: samples.program_row()[key]
    for key in ("name", "description", "timeout_s", "max_args", "allow_options")
}
"""Row of a program in a box, where nothing of the host is told."""


def programs(_: Exchange) -> dict[str, Any]:
    return REPORT


def documentation(exchange: Exchange) -> dict[str, Any]:
    if exchange.args != {"program": "deploy"}:
        raise UnknownProgramError("Program 'x' not found. Available: deploy")
    return {"program": BARE, "documentation": "# deploy\n"}


def run(exchange: Exchange) -> dict[str, Any]:
    for stream, text, skipped in (
        ("stdout", "one\n", 0),
        ("stderr", "\n", 0),
        ("stdout", "x" * 8192, 0),
        ("stdout", "two\n", 17),
    ):
        exchange.emit("output", {"stream": stream, "text": text} | {"skipped": skipped})
    return samples.program_result(stdout="one\n", exit_code=None, signal=15)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[FakeSupervisor]:
    with FakeSupervisor(
        str(tmp_path / "control.sock"),
        bridge_programs=programs,
        bridge_help=documentation,
        bridge_run=run,
    ) as supervisor:
        yield supervisor


async def test_both_clients_do_the_same(supervisor: FakeSupervisor) -> None:
    assert supervisor.path is not None
    lines: list[tuple[str, str]] = []

    def on_line(stream: str, line: str) -> None:
        lines.append((stream, line))

    with nsm.Client(socket_path=supervisor.path) as client:
        one = client.bridge
        blocking = [one.programs(), one.help("deploy"), one.run("deploy", ["a"], on_line=on_line)]
        with pytest.raises(UnknownProgramError, match="Available: deploy"):
            one.help("x")
    told = list(lines)
    async with nsm.AsyncClient(socket_path=supervisor.path) as client_:
        other = client_.bridge
        on_trio = [
            await other.programs(),
            await other.help("deploy"),
            await other.run("deploy", ["a"], on_line=on_line),
        ]
    assert blocking == on_trio
    assert lines == told * 2
    assert told == [
        ("stdout", "one"),
        ("stderr", ""),
        ("stdout", "x" * 8192),
        ("stdout", "[... 17 characters left out ...]"),
        ("stdout", "two"),
    ]
    report, shown, result = blocking
    assert isinstance(report, ProgramsReport)
    assert report.programs[0].env == ("DEPLOY_KEY",)
    assert report.problems[0]._asdict() == PROBLEM
    assert isinstance(shown, ProgramHelp)
    assert (shown.program.command, shown.program.env) == (None, ())
    assert shown.documentation == "# deploy\n"
    assert isinstance(result, ProgramResult)
    assert (result.signal, result.succeeded) == (signal.SIGTERM, False)


def test_what_is_no_text_is_not_sent(supervisor: FakeSupervisor) -> None:
    assert supervisor.path is not None
    with nsm.Client(socket_path=supervisor.path) as client:
        with pytest.raises(BadRequestError, match="argument 2 is not UTF-8 text"):
            client.bridge.run("deploy", ["a", "b\udcff"])
        with pytest.raises(BadRequestError, match="the program's name is not"):
            client.bridge.run("\ud800")
    assert not supervisor.requests
