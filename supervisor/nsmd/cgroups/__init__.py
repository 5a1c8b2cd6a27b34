"""Limits of sessions: memory, processes and processor time, by what the host allows.

`keeper` is what the rest of nsmd uses: it confines each jail, and says what holds it. `place`,
`scope` and `tree` find, ask for and divide a part of the tree of control groups; `limits`, `group`
and `notices` are one session's group; `watchdog` and `appetite` are for hosts without, and for what
a group does not count by itself; `confinement` is what a session has of all that. `docs/limits.md`
is for people.
"""

from nsmd.cgroups.confinement import Confinement
from nsmd.cgroups.group import Group, memory_of
from nsmd.cgroups.keeper import Keeper, SessionKeeper, find_keeper, open_keeper

__all__ = [
    "Confinement",
    "Group",
    "Keeper",
    "SessionKeeper",
    "find_keeper",
    "memory_of",
    "open_keeper",
]
