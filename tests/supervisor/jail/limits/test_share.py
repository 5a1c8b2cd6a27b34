"""Processor shares that fall for as long as a session works, on a made-up tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fake_cgroups import FakeTree
from fakes import PYTHON, FakeJail, spec
from nsmd.jail.limits import tree as files
from nsmd.jail.limits.confinement import Confinement, Measured
from nsmd.jail.limits.enforcer import enforcement_by
from nsmd.jail.limits.group import AT_REST, PART, Group, limits_of
from nsmd.jail.limits.tree import OWN_WEIGHT, GroupTree
from nsmd.model.values import Outcome, SessionLimits

if TYPE_CHECKING:
    from collections.abc import Callable

WEIGHT = 200
LOW = str(WEIGHT // PART)
FINE = Outcome(stdout="", stderr="", exit_code=0)


class Session:
    """A confinement and what is in its group's file."""

    def __init__(self, fake: FakeTree, jail: FakeJail, weight: int = WEIGHT) -> None:
        limited = replace(spec(), environment=replace(PYTHON, cpu_weight=weight))
        tree = GroupTree(str(fake.top))
        self.group = Group.new(tree, f"s{weight}", limits_of(limited, SessionLimits()))
        enforcement = enforcement_by(self.group.holds, "")
        self.it = Confinement(jail, self.group.limits, enforcement, self.group)

    @property
    def weight(self) -> str:
        return (Path(self.group.directory) / "cpu.weight").read_text().strip()

    def look(self, processes: int = AT_REST) -> bool:
        return self.it.end_excess(Measured(processes, 0, []))

    def run(self) -> None:
        self.it.begun()

    def end(self) -> None:
        assert self.it.ended(FINE) == ()


@pytest.fixture
def jail() -> FakeJail:
    made = FakeJail(1, spec())
    made.agent_end.close()
    made.release()
    return made


@pytest.fixture
def session(fake: FakeTree, jail: FakeJail) -> Session:
    return Session(fake, jail)


def test_a_long_execution_has_less_until_it_ends(session: Session) -> None:
    session.run()
    assert session.look()
    assert session.weight == str(WEIGHT)  # it may have begun just before
    assert session.look()
    assert session.weight == LOW
    assert session.it.facts()["cpu_weight"] == int(LOW)
    assert session.group.limits.cpu_weight == WEIGHT
    assert session.look()
    session.end()
    assert session.weight == str(WEIGHT)
    assert not session.look()
    assert session.weight == str(WEIGHT)


def test_what_was_left_behind_has_less_until_it_is_gone(session: Session) -> None:
    session.run()
    session.look(AT_REST + 1)
    session.look(AT_REST + 1)
    session.end()
    assert session.weight == LOW  # what goes on is no younger for that
    session.run()
    assert session.weight == str(WEIGHT)
    assert session.look(AT_REST + 1)
    assert session.weight == LOW  # one look is enough: it was there before
    session.end()
    assert session.weight == LOW
    assert not session.look()
    assert session.weight == str(WEIGHT)


def writes_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    write: Callable[[str, str, str], None] = files.write_file
    seen: list[str] = []

    def count(directory: str, name: str, text: str) -> None:
        seen.append(text)
        write(directory, name, text)

    monkeypatch.setattr(files, "write_file", count)
    return seen


def test_a_change_is_one_write(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = writes_of(monkeypatch)
    session.run()
    for _ in range(5):
        session.look()
    session.end()
    session.run()
    session.end()
    assert seen == [LOW, str(WEIGHT)]


@pytest.mark.parametrize("answer", [OSError(1, "Operation not permitted"), "77"])
def test_a_kernel_that_does_not_take_it_is_not_asked_at_each_look(
    fake: FakeTree,
    session: Session,
    answer: OSError | str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake.refused["cpu.weight"] = answer
    seen = writes_of(monkeypatch)
    session.run()
    for _ in range(5):
        session.look()
    assert seen == [LOW]
    assert "cpu.weight: " in caplog.text


def test_a_session_that_has_ended_is_left_alone(session: Session) -> None:
    session.run()
    session.look()
    session.it.close()
    assert not session.look()


def test_the_supervisor_keeps_its_weight(fake: FakeTree, session: Session) -> None:
    session.run()
    session.look()
    session.look()
    assert (fake.top / "supervisor/cpu.weight").read_text().strip() == str(OWN_WEIGHT)
    assert (fake.top / "sessions/cpu.weight").read_text().strip() == "100"
