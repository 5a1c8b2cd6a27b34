"""Both clients have the same methods, and type checkers find a mistake in each of them."""

from __future__ import annotations

import inspect
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

import nsm
import samples
from fakesupervisor import answer
from nsm.client import environments, host, jobs, places, sandbox, session_files
from nsm.wire.errors import BadRequestError, UnknownProgramError
from nsm.wire.host import ProgramHelp, ProgramResult, ProgramsReport

if TYPE_CHECKING:
    from pathlib import Path

    from fakesupervisor import Exchange, FakeSupervisor

PAIRS = [
    (nsm.Client, nsm.AsyncClient),
    (jobs.Job, jobs.AsyncJob),
    (sandbox.Sandbox, sandbox.AsyncSandbox),
    (session_files.SessionFiles, session_files.AsyncSessionFiles),
    (session_files.ChangeWatch, session_files.AsyncChangeWatch),
    (host.Ports, host.AsyncPorts),
    (host.Secrets, host.AsyncSecrets),
    (host.Bridge, host.AsyncBridge),
    (environments.Builds, environments.AsyncBuilds),
    (host.Boxes, host.AsyncBoxes),
    (environments.ProjectEnvironments, environments.AsyncProjectEnvironments),
]

NOT_AWAITED = {"close_in_child", "files", "in_project", "in_session", "sandbox"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_same_methods_with_the_same_arguments(blocking: type, awaited: type) -> None:
    ours, theirs = public(blocking), public(awaited)
    assert ours - theirs <= {"autostart", "close"}
    assert theirs - ours <= {"aclose", "close_in_child", "wait_lost"}
    for name in ours & theirs:
        one, other = getattr(blocking, name), getattr(awaited, name)
        if not inspect.isfunction(one):
            continue
        assert [*inspect.signature(one).parameters] == [*inspect.signature(other).parameters], name
        assert not inspect.iscoroutinefunction(one)
        assert inspect.iscoroutinefunction(other) == (name not in NOT_AWAITED), name
        assert inspect.getdoc(one), name


# The current directory as the project, and why it may be none.


@pytest.mark.parametrize("home", ["home", "link"])
@pytest.mark.parametrize(
    ("directory", "is_project"),
    [("home/code", True), ("homework", True), ("home", False), ("link", False), (".", False)],
)
def test_the_home_directory_and_those_above_are_no_project(
    tmp_path: Path, directory: str, is_project: bool, home: str
) -> None:
    (tmp_path / "home/code").mkdir(parents=True)
    (tmp_path / "homework").mkdir()
    (tmp_path / "link").symlink_to("home")
    found = places.default_project(str(tmp_path / directory), str(tmp_path / home))
    assert found == (str(tmp_path / directory) if is_project else None)


def test_a_name_that_is_not_utf_8_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    os.mkdir(odd)
    monkeypatch.chdir(os.fsdecode(odd))
    assert places.current_project() is None
    assert "is not UTF-8" in places.why_no_project()
    assert "home directory" not in places.why_no_project()


# Programs of the bridge.


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


def show_help(exchange: Exchange) -> dict[str, Any]:
    if exchange.args != {"program": "deploy"}:
        raise UnknownProgramError("Program 'x' not found. Available: deploy")
    return {"program": BARE, "documentation": "# deploy\n"}


def run_program(exchange: Exchange) -> dict[str, Any]:
    for stream, text, skipped in (
        ("stdout", "one\n", 0),
        ("stderr", "\n", 0),
        ("stdout", "x" * 8192, 0),
        ("stdout", "two\n", 17),
    ):
        exchange.emit("output", {"stream": stream, "text": text} | {"skipped": skipped})
    return samples.program_result(stdout="one\n", exit_code=None, signal=15)


async def test_programs_of_the_bridge_are_the_same_for_both(supervisor: FakeSupervisor) -> None:
    supervisor.handlers |= {
        "bridge_programs": answer(**REPORT),
        "bridge_help": show_help,
        "bridge_run": run_program,
    }
    lines: list[tuple[str, str]] = []

    def on_line(stream: str, line: str) -> None:
        lines.append((stream, line))

    with nsm.Client(connection=supervisor.connect()) as client:
        one = client.bridge
        blocking = [one.programs(), one.help("deploy"), one.run("deploy", ["a"], on_line=on_line)]
        with pytest.raises(UnknownProgramError, match="Available: deploy"):
            one.help("x")
    told = list(lines)
    async with nsm.AsyncClient(connection=supervisor.connect()) as client_:
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


def test_arguments_of_programs_are_text(supervisor: FakeSupervisor) -> None:
    with nsm.Client(connection=supervisor.connect()) as client:
        with pytest.raises(BadRequestError, match="argument 2 is not UTF-8 text"):
            client.bridge.run("deploy", ["a", "b\udcff"])
        with pytest.raises(BadRequestError, match="the program's name is not"):
            client.bridge.run("\ud800")
    assert not supervisor.requests
