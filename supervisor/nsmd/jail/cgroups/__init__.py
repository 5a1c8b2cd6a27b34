"""Limits of whole sessions (memory, processes, processor time), with the means of this host.

The rest of nsmd uses `enforcer`. docs/reference/policy.md describes the limits for users.

files            the files of a control group
discovery        position of this process in the tree of control groups
scope            ask systemd for a delegated scope around the supervisor
session_scope    a scope for sessions alone, beside the supervisor's service
tree             the supervisor's part of the tree: itself in one group, each session in another
limits           values for the limits of a session's group (pure)
group            one session's group: made, limited, read
notices          the kernel's notices when a limit was reached
share            a session's share of the processor
held_memory      memory that is in no address space: memory files, pipes, sockets
memory_estimate  memory of a session's processes, from /proc, if no group counts it
watchdog         end processes that take too much memory, if no group does
confinement      limits of one session, and which of them ended something
enforcer         confine each jail with the means of this host
"""

from nsmd.jail.cgroups.confinement import Confinement
from nsmd.jail.cgroups.discovery import is_frozen
from nsmd.jail.cgroups.enforcer import (
    BoxEnforcer,
    LimitEnforcer,
    SessionEnforcer,
    find_enforcer,
    open_enforcer,
)
from nsmd.jail.cgroups.group import Group, memory_of
from nsmd.jail.cgroups.limits import BoxBounds

__all__ = [
    "BoxBounds",
    "BoxEnforcer",
    "Confinement",
    "Group",
    "LimitEnforcer",
    "SessionEnforcer",
    "find_enforcer",
    "is_frozen",
    "memory_of",
    "open_enforcer",
]
