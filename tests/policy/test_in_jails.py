"""Each kind of jail: all of its policy holds in there, and what holds in there is in its policy.

One supervisor starts one of each. Code reports what it finds (`look.py`), and that is compared with
the file that the same code has read, with what `nsm inspect` says, and with the result itself.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import samples
from artifact_files import write_artifact, write_older
from e2e_support import Supervisor, supervisor
from nsm.jail.proxyvariables import trust_variables
from nsmd.model.policy import POLICY_PATH
from nsmd.network.trust import added_certificates
from policy.checks import LOOK, check_devices, check_file, check_limits, check_mounts, check_rights
from realjail import needs_bwrap, open_directory

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [pytest.mark.jail, needs_bwrap]

SECRET = "canary-of-the-supervisor-7f3a"
TOKEN = "canary-of-an-environment-19c4"

CONFIG = f"""
[defaults]
timeout_seconds = 31
memory_mb = 640
processes = 77
descriptors = 333
workspace_mb = 96
tmp_mb = 9
shm_mb = 5
overlay_mb = 17
[environments.python.env]
TOKEN = "{TOKEN}"
[environments.cold]
preset = "python"
[environments.cold.env]
TOKEN = "{TOKEN}"
LARGE = "{"x" * 40_000}"
[environments.open]
preset = "python"
network = "full"
[environments.reaching]
preset = "python"
timeout_seconds = 12
network = {{ allow = ["example.org", "*.example.com:443"] }}
"""
"""`cold`: its variables are more than a template takes, so its sessions have jails of their own."""

SHELLS_OWN = {"OLDPWD", "SHLVL", "_"}


class Kind(NamedTuple):
    """A kind of jail, and what is expected of its policy beyond what code can see."""

    env: str
    kind: str
    more_variables: frozenset[str] = frozenset()
    project_mode: str = "readonly"
    session: bool = True

    def __str__(self) -> str:
        return f"{self.kind}-{self.env}-{self.project_mode}"


KINDS = [
    Kind("python", "forked", frozenset({"TOKEN"})),
    Kind("python", "forked", frozenset({"TOKEN"}), project_mode="overlay"),
    Kind("reaching", "forked"),
    Kind("open", "forked"),
    Kind("cold", "cold", frozenset({"TOKEN", "LARGE"})),
    Kind("science", "artifact-forked"),
    Kind("science", "artifact-forked", project_mode="overlay"),
    Kind("single", "artifact"),
    Kind("once", "artifact", session=False),
]


class World(NamedTuple):
    """A supervisor, and a project."""

    it: Supervisor
    project: Path


@pytest.fixture(scope="module")
def world() -> Generator[World]:
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as own,
        open_directory() as store,
        open_directory() as project,
    ):
        (project / "file").write_text("theirs")
        sandboxes = Path(own, "config", "nsm", "sandboxes")
        artifacts = [
            write_artifact(store, "science"),
            write_artifact(store, "single", template=False),
            write_artifact(store, "once", template=False),
            write_older(store, "older"),
            write_artifact(store, "plain", metadata={"takes": []}),
            write_artifact(store, "plain-single", metadata={"takes": []}, template=False),
        ]
        (store / "once" / "bin" / "session-run").unlink()
        variables = {"SECRET": SECRET, "LC_ALL": "C.UTF-8", "TZ": "Etc/GMT+3", "LC_X": SECRET}
        with supervisor(Path(own), config=CONFIG, variables=variables) as it:
            sandboxes.mkdir()
            for artifact in artifacts:
                (sandboxes / artifact.name).symlink_to(artifact)
            yield World(it, project)


class Seen(NamedTuple):
    """Observations in one kind of jail.

    Attributes:
        policy: the file's.
        found: what code says.
        inspected: what `inspect` says; None where there is no session.
    """

    kind: Kind
    policy: dict[str, Any]
    found: dict[str, Any]
    inspected: dict[str, Any] | None
    timeout_s: float


@pytest.fixture(scope="module", params=KINDS, ids=str)
def seen(world: World, request: pytest.FixtureRequest) -> Seen:
    kind: Kind = request.param
    with world.it.client() as client:
        client.envs()  # has the supervisor look for artifacts
        result = client.run(
            LOOK,
            env=kind.env,
            session=f"{kind.env}-{kind.project_mode}" if kind.session else None,
            project=str(world.project),
            project_mode=kind.project_mode,
        )
        assert (result.exit_code, result.stderr) == (0, "")
        found: dict[str, Any] = json.loads(result.stdout)
        inspected = client.inspect(result.session.id)._asdict() if kind.session else None
    return Seen(kind, found["policy"], found, inspected, result.timeout_s)


def test_people_are_shown_the_policy_that_code_reads(seen: Seen, world: World) -> None:
    assert seen.policy["kind"] == seen.kind.kind
    assert seen.policy["complete"] is True
    if seen.inspected is None:
        return
    policy = seen.inspected["policy"]
    sources = {mount["path"]: mount.pop("source", None) for mount in policy["mounts"]}
    assert policy == seen.policy
    assert sources["/project"] == str(world.project)
    assert str(world.project) not in json.dumps(seen.policy)
    assert seen.inspected["contradictions"] == ()
    assert seen.inspected["network"]["mode"] == policy["network"]["mode"]
    confinement, limits = seen.inspected["confinement"], policy["limits"]
    assert [confinement[each] for each in ("memory", "processes", "cpu")] == [
        limits[each] for each in ("memory_by", "processes_by", "cpu_by")
    ]
    assert set(confinement) == set(samples.inspection()["confinement"])
    kernel = seen.inspected["kernel"]
    assert kernel["uid"] != 0
    assert (int(kernel["capabilities"], 16), kernel["no_new_privs"]) == (0, True)
    assert kernel["system_call_filter"] is True


def test_nobody_changes_the_file(seen: Seen) -> None:
    check_file(seen.found)


def test_mounts_devices_and_rights(seen: Seen) -> None:
    check_mounts(seen.policy, seen.found)
    check_devices(seen.policy, seen.found)
    check_rights(seen.policy, seen.found)


def test_limits(seen: Seen) -> None:
    check_limits(seen.policy, seen.found)
    limits = seen.policy["limits"]
    # An artifact's metadata has its own.
    memory_mb = 512 if seen.kind.kind.startswith("artifact") else 640
    assert (limits["memory_mb"], limits["processes"], limits["descriptors"]) == (memory_mb, 77, 333)
    assert limits["timeout_s"] == seen.timeout_s
    assert (limits["processes_by"] == "none") is not seen.kind.session


def test_variables(seen: Seen) -> None:
    names = set(seen.found["variables"])
    if not seen.kind.session:
        names -= SHELLS_OWN  # of the shell that runs the code
    if seen.kind.env == "reaching" and added_certificates(os.environ):
        assert names >= set(trust_variables(""))  # this machine is a company's
        names -= set(trust_variables(""))
    assert names == set(seen.policy["variables"])
    assert seen.kind.more_variables <= names
    assert {"SECRET", "LC_X"}.isdisjoint(names)
    local = {"LC_ALL", "TZ"}
    # An artifact has no time zones or locales of the host.
    artifact = seen.kind.kind.startswith("artifact")
    assert names & local == (set() if artifact else local)
    assert seen.found["time zone"] == ("+0000" if artifact else "-0300")
    assert seen.found["encoding of the C library"][1] == "UTF-8"


def test_network(seen: Seen) -> None:
    network = seen.policy["network"]
    if seen.kind.env == "reaching":
        assert network == {
            "mode": "allow",
            "allow": ["example.org", "*.example.com:443"],
            "proxy": True,
        }
        assert "HTTPS_PROXY" in seen.found["variables"]
        assert seen.found["interfaces"] == ["lo"]
    elif seen.kind.env == "open":
        assert network == {"mode": "full", "allow": [], "proxy": False}
        assert seen.found["interfaces"] == sorted(name for _, name in socket.if_nameindex())
    else:
        assert network == {"mode": "off", "allow": [], "proxy": False}
        assert "HTTPS_PROXY" not in seen.found["variables"]
        assert seen.found["interfaces"] == ["lo"]


@pytest.mark.parametrize("env", ["python", "single"])
def test_output(world: World, env: str) -> None:
    """A policy says how much of the output is kept."""
    code = "import sys; print('x' * (70 << 20), end=''); sys.stderr.write('y' * (2 << 20))"
    with world.it.client() as client:
        client.envs()
        result = client.run(code, env=env, session=f"output-{env}")
        policy = client.inspect(result.session.id).policy
        assert policy is not None
        limits = policy["limits"]
        left_out = result.truncated["stderr"].omitted_bytes
        assert (2 << 20) - left_out == limits["output_bytes"]
        file = result.truncated["stdout"].file
        told = client.run(
            f"import os; print(os.path.getsize({file!r}))", env=env, session=f"output-{env}"
        )
    assert int(told.stdout) == limits["output_file_bytes"]


def test_an_older_artifact_has_no_policy_but_what_it_is_asked_for(world: World) -> None:
    with world.it.client() as client:
        client.envs()
        code = f"import os; print(os.path.exists({POLICY_PATH!r}), os.path.exists('/project'))"
        result = client.run(code, env="older", session="older", project=str(world.project))
        policy = client.inspect("older").policy
    assert result.stdout == "False True\n"
    assert policy is not None
    assert policy["complete"] is False
    assert [mount["path"] for mount in policy["mounts"]] == ["/project"]


@pytest.mark.parametrize("env", ["plain", "plain-single"])
def test_artifacts_from_before_there_was_a_file_do_without(world: World, env: str) -> None:
    with world.it.client() as client:
        client.envs()
        code = f"import os; print(os.path.exists({POLICY_PATH!r}))"
        assert client.run(code, env=env, session=env).stdout == "False\n"
        policy = client.inspect(env).policy
    assert policy is not None
    assert policy["complete"] is True
    paths = [mount["path"] for mount in policy["mounts"]]
    assert "/workspace" in paths
    assert POLICY_PATH not in paths


def test_values_of_variables_are_nowhere_to_be_seen(world: World) -> None:
    """Not in logs, lists, metrics or command lines; in sessions only where they belong."""
    it = world.it
    with it.client() as client:
        client.envs()
        for env in ("python", "cold"):
            told = client.run("import os; print(os.environ['TOKEN'])", env=env, session=f"c-{env}")
            assert told.stdout == f"{TOKEN}\n"
        for env in ("reaching", "science", "single"):
            code = "import os; print(os.environ.get('TOKEN'), os.environ.get('SECRET'))"
            assert client.run(code, env=env, session=f"c-{env}").stdout == "None None\n"
        for env in ("python", "reaching", "cold", "single"):
            told = client.run(SEARCH, env=env, session=f"c-{env}")
            assert set(told.stdout.split()) == ({TOKEN} if env in ("python", "cold") else set())
    shown = [it.log.read_bytes().decode(errors="replace")]
    for words in (
        ["ps"],
        ["ps", "--all", "--json"],
        ["env", "--json"],
        ["env", "show", "python"],
        ["status", "pool", "--json"],
        ["status", "--json"],
        ["inspect", "c-python"],
        ["inspect", "c-cold", "--json"],
        ["config", "show"],
        ["config", "show", "--json"],
    ):
        done = it.run("nsm", *words)
        assert (done.returncode, done.stderr) == (0, ""), words
        shown.append(done.stdout)
    shown += [_read(f"/proc/{pid}/cmdline") for pid in it.descendants() | {it.pid}]
    # bwrap and its kin, whose environment everyone of that user can read.
    shown += [_read(f"/proc/{pid}/environ") for pid in it.descendants() if _is_starter(pid)]
    for text in shown:
        assert TOKEN not in text
        assert SECRET not in text
    assert "TOKEN" in it.run("nsm", "inspect", "c-python").stdout


SEARCH = f"""
import glob, subprocess
data = subprocess.run(["cat", "/proc/self/environ"], capture_output=True).stdout
for name in ("environ", "cmdline", "mountinfo", "status", "comm"):
    for path in glob.glob("/proc/[0-9]*/" + name):
        try: data += open(path, "rb").read()
        except OSError: pass
print(*[word for word in {[SECRET, TOKEN]!r} if word.encode() in data])
"""


def _is_starter(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in ("bwrap", "bash", "sh")
    except OSError:
        return False


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""
