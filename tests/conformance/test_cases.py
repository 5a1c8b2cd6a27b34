"""The conformance cases: all of them with the agent, a part with control socket and MCP.

With the agent all but one in 24 are marked `slow`, and so are most of the others and what waits
for long. CI and `make soak` run those, and `make test` stays a matter of minutes.

The cases of a target that were selected run at once in a few threads, since most of them wait for
limits; each test is the report of one.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Generator, KeysView
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from conformance.campaign import Report, start
from conformance.cases import Case, load_all
from conformance.targets import GRACE_S, OTHER_AGENT, ControlTarget, McpTarget, Target, chosen_agent
from e2e_support import supervisor

TargetName = Literal["agent", "control", "mcp"]

JOBS = 3

PROCESSES = 32
"""Enough for every case; fork bombs are among them, whose processes all compute at once."""

CONFIGURATION = f"""
[defaults]
interrupt_grace_seconds = {GRACE_S}
timeout_seconds = 60
processes = {PROCESSES}
"""

PARTS: dict[TargetName, int] = {"agent": 1, "control": 12, "mcp": 24}
"""One case in so many, besides those that need a jail, which no agent runs.
`NSM_TEST_ALL_CASES=1` has them all."""

ALL_CASES = bool(os.environ.get("NSM_TEST_ALL_CASES"))

QUICK: dict[TargetName, int] = {"agent": 24, "control": 96, "mcp": 192}
"""One case in so many is not `slow`."""

LONG_S = 60
"""A case with this time limit takes it on slow machines: it is `slow` in any case."""


def is_selected(case: Case, target: TargetName) -> bool:
    if "jail" in case.needs:
        return target == "control"
    return ALL_CASES or _number(case) % PARTS[target] == 0


def marks(case: Case, target: TargetName) -> list[pytest.MarkDecorator]:
    made = [] if target == "agent" else [pytest.mark.jail]
    chosen = "jail" in case.needs or _number(case) % QUICK[target] == 0
    if not chosen or any(step.timeout_s >= LONG_S for step in case.steps):
        made.append(pytest.mark.slow)
    return made


def _number(case: Case) -> int:
    """By name, so that a new case does not change which others are chosen."""
    return zlib.crc32(case.id.encode())


ALL = load_all()

CASES: list[tuple[TargetName, Case]] = [
    (target, case) for target in PARTS for case in ALL if is_selected(case, target)
]


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Generator[dict[tuple[str, str], Future[Report]]]:
    """A report to come for each selected test of this file."""
    wanted: dict[TargetName, list[Case]] = {}
    for item in request.session.items:
        if item.path == request.path and isinstance(item, pytest.Function):
            chosen = cast("dict[str, Any]", item.callspec.params)
            if item.get_closest_marker("skip") is None:  # Node is missing
                wanted.setdefault(chosen["target"], []).append(chosen["case"])
    futures: dict[tuple[str, str], Future[Report]] = {}
    with ExitStack() as stack:
        made = make_targets(stack, wanted.keys())
        # Left before the supervisor ends, and with nothing in the queue if a run is cut short.
        pool = stack.enter_context(ThreadPoolExecutor(JOBS))
        stack.callback(lambda: pool.shutdown(cancel_futures=True))
        for name, target in made.items():
            for case_id, future in start(wanted[name], target, pool).items():
                futures[name, case_id] = future
        yield futures


def make_targets(stack: ExitStack, wanted: KeysView[TargetName]) -> dict[TargetName, Target]:
    """The targets of these names; a supervisor only where it is needed."""
    found: dict[TargetName, Target] = {}
    if "agent" in wanted:
        found["agent"] = chosen_agent()
    if wanted - {"agent"}:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsm-")))
        running = stack.enter_context(supervisor(directory, config=CONFIGURATION))
        control = ControlTarget(running.socket, {})
        found["control"] = control
        found["mcp"] = McpTarget(control, {"NSM_SOCKET": running.socket, "NSM_AUTOSTART": "0"})
    return {name: target for name, target in found.items() if name in wanted}


@pytest.mark.parametrize(
    ("target", "case"),
    [
        pytest.param(
            target,
            case,
            id=f"{target}-{case.language}-{case.file}: {case.name}",
            marks=marks(case, target),
        )
        for target, case in CASES
    ],
)
def test_case(
    reports: dict[tuple[str, str], Future[Report]], target: TargetName, case: Case
) -> None:
    report = reports[target, case.id].result()
    if report.note:
        other = target != "agent" or os.environ.get(OTHER_AGENT)
        able = other or case.needs or case.modules
        assert able, f"our own agent is to do all: {report.note}"
        # These are on every machine; without them every case of a target would be left out.
        assert not report.note.endswith(("environment python", "environment bash")), report.note
        pytest.skip(f"not here: {report.note}")
    assert not report.problems, "\n".join([case.spec, *report.problems])
