"""The policy of the tests' sessions, and what results are to say of its rules, word for word."""

from __future__ import annotations

from typing import Any

from nsmd.denials.explaining import explain
from nsmd.denials.wording import Circumstances
from nsmd.model.policy import MountRule, Policy, policy_of
from nsmd.model.values import (
    Environment,
    JailSizes,
    JailSpec,
    LimitEvent,
    NetworkRule,
    Outcome,
    ProjectMode,
    ProjectMount,
    SessionLimits,
)

SIZES = JailSizes(workspace_mb=24, tmp_mb=12, shm_mb=6)
LIMITS = SessionLimits(processes=48, descriptors=256)
MEMORY_MB = 160

NOT_INSTALLED = "policy: network is off, so nothing can be installed"
ADDING = "; the user can add an environment: `nsm env add NAME"
APT = f"{NOT_INSTALLED}; the user can install packages on the host, whose /usr is shown here"

WRITABLE = "writable: /workspace, /tmp"
OFF = "policy: network is off; only this session's own localhost can be reached"
PROJECT = (
    f"policy: /project is read-only, unless the user sets the project's mode to overlay; {WRITABLE}"
)
USR = f"policy: /usr is read-only; {WRITABLE}"
SOMEWHERE = "policy: all is read-only but /workspace, /tmp"
SOCKETS = "policy: no raw sockets and rare families; TCP, UDP and Unix sockets work"
MEMORY = f"policy: memory is limited to {MEMORY_MB} MB for each process"
PROCESSES = "policy: at most 48 processes and threads at a time"
THREADS = f"{PROCESSES}, and {MEMORY_MB} MB of memory, stacks of threads included"
DESCRIPTORS = "policy: at most 256 open files for each process"
FULL = "policy: a writable place is full (/dev/shm 6 MB, /tmp 12 MB, /workspace 24 MB)"
TMP_FULL = "policy: /tmp is full (at most 12 MB, 1536 files)"
RIGHTS = "policy: no root rights, no mounts and no further namespaces"
KILLED = f"killed: memory limit {MEMORY_MB} MB reached"
HOST_PROJECT = "/home/ann/src/words"
MOVED = f"policy: the project {HOST_PROJECT} is at /project here"
GPU_FULL = (
    "gpu: GPU memory ran out: all sessions and programs of this machine share it, and nsm limits "
    "none of them; `nsm top` shows the user who has it"
)
GPU_UPGRADED = (
    "gpu: the GPU's driver was upgraded, and the kernel runs the older module until the user "
    "restarts the machine"
)
NO_GPU = "gpu: this environment has no GPU; the user can give it one (`devices` in config.toml)"


def hidden(place: str) -> str:
    return (
        f"policy: the host's {place} is not shown here; of the host, /usr and the project can be "
        "read"
    )


INPUT = (
    "policy: standard input is empty, and nobody types: put the input into the code, or pipe it to "
    "the program"
)
TERMINAL = (
    "policy: there is no terminal, and nobody presses keys: edit files with code or `sed -i`, and "
    "give texts as options (`git commit -m`)"
)

NOTES = {
    "bus": "policy: a bus error can mean that /dev/shm is full (at most 6 MB, 768 files)",
    "group": "policy: files of other groups cannot be changed in a copy of the project, since the "
    "kernel copies files of one group only: the user can give them to that of the project "
    "(`chgrp`)",
    "input": INPUT,
    "signing": "policy: there are no keys to sign with, so nothing was committed: the user can "
    "sign, or allow `git commit --no-gpg-sign`",
    "terminal": TERMINAL,
    "apt-package": APT,
    "network": OFF,
    "project": PROJECT,
    "usr": USR,
    "read-only": SOMEWHERE,
    "sockets": SOCKETS,
    "memory": MEMORY,
    "processes": PROCESSES,
    "threads": THREADS,
    "descriptors": DESCRIPTORS,
    "full": FULL,
    "tmp-full": TMP_FULL,
    "rights": RIGHTS,
    "killed": f"{KILLED}; variables were lost",
    "moved": MOVED,
    "gpu-memory": GPU_FULL,
    "gpu-driver": GPU_UPGRADED,
    "gpu-lost": "gpu: the GPU has fallen off its bus; the user has to restart the machine",
    "no-gpu": NO_GPU,
}


def python_package(packages: str) -> str:
    return f"{NOT_INSTALLED}{ADDING} --pip {packages}`"


def node_package(packages: str) -> str:
    adding = f"{ADDING} --npm {packages}`"
    return f"{NOT_INSTALLED}{adding}, or install it in the project's node_modules"


OF = {"hidden": hidden, "python-package": python_package, "node-package": node_package}


def note(key: str) -> str:
    """The note that a table has under that key."""
    kind, _, name = key.partition(" ")
    return OF[kind](name) if kind in OF else NOTES[key]


def project(mode: ProjectMode = "readonly") -> ProjectMount:
    return ProjectMount(path=HOST_PROJECT, mount_point="/project", device=1, inode=2, mode=mode)


def policy(network: NetworkRule | None = None, mode: ProjectMode = "readonly") -> Policy:
    spec = JailSpec(
        environment=Environment(name="python", interpreter="python", memory_mb=MEMORY_MB),
        project=project(mode),
        sizes=SIZES,
        network=network or NetworkRule(),
    )
    return policy_of(spec, LIMITS, "cold", shown=(MountRule(path="/usr", kind="bind"),))


def notes_of(
    stderr: str = "",
    *,
    stdout: str = "",
    code: str = "",
    exit_code: int = 1,
    events: tuple[LimitEvent, ...] = (),
    network: NetworkRule | None = None,
    refused: tuple[str, ...] = (),
    mode: ProjectMode = "readonly",
    keeps_state: bool = True,
    environments: tuple[Environment, ...] = (),
    seen: ProjectMount | None = None,
    environment: Environment | None = None,
    **more: Any,
) -> tuple[str, ...]:
    """Make the notes for a result with these texts."""
    outcome = Outcome(stdout=stdout, stderr=stderr, exit_code=exit_code, **more)
    circumstances = Circumstances(
        code=code,
        project=seen or project(mode),
        refused=refused,
        keeps_state=keeps_state,
        environments=environments,
        environment=environment,
    )
    return explain(policy(network, mode), outcome, events, circumstances)
