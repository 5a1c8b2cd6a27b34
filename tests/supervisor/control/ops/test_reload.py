"""The supervisor restarts by itself, once a holder of sessions answers again."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from control_bench import bench
from nsmd.control.ops.supervisor import reload_once_answered
from nsmd.fdstore.running_holders import SilentHolder, SilentHolders

OTHER = "import json; print('9.9'); print(json.dumps({'unreadable': %s}))"


@pytest.mark.parametrize(
    ("program", "refusal"),
    [
        ("raise SystemExit(3)", "does not start: it ends with 3"),
        ("print('9.9')", "does not start: 9.9 does not say what it can take over"),
        (OTHER % {"session-1": "why so"}, "(9.9) cannot take over session-1 (why so)"),
        (OTHER % {}, ""),
    ],
)
async def test_a_supervisor_becomes_only_a_program_that_can_take_over(
    program: str, refusal: str
) -> None:
    async with bench() as it:
        silent = SilentHolders([SilentHolder("/nowhere", None)])  # it has ended
        successor = [sys.executable, "-c", program]
        await reload_once_answered(replace(it.services, successor=successor), silent)
        assert it.ending.how == (None if refusal else "reload")
        assert refusal in silent.problem
        assert ("answers again or has ended" in silent.problem) is bool(refusal)
