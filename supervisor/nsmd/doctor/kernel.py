"""Obstacles of the kernel, of a security module or of a container."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from nsm.checks import Check, Status
from nsm.jail.failure import read_host_facts
from nsmd.doctor.host import Host

_DOCKER = (
    "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined"
)


def check_kernel(host: Host, *, jails_work: bool) -> Iterator[Check]:
    """User namespaces, containers, and what covers /proc.

    Args:
        jails_work: some were started, by a user who may do more than others, for example.
    """
    yield _user_namespaces(host, jails_work=jails_work)
    if container := host.containers_mark:
        yield _container(host, container, jails_work=jails_work)
    if covered := _covered(host):
        yield Check(
            name="/proc",
            status="warn",
            detail=f"covered at {', '.join(covered[:3])}"
            + (f" and {len(covered) - 3} more" if len(covered) > 3 else "")
            + ", so the kernel may let no jail have a /proc of its own",
            fix="Start the container with --security-opt systempaths=unconfined (podman: "
            "--security-opt unmask=ALL).",
        )


def _user_namespaces(host: Host, *, jails_work: bool) -> Check:
    name = "user namespaces"
    bad: Status = "warn" if jails_work else "fail"
    if not host.exists("/proc/self/ns/user"):
        return Check(
            name=name,
            status=bad,
            detail="this kernel has none",
            fix="Use a kernel that was built with CONFIG_USER_NS=y.",
        )
    facts = read_host_facts(host.root)
    bwrap = shutil.which("bwrap", path=host.search_path) or "/usr/bin/bwrap"
    allowed = facts.apparmor_restricts == 1 and _has_profile(host, bwrap)
    obstacle = facts.obstacle(bwrap)
    if obstacle is not None and not allowed:
        return Check(name=name, status=bad, detail=obstacle.why, fix=obstacle.fix)
    detail = "not forbidden"
    if allowed:
        detail = f"restricted by AppArmor, and {bwrap} has a profile that allows them"
    few = {kind: limit for kind, limit in facts.namespace_limits.items() if limit < _FEW}
    if few:
        words = ", ".join(f"user.max_{kind}_namespaces is {limit}" for kind, limit in few.items())
        return Check(
            name=name,
            status="warn",
            detail=f"few: {words}, of which each session takes some",
            fix="Allow more: "
            + "; ".join(f"sudo sysctl user.max_{kind}_namespaces=15000" for kind in few)
            + ", and the same in /etc/sysctl.d/50-nsm.conf.",
        )
    return Check(name=name, status="ok", detail=detail)


_FEW = 1024
"""250 sessions, each with a namespace or three of each kind, and what else the user runs."""


def _has_profile(host: Host, bwrap: str) -> bool:
    """Return whether an AppArmor profile gives bwrap user namespaces."""
    for name in host.names("/etc/apparmor.d"):
        text = host.read(f"/etc/apparmor.d/{name}") or ""
        lines = [line.split("#", 1)[0] for line in text.splitlines()]
        if bwrap in " ".join(lines).split() and any("userns" in line for line in lines):
            return True
    return False


def _container(host: Host, kind: str, *, jails_work: bool) -> Check:
    name = "container"
    status = dict(
        line.split(":\t", 1)
        for line in (host.read("/proc/self/status") or "").splitlines()
        if ":\t" in line
    )
    filtered = status.get("Seccomp", "0").strip() == "2"
    detail = f"this seems to be the inside of one ({kind})"
    detail += ", whose system calls are filtered" if filtered else ""
    if jails_work:
        return Check(name=name, status="ok", detail=f"{detail}; jails start all the same")
    return Check(
        name=name,
        status="warn",
        detail=f"{detail}; jails do not start",
        fix=f"Start it with: {_DOCKER} (podman: --security-opt seccomp=unconfined --security-opt "
        "unmask=ALL)",
    )


def _covered(host: Host) -> list[str]:
    """List the mounts over parts of /proc."""
    usual = ("/proc/sys/fs/binfmt_misc",)
    return sorted({p for p, _ in host.mounts() if p.startswith("/proc/") and p not in usual})
