"""Doctor's trial of the limits: set, and read back."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nsm.checks import HostCheck, ok, rows, warn
from nsm.dataclass import dataclass
from nsmd.jail.limits import find_enforcer
from nsmd.jail.limits.enforcer import enforcement_by
from nsmd.jail.limits.group import Group, limits_of
from nsmd.jail.limits.tree import GroupTree
from nsmd.model.limits import session_limits
from nsmd.model.settings import Settings
from nsmd.model.values import Enforcement, Environment, JailSizes, JailSpec, SessionLimits

COUNTED_BY_NAMESPACE = (5, 14)
"""Linux version from which on RLIMIT_NPROC counts in each user namespace separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSeen:
    """Results of the trial.

    Attributes:
        where: place of the groups; empty if there are none.
        lacking: limits that did not apply in a trial group, for people.
        fix: what to do, for people.
    """

    enforcement: Enforcement
    where: str = ""
    lacking: str = ""
    fix: str = ""


async def look_at_limits(settings: Settings, environment: Mapping[str, str]) -> LimitsSeen:
    """Do what a supervisor does at its start, and make a group; it is removed afterwards.

    This process moves into a scope of its own for that, which ends with it.

    Args:
        environment: variables of this process.
    """
    limits = session_limits(settings)
    enforcer = await find_enforcer(limits, environment)
    if enforcer.tree is None:
        return LimitsSeen(enforcement=enforcer.enforcement, fix=enforcer.fix)
    lacking, holds = _try_group(enforcer.tree, settings, limits)
    return LimitsSeen(
        enforcement=enforcer.enforcement if not lacking else enforcement_by(holds, lacking),
        where=enforcer.tree.directory,
        lacking=lacking,
    )


def _try_group(
    tree: GroupTree, settings: Settings, limits: SessionLimits
) -> tuple[str, frozenset[str]]:
    """Try the limits in a group. Returns those that do not apply, and the controllers whose limits
    do.
    """
    defaults = settings.defaults
    spec = JailSpec(
        environment=Environment(
            name="python",
            interpreter="python",
            memory_mb=defaults.memory_mb,
            cpu_weight=defaults.cpu_weight,
        ),
        project=None,
        sizes=JailSizes(
            workspace_mb=defaults.workspace_mb, tmp_mb=defaults.tmp_mb, shm_mb=defaults.shm_mb
        ),
    )
    try:
        group = Group.new(tree, "doctor", limits_of(spec, limits))
    except OSError as error:
        return f"no group can be made: {error.strerror}", frozenset()
    group.remove()
    return group.lacking, group.holds


def check_limits(seen: LimitsSeen, release: str) -> list[HostCheck]:
    """Make a row for each limit of a whole session.

    Args:
        release: version of the kernel.
    """
    return rows(
        ("memory limit", _memory(seen)),
        ("process limit", _processes(seen.enforcement, release)),
        ("processor share", _processor(seen.enforcement)),
    )


def _memory(seen: LimitsSeen) -> HostCheck:
    if seen.enforcement.memory == "cgroup":
        return ok(f"control groups below {seen.where}, read back")
    return warn(
        f"no control groups: {seen.enforcement.why}. A watchdog looks at sessions while code runs "
        "in them, and each process is limited by itself",
        seen.fix or "See docs/reference/policy.md, 'With control groups'.",
    )


def _processes(kept: Enforcement, release: str) -> HostCheck:
    if kept.processes == "cgroup":
        return ok("pids.max, read back")
    version = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    if version and version < COUNTED_BY_NAMESPACE:
        detail = f"RLIMIT_NPROC, which Linux {release} counts for all of the user's processes"
        return warn(detail, "Linux 5.14 or newer.")
    return ok("RLIMIT_NPROC, counted for each session")


def _processor(kept: Enforcement) -> HostCheck:
    if kept.cpu == "cgroup":
        return ok("cpu.weight, read back")
    return warn(
        "none: busy sessions share with each other and with everybody else as processes do",
        "As for the memory limit."
        if kept.memory != "cgroup"
        else "Have the cpu controller delegated: `sudo systemctl edit user@.service`, [Service], "
        "`Delegate=cpu memory pids`; then log in again.",
    )
