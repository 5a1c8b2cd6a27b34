"""The probes of `tests/isolation` in jails of the presets: a session, a fork, one execution.

That each can succeed is shown there, where layers can be taken away.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import subprocess
import tempfile
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from artifact_files import environment_of
from isolation.background import Background
from isolation.probe import Kind, Probe, program_of, program_of_all, verdict_of
from isolation.probes import PROBES
from isolation.rooms import ArtifactRoom, Prober
from isolation.stage import CANARY, CANARY_VARIABLE, Stage, open_stage
from nsmd.jail.starting import with_limits
from nsmd.model.values import SessionLimits
from realjail import SIZES, needs_bwrap

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.jail, needs_bwrap, pytest.mark.slow]

RUN_TIMEOUT_S = 60

IN_CODE = [probe for probe in PROBES if probe.place == "code"]
"""The others take the agent's place, which is in the store."""

WITHOUT_AGENT: dict[str, str] = {
    **dict.fromkeys(
        (
            *("agent-from-python", "agent-from-bash", "agent-from-node", "agent-settings"),
            *("agent-memory-by-address", "agent-addresses", "agent-namespaces"),
        ),
        "PID 1 is a shell that has nothing that the code has not, as a test below shows",
    ),
    **dict.fromkeys(
        ("processes", "locked-memory", "pending-signals"),
        "only agents limit these; `with_limits`, and so the page on artifacts, has what is limited",
    ),
}
"""Probes that do not attack one execution, and why."""


@pytest.fixture(scope="module")
def untouched() -> Generator[Stage]:
    with open_stage() as made:
        yield made


@pytest.fixture(scope="module")
def prober() -> Generator[Prober]:
    background = Background()
    try:
        yield Prober(background)
    finally:
        background.close()


@pytest.fixture
def stage(untouched: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Targets that probes look for."""
    monkeypatch.setenv(CANARY_VARIABLE, CANARY)
    return untouched


@pytest.mark.parametrize("probe", IN_CODE, ids=lambda probe: probe.name)
@pytest.mark.parametrize("kind", ["cold", "forked"])
def test_held_in_a_session(
    probe: Probe, kind: Kind, built: Callable[[str], Path], stage: Stage, prober: Prober
) -> None:
    artifact = built(f"presets.{probe.interpreter}")
    room = ArtifactRoom(
        kind=kind, stage=stage, artifacts={probe.interpreter: artifact}, store=store_of(artifact)
    )
    prober.expect("HELD", room, probe, IN_CODE)


TRIED = [probe for probe in IN_CODE if probe.name not in WITHOUT_AGENT]
ALONE = [probe for probe in TRIED if probe.interpreter != "python" or probe.spoils]
TOGETHER = [probe for probe in TRIED if probe not in ALONE]
AT_ONCE = 12
"""Each execution takes a tenth of a second, and its code is one argument: 128 KiB at most."""


@pytest.mark.parametrize("first", range(0, len(TOGETHER), AT_ONCE))
def test_held_in_one_execution(first: int, built: Callable[[str], Path], stage: Stage) -> None:
    there = [p for p in TOGETHER[first : first + AT_ONCE] if is_there(p, stage)]
    artifact = built("presets.python")
    output = said_by(artifact, stage, wrapped(program_of_all(there, stage, store_of(artifact))))
    verdicts = {name: verdict_of(told) for name, told in json.loads(output).items()}
    assert verdicts.keys() == {probe.name for probe in there}
    assert {name: words for name, words in verdicts.items() if words.startswith("BROKEN: ")} == {}
    assert "HELD" in verdicts.values()


@pytest.mark.parametrize("probe", ALONE, ids=lambda probe: probe.name)
def test_held_in_an_execution_of_its_own(
    probe: Probe, built: Callable[[str], Path], stage: Stage
) -> None:
    if not is_there(probe, stage):
        pytest.skip(f"not here: {probe.needs} on the host")
    artifact = built(f"presets.{probe.interpreter}")
    program = program_of(probe, stage, store_of(artifact))
    if probe.interpreter == "python":
        program = wrapped(program)
    assert not verdict_of(said_by(artifact, stage, program)).startswith("BROKEN: ")


def is_there(probe: Probe, stage: Stage) -> bool:
    """Return whether there is something to attack."""
    if probe.name == "raised-limits":
        # Of processes, one execution has its starter's.
        return resource.getrlimit(resource.RLIMIT_NPROC)[1] != resource.RLIM_INFINITY
    return bool(getattr(stage, probe.needs))


def wrapped(program: str) -> str:
    """The same, as an argument in which what looks at command lines does not find its own words."""
    packed = base64.b64encode(zlib.compress(program.encode())).decode()
    return f"import base64, zlib\nexec(zlib.decompress(base64.b64decode({packed!r})))"


LOOK_AT_PID_1 = """
import json, os
KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
FIELDS = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters",
          "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
def text(path):
    with open(path) as file:
        return file.read()
def link(path):
    "What it leads to; nothing for what listing a directory needed."
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""
def seen(pid):
    status = dict(line.split(":", 1) for line in text(f"/proc/{pid}/status").splitlines())
    variables = text(f"/proc/{pid}/environ").split("\\0")
    open_files = {link(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    return {
        "namespaces": [os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS],
        "privileges": {name: status[name] for name in FIELDS},
        "root": os.stat(f"/proc/{pid}/root").st_ino,
        "variables": [word.partition("=")[0] for word in variables],
        "open": sorted(open_files),
    }
print(json.dumps([seen(1), seen("self"), os.readlink("/proc/1/fd/0")]))
"""


def test_the_first_process_of_one_execution_has_nothing_that_its_code_has_not(
    built: Callable[[str], Path], stage: Stage
) -> None:
    """The code may look into that process, as into any process of its user that is no agent."""
    artifact = built("presets.python")
    output = said_by(artifact, stage, LOOK_AT_PID_1)
    first, code, standard_input = json.loads(output)
    for same in ("namespaces", "privileges", "root"):
        assert first[same] == code[same]
    assert set(first["variables"]) <= set(code["variables"])
    # Beside what it has in common with the code: that comes through one, and it is a script.
    assert standard_input.startswith("pipe:")
    more = set(first["open"]) - {*code["open"], standard_input}
    assert [path for path in more if not path.startswith(store_of(artifact) + "/")] == []


def said_by(artifact: Path, stage: Stage, program: str) -> str:
    """Return the output of one execution that prints no errors.

    It is started as by nsm where there is `run` alone: limited, and with a policy to read.
    """
    with tempfile.TemporaryFile() as policy:
        policy.write(b"{}")
        policy.seek(0)
        done = subprocess.run(
            with_limits([str(artifact / "bin/run")], environment_of(artifact), SessionLimits()),
            input=program,
            env={
                CANARY_VARIABLE: CANARY,
                "NSM_POLICY_FD": str(policy.fileno()),
                "PROJECT_DIR": stage.project.path,
                "NSM_SHM_MB": str(SIZES.shm_mb),
                "NSM_TMP_MB": str(SIZES.tmp_mb),
                "NSM_WORKSPACE_MB": str(SIZES.workspace_mb),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
            pass_fds=(policy.fileno(),),
        )
    assert not done.stderr, done
    return done.stdout


def store_of(artifact: Path) -> str:
    """Path at which its jails show the artifact's parts."""
    return os.path.dirname(os.path.realpath(artifact))
