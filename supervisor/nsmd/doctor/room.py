"""Checks of descriptors, processes, memory, watches and the clock."""

from __future__ import annotations

import re
import resource
import time

from nsm.checks import HostCheck, ok, rows, warn
from nsmd.doctor.host import Host
from nsmd.host.descriptors import share_out
from nsmd.model.settings import Settings

BORN_S = 1_735_689_600
"""2025-01-01: a correct clock shows no earlier time."""

FEW_PROCESSES = 1024
LITTLE_MEMORY_MB = 512
FEW_WATCHERS = 16

_MIB_KB = 1024


def check_room(host: Host, settings: Settings) -> list[HostCheck]:
    """Check the resources that are left for the configured number of sessions."""
    return rows(
        ("descriptors", descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[1], settings)),
        ("processes", processes(host, resource.getrlimit(resource.RLIMIT_NPROC)[0])),
        ("memory", _memory(host)),
        ("inotify", _watchers(host)),
        ("clock", clock(time.time())),
    )


def descriptors(limit: int, settings: Settings) -> HostCheck:
    """Check whether descriptors suffice for `max_sessions`.

    Args:
        limit: the hard limit.
    """
    wanted = settings.session.max_sessions + settings.pool.max_spares
    possible = share_out(limit, settings.http.descriptors).sessions
    if possible >= wanted:
        return ok(f"{limit}, for {wanted} sessions and spares")
    return warn(
        f"{limit}, which is enough for {possible} sessions; configured are {wanted}, spares "
        "included",
        "Raise the hard limit: LimitNOFILE= of the service, or `* hard nofile 524288` in "
        "/etc/security/limits.d/nsm.conf and a new login.",
    )


def processes(host: Host, limit: int) -> HostCheck:
    """Check whether the user may have enough processes for some sessions.

    Args:
        limit: RLIMIT_NPROC, or RLIM_INFINITY.
    """
    found = {"ulimit -u": None if limit == resource.RLIM_INFINITY else limit}
    found["kernel.threads-max"] = host.number("/proc/sys/kernel/threads-max")
    found["kernel.pid_max"] = host.number("/proc/sys/kernel/pid_max")
    slice_ = f"/sys/fs/cgroup/user.slice/user-{host.uid}.slice/pids.max"
    found["TasksMax of the user's slice"] = host.number(slice_)
    what, least = min(
        ((key, value) for key, value in found.items() if value is not None),
        key=lambda pair: pair[1],
        default=("", None),
    )
    if least is None:
        return ok("no limit found")
    detail = f"at most {least} ({what})"
    if least >= FEW_PROCESSES:
        return ok(detail)
    return warn(
        f"{detail}; a session takes three, and what its code starts",
        "Raise it: `* soft nproc 8192` in /etc/security/limits.d/nsm.conf, sysctl, or "
        "`systemctl set-property user-UID.slice TasksMax=8192`.",
    )


def _memory(host: Host) -> HostCheck:
    facts = {
        key: int(kilobytes)
        for key, kilobytes in re.findall(
            r"(?m)^(\w+):\s+(\d+) kB", host.read("/proc/meminfo") or ""
        )
    }
    available = facts.get("MemAvailable")
    if available is None:
        detail = "unknown: /proc/meminfo does not say"
        return warn(detail, "Mount /proc.")
    detail = f"{available // _MIB_KB} MiB available"
    if not host.exists("/proc/pressure/memory"):
        detail += "; the kernel does not tell of pressure (psi=1 on its command line), so spares "
        detail += "are given up by what is available alone"
    if available // _MIB_KB < LITTLE_MEMORY_MB:
        return warn(
            detail,
            "End sessions that nobody needs (nsm ps, nsm kill --idle 1h), or set [pool] "
            "max_spares = 0.",
        )
    return ok(detail)


def _watchers(host: Host) -> HostCheck | None:
    instances = host.number("/proc/sys/fs/inotify/max_user_instances")
    if instances is None or instances >= FEW_WATCHERS:
        return None
    return warn(
        f"{instances} watchers for all programs of the user: new environments may not be noticed "
        "by themselves",
        "sudo sysctl fs.inotify.max_user_instances=128",
    )


def clock(now_s: float) -> HostCheck:
    """Check whether the time may be right; certificates and log lines need that.

    Args:
        now_s: Unix time.
    """
    shown = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now_s))
    if now_s >= BORN_S:
        return ok(shown)
    return warn(
        f"{shown}, which has long been: certificates are refused, and logs say wrong times",
        "Set it: sudo timedatectl set-ntp true",
    )
