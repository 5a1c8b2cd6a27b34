"""Control groups and systemd: what keeps sessions to their limits, and alive after a logout."""

from __future__ import annotations

import configparser
from collections.abc import Iterator

from nsm.checks import Check
from nsmd.doctor.host import Host

_WANTED = ("memory", "pids", "cpu")

_UNIFIED = (
    "Boot with cgroup v2 alone: `systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all` on the "
    "kernel's command line."
)


def check_service(host: Host) -> Iterator[Check]:
    """Control groups, and where systemd runs, lingering."""
    yield _hierarchy(host)
    if not host.exists("/run/systemd/system"):
        detail = "does not run here; nsm starts its supervisor itself, and keeps its sessions by a"
        yield Check(name="systemd", status="ok", detail=f"{detail} process of its own")
        return
    if host.uid != 0:
        yield _lingering(host)
        yield from _logout(host)


def _hierarchy(host: Host) -> Check:
    name = "control groups"
    mounts = host.mounts()
    second = [point for point, kind in mounts if kind == "cgroup2"]
    first = [point for point, kind in mounts if kind == "cgroup"]
    if not second and not first:
        return Check(name=name, status="warn", detail="none are mounted", fix=_UNIFIED)
    if not second:
        return Check(name=name, status="warn", detail="version 1 only", fix=_UNIFIED)
    if first:
        taken = [
            point.rsplit("/", 1)[-1]
            for point in first
            if set(point.rsplit("/", 1)[-1].split(",")) & set(_WANTED)
        ]
        if taken:
            return Check(
                name=name,
                status="warn",
                detail=f"hybrid: {', '.join(sorted(set(taken)))} belong to version 1, where nobody "
                "delegates them",
                fix=_UNIFIED,
            )
    return _delegated(host, second[0])


def _delegated(host: Host, mounted: str) -> Check:
    name = "control groups"
    own = ""
    for line in (host.read("/proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            own = line[3:].strip()
    manager = f"/user.slice/user-{host.uid}.slice/user@{host.uid}.service"
    place = manager if host.exists(f"{mounted}{manager}") else own
    text = host.read(f"{mounted}{place}/cgroup.controllers")
    if text is None:
        return Check(name=name, status="ok", detail="version 2")
    lacking = [controller for controller in _WANTED if controller not in text.split()]
    if lacking:
        return Check(
            name=name,
            status="warn",
            detail=f"version 2; not delegated to {place or '/'}: {', '.join(lacking)}",
            fix="Have them delegated: `sudo systemctl edit user@.service`, [Service], "
            "`Delegate=cpu memory pids`; then log in again.",
        )
    return Check(name=name, status="ok", detail=f"version 2, with {', '.join(_WANTED)}")


def _lingering(host: Host) -> Check:
    name = "lingering"
    if host.exists(f"/var/lib/systemd/linger/{host.user}"):
        detail = "on: services of this user outlive its logins"
        return Check(name=name, status="ok", detail=detail)
    return Check(
        name=name,
        status="warn",
        detail="off: systemd ends this user's services, and all sessions with them, when the last "
        "login ends, and starts none at boot",
        fix=f"loginctl enable-linger {host.user}",
    )


def _logout(host: Host) -> Iterator[Check]:
    """Check whether logging out kills processes outside of services (logind.conf(5))."""
    files = ["/etc/systemd/logind.conf"]
    files += [f"/etc/systemd/logind.conf.d/{n}" for n in host.names("/etc/systemd/logind.conf.d")]
    kills = False
    for path in files:
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        try:
            parser.read_string(host.read(path) or "")
        except configparser.Error:
            continue
        value = parser.get("Login", "KillUserProcesses", fallback=None)
        if value is not None:
            kills = value.strip().lower() in {"yes", "true", "1", "on"}
    if kills:
        yield Check(
            name="logout",
            status="warn",
            detail="ends every process of the login (KillUserProcesses=yes), supervisors that "
            "clients started included",
            fix="Run nsm as a service: `nsm service install`.",
        )
