"""Programs of the host for a box: what is said before anybody is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from box.plans import HOME, PROJECT, plan
from nsm.wire.host import ProgramProblem, ProgramRow, ProgramsReport
from nsmbox.host import bridge_programs
from nsmbox.model.plan import BoxError

if TYPE_CHECKING:
    from pathlib import Path

DEPLOY = ProgramRow(
    name="deploy",
    description="Deploys.",
    timeout_s=300.0,
    max_args=None,
    allow_options=False,
    command="/usr/local/bin/deploy",
    cwd=None,
    env=(),
    source=f"{HOME}/.config/nsm/tools/deploy.md",
)

REPORT = ProgramsReport(
    enabled=True,
    programs=(DEPLOY, DEPLOY._replace(name="restart-db")),
    problems=(
        ProgramProblem(source="/c/tools/bad.md", line=3, reason="`command` is none", name="bad"),
        ProgramProblem(source="/c/tools/odd.md", line=None, reason="is a pipe", name="odd"),
    ),
)


def refusal(*names: str, report: ProgramsReport = REPORT) -> tuple[str, str]:
    with pytest.raises(BoxError) as refused:
        bridge_programs.check(names, report)
    return refused.value.message, refused.value.hint


def test_those_that_there_are_are_taken() -> None:
    bridge_programs.check(("deploy", "restart-db"), REPORT)


def test_a_missing_program_is_named_with_those_that_are_there() -> None:
    message, hint = refusal("deploy", "deplyo")
    assert message == "program 'deplyo' not found. Available: deploy, restart-db"
    assert "nsm bridge ls" in hint
    message, _ = refusal("x", report=REPORT._replace(programs=()))
    assert message.endswith("Available: none")


def test_a_broken_definition_is_named_with_the_reason() -> None:
    message, hint = refusal("bad")
    assert message.endswith("has a mistake: /c/tools/bad.md:3: `command` is none")
    assert "nsm bridge check" in hint
    assert refusal("odd")[0].endswith("/c/tools/odd.md: is a pipe")


def test_all_that_are_not_there_are_said_at_once() -> None:
    message, hint = refusal("b", "deploy", "a", "bad", "odd")
    assert message == (
        "the definition of program 'bad' has a mistake: /c/tools/bad.md:3: `command` is none; "
        "the definition of program 'odd' has a mistake: /c/tools/odd.md: is a pipe; "
        "programs 'b', 'a' not found. Available: deploy, restart-db"
    )
    assert "nsm bridge check" in hint
    assert "nsm bridge ls" in hint


def test_a_bridge_that_is_off_is_said() -> None:
    message, hint = refusal("deploy", report=ProgramsReport(False, (), ()))
    assert "the bridge is off" in message
    assert "enabled = true" in hint


def test_programs_that_a_box_can_write_are_told(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(f"{PROJECT}/deploy.sh")
    given = replace(plan(), programs=("deploy", "make", "linked", "away"))
    rows = [
        DEPLOY._replace(command=f"{PROJECT}/bin/deploy"),
        DEPLOY._replace(name="make", command="/usr/bin/make", cwd=f"{PROJECT}/sub"),
        DEPLOY._replace(name="linked", command=str(link)),
        DEPLOY._replace(name="away", command=f"{PROJECT}-other/deploy", cwd=HOME),
        DEPLOY._replace(name="not-granted", command=f"{PROJECT}/x"),
    ]
    lies = f"it lies in {PROJECT}, where the box could have written it."
    assert list(bridge_programs.notes(given, rows)) == [
        f"deploy is not started for this box: {lies}",
        f"make works in {PROJECT}/sub: what it reads there, the box may have written.",
        f"linked is not started for this box: {lies}",
    ]


def test_without_a_supervisor_they_are_not_looked_for() -> None:
    found = bridge_programs.row(("deploy",), running=False, client="nsm box")
    assert found.status == "warn"
    assert "deploy: not looked for" in found.detail


def test_a_mac_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert bridge_programs.row(("deploy",), running=True, client="nsm box").status == "fail"
    with pytest.raises(BoxError, match="for Linux alone"):
        bridge_programs.look(replace(plan(), programs=("deploy",)), client="nsm box")


def test_writable_places_of_a_plan_are_known() -> None:
    assert plan().writable == (f"{HOME}/.claudebox", PROJECT)
