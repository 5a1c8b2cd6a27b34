"""Reasons why a jail did not start, and what to do about it: bwrap's words made useful.

bwrap says what the kernel refused; which of half a dozen switches did it can be read from /proc/sys
by everyone. `explain` is pure; `read_host_facts` does the reading.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping

from nsm.dataclass import dataclass, field, replace
from nsm.shortage import SHORTAGES
from nsm.wire.errors import StartFailedError

_KINDS_OF_NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
_SEVERAL = 8
"""A limit below this cannot be meant to allow jails: each needs two user namespaces."""


SEE_DOCTOR = "`nsm doctor` checks what jails need."


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A cause and its remedy, as sentences."""

    why: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Settings that forbid what jails need. None where this kernel has no such setting.

    Attributes:
        userns_clone: kernel.unprivileged_userns_clone (Debian, Arch).
        apparmor_restricts: kernel.apparmor_restrict_unprivileged_userns (Ubuntu 23.10 and newer).
        userns_module: parameter `enable` of the user_namespace module (RHEL 7).
        namespace_limits: user.max_KIND_namespaces by kind.
        container: nsm probably runs in a container.
    """

    userns_clone: int | None = None
    apparmor_restricts: int | None = None
    userns_module: str | None = None
    namespace_limits: Mapping[str, int] = field(default_factory=dict[str, int])
    container: bool = False

    def obstacle(self, bwrap: str) -> Advice | None:
        """The setting that forbids user namespaces to the program `bwrap`."""
        if self.userns_clone == 0:
            return _sysctl("kernel.unprivileged_userns_clone", 0, 1)
        if self.userns_module == "N":
            return Advice(
                why="The kernel was started without user namespaces.",
                fix="Add user_namespace.enable=1 to its command line.",
            )
        for kind, limit in self.namespace_limits.items():
            if limit < _SEVERAL:
                return _sysctl(f"user.max_{kind}_namespaces", limit, 15000)
        if self.apparmor_restricts == 1:
            profile = f"abi <abi/4.0>, profile bwrap {bwrap} flags=(unconfined) {{ userns, }}"
            return Advice(
                why="kernel.apparmor_restrict_unprivileged_userns is 1, and no AppArmor profile "
                f"allows user namespaces to {bwrap}.",
                fix=f"Allow them: echo '{profile}' | sudo tee /etc/apparmor.d/bwrap && "
                "sudo apparmor_parser -r /etc/apparmor.d/bwrap",
            )
        return None


def read_host_facts(root: str = "/") -> HostFacts:
    """Read the settings. The root directory is another than `/` in tests only."""

    def number(name: str) -> int | None:
        text = _read(os.path.join(root, "proc/sys", name))
        return int(text) if text is not None and text.isdecimal() else None

    limits = {kind: number(f"user/max_{kind}_namespaces") for kind in _KINDS_OF_NAMESPACES}
    return HostFacts(
        userns_clone=number("kernel/unprivileged_userns_clone"),
        apparmor_restricts=number("kernel/apparmor_restrict_unprivileged_userns"),
        userns_module=_read(os.path.join(root, "sys/module/user_namespace/parameters/enable")),
        namespace_limits={kind: limit for kind, limit in limits.items() if limit is not None},
        container=any(
            os.path.exists(os.path.join(root, mark)) for mark in (".dockerenv", "run/.containerenv")
        ),
    )


def explain(text: str, facts: HostFacts, bwrap: str) -> StartFailedError:
    """The error for a jail that did not start, by what bwrap or the agent has said."""
    words = text.strip() or "nothing was said about why"
    advice = _advice(text, facts, bwrap)
    if advice is None:
        return StartFailedError(f"The jail did not start: {words}", hint=SEE_DOCTOR)
    return StartFailedError(f"{advice.why} Its own words: {words}", hint=advice.fix)


EXHAUSTED = SHORTAGES | {errno.ENOSPC, errno.ETOOMANYREFS}
"""Errors of system calls when there is no room: they say nothing against jails."""


def exhausted(error: OSError) -> StartFailedError:
    """The error for a jail that there is no room for."""
    return StartFailedError(
        f"The system has no room for another session: {error.strerror or error}.",
        hint="End sessions (`nsm kill`), or look at memory, processes (ulimit -u) and descriptors "
        "(ulimit -Hn).",
    )


def _advice(text: str, facts: HostFacts, bwrap: str) -> Advice | None:
    if re.search(_TOO_MANY_NAMESPACES, text):
        return facts.obstacle(bwrap) or _namespace_limit(facts)
    if re.search(_NO_NAMESPACES, text):
        return _forbidden(facts, bwrap)
    for pattern, advice in _CAUSES:
        if match := re.search(pattern, text):
            return Advice(
                why=advice.why.format(*match.groups(), bwrap=bwrap),
                fix=advice.fix.format(*match.groups(), bwrap=bwrap),
            )
    return None


def _forbidden(facts: HostFacts, bwrap: str) -> Advice:
    obstacle = facts.obstacle(bwrap)
    if obstacle is not None:
        return replace(obstacle, why=f"This host forbids user namespaces: {obstacle.why}")
    if facts.container:
        return Advice(
            why="This container forbids user namespaces, probably by its seccomp filter.",
            fix="Start it with: docker run --security-opt seccomp=unconfined "
            "--security-opt apparmor=unconfined --security-opt systempaths=unconfined",
        )
    return Advice(
        why="The kernel refuses a user namespace, and none of the usual settings forbids it.",
        fix="See `sudo dmesg | tail`: a security module or a seccomp filter may be in the way.",
    )


def _namespace_limit(facts: HostFacts) -> Advice:
    limits = ", ".join(f"{kind} {limit}" for kind, limit in facts.namespace_limits.items())
    return Advice(
        why=f"A limit on namespaces is reached. Those of user.max_*_namespaces are {limits} here; "
        "a sandbox or container around nsm may have lower ones, or forbid them altogether.",
        fix="Start nsm outside of that sandbox, or allow user namespaces in it; on the host itself "
        "end sessions (`nsm kill`), or raise the limit with sysctl.",
    )


_TOO_MANY_NAMESPACES = r"ENOSPC|namespace failed: No space left"

# The last two: with AppArmor's restriction the namespace is made, but gives no capabilities.
_NO_NAMESPACES = (
    r"No permissions to creat|namespace failed|setting up [ug]id map: "
    r"|loopback: Failed RTM_NEW\w+: Operation not permitted|Failed to make / slave: "
)

_CAUSES: tuple[tuple[str, Advice], ...] = (
    (
        r"Can't mount proc on \S+: Operation not permitted",
        Advice(
            why="Parts of /proc are covered here, as container engines do, so the kernel lets no "
            "jail have a /proc of its own.",
            fix="Start the container with: docker run --security-opt systempaths=unconfined "
            "(podman: --security-opt unmask=ALL)",
        ),
    ),
    (
        r"Can't find source path (.+): (.+)",
        Advice(
            why="The jail was to show {0}, and could not: {1}.", fix="Look at it with: ls -ld {0}"
        ),
    ),
    (
        r"execvp (.+): (.+)",
        Advice(
            why="The jail has no working {0}: {1}.",
            fix="If it was upgraded or moved, let nsm look again: nsm shutdown",
        ),
    ),
    (
        r"Unknown option (\S+)",
        Advice(why="{bwrap} does not know {0}.", fix="nsm needs bubblewrap 0.8 or newer."),
    ),
    (
        r"setuid (?:mode|installation)",
        Advice(
            why="{bwrap} is installed setuid root, in which mode it cannot do what jails need.",
            fix="Use it with user namespaces: sudo chmod u-s {bwrap}",
        ),
    ),
    (
        r"(Cannot allocate memory|Resource temporarily unavailable|No space left on device)",
        Advice(
            why="The system has run out of something: {0}.",
            fix="End sessions (`nsm kill`), or look at memory and processes (ulimit -u).",
        ),
    ),
)
"""Patterns and what they mean, the first match wins; `{0}` is the first group."""


def _sysctl(name: str, found: int, wanted: int) -> Advice:
    return Advice(
        why=f"{name} is {found}.",
        fix=f"Change it now: sudo sysctl -w {name}={wanted}; for good: "
        f"echo {name}={wanted} | sudo tee /etc/sysctl.d/50-nsm.conf",
    )


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None
