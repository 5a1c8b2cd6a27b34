"""Limits of whole sessions (memory, processes, processor time), with the means of this host.

The rest of nsmd uses `enforcer`. docs/reference/policy.md describes the limits for users.

tree            files of control groups, and the supervisor's part of their tree
systemd         ask systemd for delegated scopes, and for moves of processes
group           one session's group: its limits, its counters, its share of the processor
process_memory  memory of a session's processes, from /proc, if no group counts it
confinement     limits of one session, which of them ended something, and the watchdog
enforcer        confine each jail with the means of this host
"""

from nsmd.jail.limits.confinement import Confinement
from nsmd.jail.limits.enforcer import LimitEnforcer, find_enforcer, open_enforcer
from nsmd.jail.limits.group import BoxBounds, Group, memory_of
from nsmd.jail.limits.tree import is_frozen

__all__ = [
    "BoxBounds",
    "Confinement",
    "Group",
    "LimitEnforcer",
    "find_enforcer",
    "is_frozen",
    "memory_of",
    "open_enforcer",
]
