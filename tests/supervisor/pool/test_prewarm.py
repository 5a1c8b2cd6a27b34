"""Predictions of what a client does next, from what it did before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from nsmd.model.values import ClientIdentity, ProjectMount
from nsmd.pool.prewarm import MAX_VISITORS, VISIT_S, UsageHistory

if TYPE_CHECKING:
    from trio.testing import MockClock

PROJECT = ProjectMount(path="/src/words", mount_point="/project", device=1, inode=2)
EDITOR = ClientIdentity(name="editor", scope="editor:/src/words", project=PROJECT)


async def test_a_new_project_is_expected_to_want_python_and_bash(mock_clock: MockClock) -> None:
    del mock_clock
    assert UsageHistory().project_came(PROJECT) == ["python", "bash"]


async def test_use_makes_an_environment_likely_and_disuse_unlikely(mock_clock: MockClock) -> None:
    habits = UsageHistory()
    habits.project_came(PROJECT)
    habits.used(EDITOR, "node")
    habits.used(EDITOR, "python")
    for expected in (["python", "bash", "node"], ["python"], ["python"], []):
        mock_clock.jump(VISIT_S + 1)
        assert habits.project_came(PROJECT) == expected


async def test_coming_twice_at_once_is_one_visit(mock_clock: MockClock) -> None:
    del mock_clock
    habits = UsageHistory()
    for _ in range(9):
        assert habits.project_came(PROJECT) == ["python", "bash"]


async def test_a_program_is_expected_to_do_what_it_did(mock_clock: MockClock) -> None:
    habits = UsageHistory()
    assert habits.program_came("nsm", "cli") == []
    shell = ClientIdentity(name="nsm", scope="cli", project=PROJECT)
    habits.used(shell, "python")
    mock_clock.jump(VISIT_S + 1)
    assert habits.program_came("nsm", "cli") == [("python", PROJECT)]
    assert habits.program_came("nsm", "other") == []
    mock_clock.jump(VISIT_S + 1)
    assert habits.program_came("nsm", "cli") == []  # it only asked what there is


async def test_the_number_of_programs_is_bounded(mock_clock: MockClock) -> None:
    habits = UsageHistory()
    first = ClientIdentity(name="first", scope="s")
    habits.program_came("first", "s")
    habits.used(first, "python")
    for n in range(2 * MAX_VISITORS):
        habits.program_came(f"program {n}", "s")
    mock_clock.jump(VISIT_S + 1)
    assert habits.program_came("first", "s") == []
    assert trio.current_time() > 0
