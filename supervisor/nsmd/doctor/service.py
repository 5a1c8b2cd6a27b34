"""Checks of control groups and systemd: enforcement of sessions' limits, and survival
of a logout.
"""

from __future__ import annotations

import configparser

from nsm.checks import HostCheck, ok, rows, warn
from nsmd.doctor.host import Host

_WANTED = ("memory", "pids", "cpu")

_UNIFIED = (
    "Boot with cgroup v2 alone: `systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all` on the "
    "kernel's command line."
)


def check_service(host: Host) -> list[HostCheck]:
    """Check control groups and, if systemd runs, lingering."""
    systemd = host.exists("/run/systemd/system")
    none = "does not run here; nsm starts its supervisor itself, and keeps its sessions by a "
    return rows(
        ("control groups", _hierarchy(host)),
        ("systemd", None if systemd else ok(f"{none}process of its own")),
        ("lingering", _lingering(host) if systemd and host.uid else None),
        ("logout", _logout(host) if systemd and host.uid else None),
    )


def _hierarchy(host: Host) -> HostCheck:
    mounts = host.mounts()
    second = [point for point, kind in mounts if kind == "cgroup2"]
    first = [point for point, kind in mounts if kind == "cgroup"]
    if not second and not first:
        return warn("none are mounted", _UNIFIED)
    if not second:
        return warn("version 1 only", _UNIFIED)
    groups = {point.rsplit("/", 1)[-1] for point in first}
    if taken := sorted(group for group in groups if set(group.split(",")) & set(_WANTED)):
        return warn(
            f"hybrid: {', '.join(taken)} belong to version 1, where nobody delegates them",
            _UNIFIED,
        )
    return _delegated(host, second[0])


def _delegated(host: Host, mounted: str) -> HostCheck:
    own = ""
    for line in (host.read("/proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            own = line[3:].strip()
    manager = f"/user.slice/user-{host.uid}.slice/user@{host.uid}.service"
    place = manager if host.exists(f"{mounted}{manager}") else own
    text = host.read(f"{mounted}{place}/cgroup.controllers")
    if text is None:
        return ok("version 2")
    lacking = [controller for controller in _WANTED if controller not in text.split()]
    if lacking:
        return warn(
            f"version 2; not delegated to {place or '/'}: {', '.join(lacking)}",
            "Have them delegated: `sudo systemctl edit user@.service`, [Service], "
            "`Delegate=cpu memory pids`; then log in again.",
        )
    return ok(f"version 2, with {', '.join(_WANTED)}")


def _lingering(host: Host) -> HostCheck:
    if host.exists(f"/var/lib/systemd/linger/{host.user}"):
        return ok("on: services of this user outlive its logins")
    return warn(
        "off: systemd ends this user's services, and all sessions with them, when the last "
        "login ends, and starts none at boot",
        f"loginctl enable-linger {host.user}",
    )


def _logout(host: Host) -> HostCheck | None:
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
    if not kills:
        return None
    return warn(
        "ends every process of the login (KillUserProcesses=yes), supervisors that clients started "
        "included",
        "Run nsm as a service: `nsm service install`.",
    )
