"""Launching jails. A map; no module imports a later one, but for the interface.

interface     what a backend offers: `Launcher` starts a jail, `Jail` is a running one
syscalls      numbers of system calls, by architecture (pure)
seccomp       the filter of system calls (pure)
host          what of the host's root directory a jail shows
arguments     bwrap's arguments for one jail (pure)
binds         which directories one jail shows beyond that (pure)
bubblewrap    the bwrap program: where it is, what it can do
failure       why a jail did not start, and what to do about it
process       a running jail: its processes, killed and waited for
mounts        ways to closed directories, for a supervisor that runs as root
user          the host's user as whom jails run
programcode   our programs, compiled for the Python that runs them
seccomp       which system calls code may not make
launcher      puts these together
"""

from nsmd.jail.bubblewrap import find_bwrap
from nsmd.jail.failure import exhausted
from nsmd.jail.interface import Jail, Launcher
from nsmd.jail.launcher import BwrapLauncher
from nsmd.jail.mounts import PrivateMounts, enter_private_mounts

__all__ = [
    "BwrapLauncher",
    "Jail",
    "Launcher",
    "PrivateMounts",
    "enter_private_mounts",
    "exhausted",
    "find_bwrap",
]
