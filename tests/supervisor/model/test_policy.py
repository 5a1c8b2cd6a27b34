"""A policy follows from its specification."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nsmd.model.policy import POLICY_PATH, MountRule, jail_variables, limit_variables, policy_of
from nsmd.model.values import (
    NO_NETWORK,
    Artifact,
    Environment,
    JailSizes,
    JailSpec,
    NetworkRule,
    ProjectMount,
    ReadOnlyBind,
    SessionLimits,
)

LIMITS = SessionLimits(processes=99, descriptors=512)

SHOWN = (
    MountRule(path="/usr", kind="bind", source="/usr"),
    MountRule(path=POLICY_PATH, kind="file"),
)

ENVIRONMENT = Environment(
    name="python",
    interpreter="python",
    timeout_s=12.5,
    memory_mb=300,
    binds=(ReadOnlyBind(source="/opt/python", target="/opt/python"),),
    variables=(("TOKEN", "s3cret-value"), ("HOME", "/elsewhere")),
)

PROJECT = ProjectMount(path="/srv/mine", mount_point="/project", device=1, inode=2)

SPEC = JailSpec(
    environment=ENVIRONMENT, project=PROJECT, sizes=JailSizes(workspace_mb=10, tmp_mb=5, shm_mb=3)
)


def test_mounts_are_sorted_and_have_sizes() -> None:
    policy = policy_of(SPEC, LIMITS, "forked", shown=SHOWN)
    assert [(m.path, m.kind, m.mode, m.size_mb, m.inodes) for m in policy.mounts] == [
        ("/", "tmpfs", "ro", None, None),
        ("/dev", "dev", "ro", None, None),
        ("/dev/shm", "tmpfs", "rw", 3, 384),
        ("/opt/python", "bind", "ro", None, None),
        ("/proc", "proc", "rw", None, None),
        ("/project", "bind", "ro", None, None),
        ("/run/nsm/policy.json", "file", "ro", None, None),
        ("/tmp", "tmpfs", "rw", 5, 640),
        ("/usr", "bind", "ro", None, None),
        ("/workspace", "tmpfs", "rw", 10, 1280),
    ]
    assert policy.writable == ("/dev/shm", "/tmp", "/workspace")


def test_a_project_that_is_copied_on_write() -> None:
    spec = replace(SPEC, project=replace(PROJECT, mode="overlay"))
    policy = policy_of(spec, LIMITS, "forked")
    assert policy.mount_at("/project/src/a.py") == MountRule(
        path="/project", kind="overlay", mode="cow", size_mb=512, inodes=512 * 128
    )
    assert "/project" in policy.writable


def test_a_place_inside_the_project_is_no_mount_of_its_own() -> None:
    spec = replace(SPEC, project=replace(PROJECT, path="/opt", mount_point="/opt"))
    paths = [m.path for m in policy_of(spec, LIMITS, "cold").mounts]
    assert "/opt" in paths
    assert "/opt/python" not in paths


def test_many_directories_side_by_side_are_one_line() -> None:
    binds = tuple(ReadOnlyBind(source=f"/s/{n}", target=f"/s/{n}") for n in range(300))
    few = tuple(ReadOnlyBind(source=f"/o/{n}", target=f"/o/{n}") for n in range(2))
    spec = replace(SPEC, environment=replace(ENVIRONMENT, binds=(*binds, *few)), project=None)
    policy = policy_of(spec, LIMITS, "cold")
    shown = [m for m in policy.mounts if m.kind in ("bind", "binds")]
    assert [(m.path, m.kind, m.entries) for m in shown] == [
        ("/o/0", "bind", None),
        ("/o/1", "bind", None),
        ("/s", "binds", 300),
    ]


def test_the_innermost_mount() -> None:
    policy = policy_of(SPEC, LIMITS, "forked")
    for path, mount in (
        ("/workspace/a/b", "/workspace"),
        ("/workspaces", "/"),
        ("/dev/shm/x", "/dev/shm"),
        ("/dev/null", "/dev"),
        ("/etc/passwd", "/"),
    ):
        found = policy.mount_at(path)
        assert found is not None
        assert found.path == mount


def test_the_text_is_the_json_and_has_no_values_and_no_host_paths() -> None:
    policy = policy_of(SPEC, LIMITS, "cold", shown=SHOWN)
    text = policy.as_text()
    assert json.loads(text) == policy.as_json()
    assert "TOKEN" in text
    for hidden in ("s3cret", "/elsewhere", "/srv/mine"):
        assert hidden not in text
    assert "/srv/mine" in json.dumps(policy.as_json(sources=True))


def test_the_policy_of_an_older_artifact_claims_only_what_it_is_asked_for() -> None:
    older = replace(ENVIRONMENT, artifact=Artifact(run="/a/bin/run", session_run="/a/bin/s"))
    policy = policy_of(replace(SPEC, environment=older), LIMITS, "artifact")
    assert not policy.complete
    assert [m.path for m in policy.mounts] == ["/project"]
    assert not policy.rights.system_call_filter
    assert policy.limits.processes_by == "none"


def test_without_an_agent_nobody_counts_processes() -> None:
    once = replace(ENVIRONMENT, artifact=Artifact(run="/a/bin/run", schema=1))
    policy = policy_of(replace(SPEC, environment=once), LIMITS, "artifact")
    assert policy.complete
    assert policy.limits.processes_by == "none"


# Variables by which programs know the limits of a session.


@pytest.mark.parametrize(
    ("memory_mb", "processors", "threads"),
    [(512, 64, "4"), (512, 2, "2"), (16, 64, "1"), (65536, 64, "64")],
)
def test_threads_fit_the_memory_and_the_processors(
    memory_mb: int, processors: int, threads: str
) -> None:
    found = limit_variables(memory_mb, processors)
    assert found["OMP_NUM_THREADS"] == found["GOMAXPROCS"] == threads
    assert (
        f"-XX:ActiveProcessorCount={threads} -XX:MaxRAM={memory_mb}m "
        in (found["JAVA_TOOL_OPTIONS"])
    )
    assert found["NODE_OPTIONS"] == f"--max-old-space-size={memory_mb * 3 // 4}"


def test_variables_of_the_user_win() -> None:
    environment = Environment(
        name="python", interpreter="python", variables=(("GOMAXPROCS", "7"),), memory_mb=1024
    )
    found = dict(jail_variables(environment, NO_NETWORK))
    assert found["GOMAXPROCS"] == "7"
    assert found["NODE_OPTIONS"] == "--max-old-space-size=768"
    assert "proxy" not in found["JAVA_TOOL_OPTIONS"]
    found = dict(jail_variables(environment, NetworkRule(mode="allow", allow=("a.test",))))
    assert "-XX:MaxRAM=1024m" in found["JAVA_TOOL_OPTIONS"]
    assert found["JAVA_TOOL_OPTIONS"].endswith("-Dhttp.proxyPort=3128")


@pytest.mark.parametrize("takes", [frozenset(("policy", "variables")), frozenset(("policy",))])
def test_artifacts_that_can_set_variables_have_them(takes: frozenset[str]) -> None:
    artifact = Artifact(run="/nix/run", schema=1, takes=takes)
    environment = Environment(name="python", interpreter="python", artifact=artifact)
    found = dict(jail_variables(environment, NO_NETWORK))
    assert ("OMP_NUM_THREADS" in found) is ("variables" in takes)
