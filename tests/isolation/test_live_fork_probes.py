"""The probes of Python in a live fork of a live fork."""

from __future__ import annotations

from collections.abc import Generator

import pytest

import nsm
from e2e_support import supervisor
from isolation.probe import program_of, verdict_of
from isolation.probes import PROBES
from isolation.stage import CANARY, CANARY_VARIABLE, HIDDEN, HIDDEN_VARIABLE, Stage
from live_forks import needs_scopes
from realjail import SIZES, SYSTEM_PATH, needs_bwrap, open_directory

pytestmark = [pytest.mark.jail, needs_bwrap, needs_scopes, pytest.mark.slow]

CONFIG = f"""
[defaults]
workspace_mb = {SIZES.workspace_mb}
tmp_mb = {SIZES.tmp_mb}
shm_mb = {SIZES.shm_mb}
"""

GRANTED = {"agent-connection": "its socket to its agent was made outside, by the maker"}
"""Probes that may succeed, and why."""

IN_PYTHON = [
    probe
    for probe in PROBES
    if probe.place == "code" and probe.interpreter == "python" and probe.name not in GRANTED
]

REFUSED = "PermissionError: [Errno 1] Operation not permitted\n"

AT_ONCE = 16
"""Forks that one request may make."""


@pytest.fixture
def client() -> Generator[nsm.Client]:
    told = {CANARY_VARIABLE: CANARY, HIDDEN_VARIABLE: HIDDEN, "PATH": SYSTEM_PATH}
    with (
        open_directory() as directory,
        supervisor(directory, config=CONFIG, variables=told) as it,
        it.client("probes") as made,
    ):
        yield made
        made.kill_all()


def test_no_probe_succeeds_in_a_fork_of_a_fork(client: nsm.Client, untouched: Stage) -> None:
    client.run("pass", env="python", session="first", project=untouched.project.path)
    client.fork("first", "second")
    spoiling = [probe for probe in IN_PYTHON if probe.spoils]
    of_all, *of_one = [
        fork.name
        for begin in range(0, len(spoiling) + 1, AT_ONCE)
        for fork in client.fork("second", count=min(AT_ONCE, len(spoiling) + 1 - begin)).forks
    ]
    verdicts: dict[str, str] = {}
    for probe in IN_PYTHON:
        if not getattr(untouched, probe.needs):
            continue
        session = of_one.pop() if probe.spoils else of_all
        result = client.run(
            program_of(probe, untouched),
            env="python",
            session=session,
            project=untouched.project.path,
        )
        # The domain that keeps a fork from others keeps it from its own agent, too: some probes
        # expect that they may send a signal that has no effect.
        refused = result.stderr.endswith(REFUSED)
        words = "HELD" if refused else verdict_of(result.stdout, result.stderr)
        verdicts[probe.name] = words
        if probe.spoils:
            client.kill([session])
    broken = {name: words for name, words in verdicts.items() if words.startswith("BROKEN: ")}
    assert not broken
    assert list(verdicts.values()).count("HELD") > len(verdicts) // 2
