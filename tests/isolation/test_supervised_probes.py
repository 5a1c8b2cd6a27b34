"""The probes in sessions of a real supervisor: as they are, with hosts that they may reach, and in
forks of live sessions.

What a list of hosts grants is no attack there. Copies of the project: `test_probes_elsewhere.py`.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

import nsm
from e2e_support import Supervisor, supervisor
from isolation.probe import Group, Probe, program_of, verdict_of
from isolation.probes import PROBES, groups_of
from isolation.stage import CANARY, CANARY_VARIABLE, HIDDEN, HIDDEN_VARIABLE, Stage
from live_forks import needs_scopes
from nsmd.model.values import Environment
from realjail import SIZES, SYSTEM_PATH, needs_bwrap, open_directory

pytestmark = [pytest.mark.jail, needs_bwrap]

CONFIG = f"""
[defaults]
workspace_mb = {SIZES.workspace_mb}
tmp_mb = {SIZES.tmp_mb}
shm_mb = {SIZES.shm_mb}
"""

IN_CODE = [probe for probe in PROBES if probe.place == "code"]
"""The others take the agent's place."""

MODES: dict[str, str | None] = {"plain": None, "hosts": "example.org"}
"""Networks of sessions."""

GRANTED: dict[str, dict[str, str]] = {
    "plain": {},
    "hosts": {
        **dict.fromkeys(
            ("canary-in-environment", "canary-in-environment-of-bash", "environment-of-node"),
            "variables name the proxy",
        ),
        "interfaces": "the proxy listens on its loopback",
    },
}
"""Probes that may succeed in a mode, and why; all others must fail."""


@pytest.fixture(scope="module")
def running() -> Generator[Supervisor]:
    told = {CANARY_VARIABLE: CANARY, HIDDEN_VARIABLE: HIDDEN, "PATH": SYSTEM_PATH}
    with (
        open_directory() as directory,
        supervisor(directory, config=CONFIG, variables=told) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def client(running: Supervisor) -> Generator[nsm.Client]:
    with running.client("probes") as made:
        yield made


def verdict_in(client: nsm.Client, mode: str, stage: Stage, probe: Probe) -> str:
    session = f"{mode}-{probe.name if probe.spoils else probe.interpreter}"
    result = client.run(
        program_of(probe, stage),
        env=probe.interpreter,
        session=session,
        project=stage.project.path,
        network=MODES[mode],
    )
    if probe.spoils:
        client.kill([session])
    return verdict_of(result.stdout, result.stderr)


def attempted(probes: list[Probe], stage: Stage, known: dict[str, Environment]) -> Generator[Probe]:
    """Probes that find something to attack here."""
    for probe in probes:
        if known[probe.interpreter].problem is None and getattr(stage, probe.needs):
            yield probe


NEAR: tuple[Group, ...] = ("environment", "descriptors", "supervisor", "network", "namespaces")
"""Groups whose attacks have to do with what a supervisor or the proxy adds. `make soak` tries all
others here, too; `test_probes.py` tries them in the same jails.
"""

CASES = [
    (mode, group) if group in NEAR else pytest.param(mode, group, marks=pytest.mark.slow)
    for mode in MODES
    for group in groups_of([probe for probe in IN_CODE if probe.name not in GRANTED[mode]])
]


@pytest.mark.parametrize(("mode", "group"), CASES)
def test_held(
    mode: str, group: Group, client: nsm.Client, untouched: Stage, known: dict[str, Environment]
) -> None:
    of_group = [p for p in IN_CODE if p.group == group and p.name not in GRANTED[mode]]
    verdicts = {
        probe.name: verdict_in(client, mode, untouched, probe)
        for probe in attempted(of_group, untouched, known)
    }
    assert {name: words for name, words in verdicts.items() if words.startswith("BROKEN: ")} == {}


# A live fork of a live fork.

GRANTED_TO_FORKS = {"agent-connection": "its socket to its agent was made outside, by the maker"}
"""Probes that may succeed, and why."""

IN_PYTHON = [
    probe
    for probe in PROBES
    if probe.place == "code"
    and probe.interpreter == "python"
    and probe.name not in GRANTED_TO_FORKS
]

REFUSED = "PermissionError: [Errno 1] Operation not permitted\n"

AT_ONCE = 16
"""Forks that one request may make."""


@needs_scopes
@pytest.mark.slow
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
    client.kill_all()
