"""Checks of what the system allows: user namespaces, security modules and containers, control
groups and systemd, descriptors, processes, memory, the clock.
"""

from __future__ import annotations

import configparser
import os
import pwd
import re
import resource
import shutil
import sys
import time
from collections.abc import Mapping

from nsm import paths
from nsm._version import program_version
from nsm.checks import HostCheck, fail, ok, rows, warn
from nsm.dataclass import dataclass, field
from nsm.jail import landlock
from nsm.jail.failure import read_host_facts
from nsmd.host.descriptors import share_out
from nsmd.model.settings import Settings

MAX_BYTES = 64 * 1024 * 1024
"""Largest file to read: clients keep their history beside their entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Paths and facts of the checked host.

    Attributes:
        root: the host's root directory; other than `/` in tests only. Paths for people are shown
            without it.
        cwd: the working directory, whose project has entries of its own.
        shim: path of this installation's `nsm-mcp`; empty if it has none.
    """

    home: str
    cwd: str
    uid: int
    user: str
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    search_path: str = ""
    shim: str = ""
    version: str = ""
    socket: str = ""
    lock: str = ""
    state: str = ""
    tools: str = ""
    root: str = "/"

    def real(self, path: str) -> str:
        """Real path of an absolute path of the host."""
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str | None:
        """Read a file's text; None if it cannot be read."""
        try:
            with open(self.real(path), encoding="utf-8", errors="replace") as file:
                return file.read(MAX_BYTES)
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Read a number from a file of the kernel; None if there is none."""
        text = (self.read(path) or "").strip()
        return int(text) if text.isdecimal() else None

    def exists(self, path: str) -> bool:
        """Return whether something is there."""
        return os.path.lexists(self.real(path))

    def names(self, path: str) -> list[str]:
        """List the names in a directory, sorted; empty if it cannot be read."""
        try:
            return sorted(os.listdir(self.real(path)))
        except OSError:
            return []

    def mounts(self) -> list[tuple[str, str]]:
        """Mount points and types of file systems as this process sees them
        (proc_pid_mountinfo(5))."""
        found: list[tuple[str, str]] = []
        for line in (self.read("/proc/self/mountinfo") or "").splitlines():
            before, separator, after = line.partition(" - ")
            fields = before.split()
            if separator and len(fields) > 4 and after:
                found.append((_unescaped(fields[4]), after.split()[0]))
        return found

    def type_of(self, path: str) -> str:
        """Type of the file system of a path; empty if unknown."""
        best = ("", "")
        for point, kind in self.mounts():
            below = path == point or path.startswith(point.rstrip("/") + "/")
            if below and len(point) >= len(best[0]):
                best = (point, kind)
        return best[1]

    @property
    def containers_mark(self) -> str:
        """Mark of a container around this host; empty without one."""
        marks = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
        for path, kind in marks.items():
            if self.exists(path):
                return kind
        return self.variables.get("container", "")


def _unescaped(text: str) -> str:
    """A mount point, whose blanks and backslashes are octal."""
    for character in " \t\n\\":
        text = text.replace(f"\\{ord(character):03o}", character)
    return text


def this_host(search_path: str) -> Host:
    """Make the host that this process runs on."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    shim = os.path.join(os.path.dirname(sys.executable), "nsm-mcp")
    return Host(
        home=paths.home(),
        cwd=_working_directory(),
        uid=os.getuid(),
        user=user,
        variables=os.environ,
        search_path=search_path,
        shim=shim if os.access(shim, os.X_OK) else shutil.which("nsm-mcp", path=search_path) or "",
        version=program_version(),
        socket=paths.socket_path(),
        lock=os.path.join(paths.runtime_dir(), "supervisor.lock"),
        state=paths.state_dir(),
        tools=paths.tools_dir(),
    )


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


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
            "none: code that takes over a secret helper could read your files. Besides, "
            f"{no_scopes}",
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
    detail = f"nsm seems to run in one ({kind})"
    detail += ", whose system calls are filtered" if filtered else ""
    if jails_work:
        return ok(f"{detail}; jails start")
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


_WANTED = ("memory", "pids", "cpu")

_UNIFIED = (
    "Boot with cgroup v2 alone: `systemd.unified_cgroup_hierarchy=1 cgroup_no_v1=all` on the "
    "kernel's command line."
)


def check_service(host: Host) -> list[HostCheck]:
    """Check control groups and, if systemd runs, lingering."""
    systemd = host.exists("/run/systemd/system")
    none = "does not run here; clients start the supervisor, and a small process keeps sessions "
    return rows(
        ("control groups", _hierarchy(host)),
        ("systemd", None if systemd else ok(f"{none}when it is killed")),
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
    return ok("version 2")  # the trial of the limits says what is not delegated


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
    """Check whether the hard limit of descriptors suffices for `max_sessions`."""
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
    """Check whether RLIMIT_NPROC and others allow enough processes for some sessions."""
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
            "End sessions that nobody needs (nsm ps, nsm kill --idle 3600), or set [pool] "
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
    """Check whether the time may be right; certificates and log lines need that."""
    shown = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(now_s))
    if now_s >= BORN_S:
        return ok(shown)
    return warn(
        f"{shown}, which has long been: certificates are refused, and logs say wrong times",
        "Set it: sudo timedatectl set-ntp true",
    )
