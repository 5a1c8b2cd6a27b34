"""Launching jails.

interface     what a backend offers: `Launcher` starts a jail, `Jail` is a running one
host          what of the host's root directory a jail shows
arguments     bwrap's arguments for one jail (pure)
bubblewrap    the bwrap program: where it is, what it can do
process       a running jail: its processes, killed and waited for
launcher      puts these together
"""

from nsmd.jail.bubblewrap import find_bwrap
from nsmd.jail.interface import Jail, Launcher
from nsmd.jail.launcher import BwrapLauncher

__all__ = ["BwrapLauncher", "Jail", "Launcher", "find_bwrap"]
