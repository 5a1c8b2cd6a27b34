"""Limits of sessions as a whole: memory, processes and processor time, by what the host allows.

`enforcer` is what the rest of nsmd uses. docs/reference/policy.md is for people.

files            the files of a control group
discovery        where this process is in the tree of control groups
scope            ask systemd for a delegated scope around the supervisor
session_scope    a scope for sessions alone, beside the supervisor's service
tree             the supervisor's part of the tree: itself in one group, each session in another
limits           what a session's group is limited to (pure)
group            one session's group: made, limited, read
notices          the kernel's notices when a limit was reached
share            a session's share of the processor
memory_estimate  memory of a session's processes, from /proc, where no group counts it
watchdog         end what takes too much memory, where no group does
confinement      all that confines one session, and which limit ended something of it
enforcer         confine each jail by what this host has
"""

from nsmd.jail.cgroups.confinement import Confinement
from nsmd.jail.cgroups.enforcer import LimitEnforcer, SessionEnforcer, find_enforcer, open_enforcer
from nsmd.jail.cgroups.group import Group, memory_of

__all__ = [
    "Confinement",
    "Group",
    "LimitEnforcer",
    "SessionEnforcer",
    "find_enforcer",
    "memory_of",
    "open_enforcer",
]
