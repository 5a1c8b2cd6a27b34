"""Checks for obstacles by the kernel, a security module or a container, and for Landlock."""

from __future__ import annotations

import shutil

from nsm.checks import HostCheck, fail, ok, rows, warn
from nsm.jail import landlock
from nsm.jail.failure import read_host_facts
from nsmd.doctor.host import Host

_DOCKER = (
    "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined"
)


def check_kernel(host: Host, *, jails_work: bool) -> list[HostCheck]:
    """Check user namespaces, containers, and mounts over /proc.

    Args:
        jails_work: some jails started, perhaps because this user may do more than others.
    """
    return rows(
        ("user namespaces", _user_namespaces(host, jails_work=jails_work)),
        ("container", _container(host, jails_work=jails_work)),
        ("/proc", _covered(host)),
    )


def check_landlock(version: int) -> HostCheck:
    """Check what the kernel's Landlock can do, and say what is weaker without it.

    Args:
        version: of its interface; 0 for none.
    """
    no_scopes = (
        "sessions cannot be forked, and code with the host's network reaches abstract sockets"
    )
    if not version:
        return warn(
            "none, so whoever takes over a secret helper, which reads what code sends, can read "
            f"your files; besides, {no_scopes}",
            "Use a kernel with CONFIG_SECURITY_LANDLOCK=y (Linux 5.13), and if the parameter lsm= "
            "of its command line lists security modules, add landlock to them.",
        )
    if version < landlock.SCOPES_SOCKETS:
        return ok(f"version {version}, without scopes (Linux 6.12): {no_scopes}")
    return ok(f"version {version}")


def _user_namespaces(host: Host, *, jails_work: bool) -> HostCheck:
    bad = warn if jails_work else fail
    if not host.exists("/proc/self/ns/user"):
        return bad("this kernel has none", "Use a kernel that was built with CONFIG_USER_NS=y.")
    facts = read_host_facts(host.root)
    bwrap = shutil.which("bwrap", path=host.search_path) or "/usr/bin/bwrap"
    allowed = facts.apparmor_restricts == 1 and _has_profile(host, bwrap)
    obstacle = facts.obstacle(bwrap)
    if obstacle is not None and not allowed:
        return bad(obstacle.why, obstacle.fix)
    detail = "not forbidden"
    if allowed:
        detail = f"restricted by AppArmor, and {bwrap} has a profile that allows them"
    few = {kind: limit for kind, limit in facts.namespace_limits.items() if limit < _FEW}
    if few:
        words = ", ".join(f"user.max_{kind}_namespaces is {limit}" for kind, limit in few.items())
        return warn(
            f"few: {words}, of which each session takes some",
            "Allow more: "
            + "; ".join(f"sudo sysctl user.max_{kind}_namespaces=15000" for kind in few)
            + ", and the same in /etc/sysctl.d/50-nsm.conf.",
        )
    return ok(detail)


_FEW = 1024
"""Enough for 250 sessions, each with one to three namespaces of each kind, and for other programs
of the user.
"""


def _has_profile(host: Host, bwrap: str) -> bool:
    """Return whether an AppArmor profile gives bwrap user namespaces."""
    for name in host.names("/etc/apparmor.d"):
        text = host.read(f"/etc/apparmor.d/{name}") or ""
        lines = [line.split("#", 1)[0] for line in text.splitlines()]
        if bwrap in " ".join(lines).split() and any("userns" in line for line in lines):
            return True
    return False


def _container(host: Host, *, jails_work: bool) -> HostCheck | None:
    if not (kind := host.containers_mark):
        return None
    status = dict(
        line.split(":\t", 1)
        for line in (host.read("/proc/self/status") or "").splitlines()
        if ":\t" in line
    )
    filtered = status.get("Seccomp", "0").strip() == "2"
    detail = f"this seems to be the inside of one ({kind})"
    detail += ", whose system calls are filtered" if filtered else ""
    if jails_work:
        return ok(f"{detail}; jails start all the same")
    return warn(
        f"{detail}; jails do not start",
        f"Start it with: {_DOCKER} (podman: --security-opt seccomp=unconfined --security-opt "
        "unmask=ALL)",
    )


def _covered(host: Host) -> HostCheck | None:
    """Check for mounts over parts of /proc."""
    usual = ("/proc/sys/fs/binfmt_misc",)
    covered = sorted({p for p, _ in host.mounts() if p.startswith("/proc/") and p not in usual})
    if not covered:
        return None
    return warn(
        f"covered at {', '.join(covered[:3])}"
        + (f" and {len(covered) - 3} more" if len(covered) > 3 else "")
        + ", so the kernel may let no jail have a /proc of its own",
        "Start the container with --security-opt systempaths=unconfined (podman: "
        "--security-opt unmask=ALL).",
    )
