"""Facts of the kernel about a process, to compare with its policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nsmd.model.policy import Policy
from nsmd.model.values import Enforcement


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    """One process as /proc shows it (proc_pid_status(5), proc_pid_cgroup(5)).

    Attributes:
        uid: its user on the host.
        capabilities: union of all its sets, hexadecimal; zeroes for none.
        no_new_privs: as in `nsmd.model.policy.Rights`.
        system_call_filter: True if its system calls go through a filter.
        cgroup: path of its control group; empty if the host has no version 2.
    """

    uid: int
    capabilities: str
    no_new_privs: bool
    system_call_filter: bool
    cgroup: str


def kernel_facts(pid: int, proc: str = "/proc") -> KernelFacts | None:
    """Read the facts about a process; None if it is gone.

    Args:
        pid: process id on the host.
        proc: directory of procfs; other than `/proc` in tests only.
    """
    try:
        with open(f"{proc}/{pid}/status", encoding="utf-8", errors="replace") as file:
            status = dict(line.split(":", 1) for line in file)
        with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            groups = file.read().splitlines()
        sets = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
        capabilities = 0
        for name in sets:
            capabilities |= int(status[name], 16)
        return KernelFacts(
            uid=int(status["Uid"].split()[1]),
            capabilities=f"{capabilities:016x}",
            no_new_privs=int(status["NoNewPrivs"]) == 1,
            system_call_filter=int(status.get("Seccomp", "0")) != 0,
            cgroup=next((line[3:] for line in groups if line.startswith("0::")), ""),
        )
    except (OSError, KeyError, ValueError):
        return None


def contradictions(policy: Policy, facts: KernelFacts) -> Iterator[str]:
    """Compare the policy with the facts; yield sentences for people."""
    rights = policy.rights
    if not policy.complete:
        return
    if int(facts.capabilities, 16) and not rights.capabilities:
        yield f"The jail has capabilities ({facts.capabilities}), and should have none."
    if rights.no_new_privs and not facts.no_new_privs:
        yield "Programs in the jail can gain privileges, and should not."
    if rights.system_call_filter and not facts.system_call_filter:
        yield "System calls are not filtered, and should be."
    if facts.uid == 0:
        yield "The jail runs as the host's root, and should not."


def weaker(policy: Policy, kept: Enforcement) -> Iterator[str]:
    """Yield sentences about limits that are enforced in another way than the policy says.

    Args:
        kept: the enforcement as read back.
    """
    limits = policy.limits
    for what, promised, real in (
        ("memory", limits.memory_by, kept.memory),
        ("processes", limits.processes_by, kept.processes),
        ("processor time", limits.cpu_by, kept.cpu),
    ):
        if promised != real:
            why = f": {kept.why}" if kept.why else ""
            yield f"The limit on {what} is kept by {real}, and should be by {promised}{why}."
