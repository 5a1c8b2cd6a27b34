"""Running a program: what comes of it, line by line, and that nothing of it is left."""

from __future__ import annotations

from bridge_programs import Told, outcome_of_shell
from nsmd.bridge.values import Ended


async def test_what_it_prints_and_how_it_ends() -> None:
    told = Told()
    ended = await outcome_of_shell("echo one; echo two >&2; printf three; exit 3", on_line=told)
    assert told.lines == {"stdout": ["one", "three"], "stderr": ["two"]}
    assert ended == Ended(
        exit_code=3, stdout="one\nthree", stderr="two\n", duration_s=ended.duration_s
    )
