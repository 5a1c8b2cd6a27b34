"""Launching jails. A map; no module imports a later one, but for the interface.

interface     what a backend offers: `Launcher` starts a jail, `Jail` is a running one
host          what of the host's root directory a jail shows
arguments     bwrap's arguments for one jail (pure)
binds         which directories one jail shows beyond that (pure)
bubblewrap    the bwrap program: where it is, what it can do
processtree   what a process of ours has started, found and taken hold of
projectcopy   what a session has changed in a project that is copied on write
copyplace     room for that, where a jail is no fork
held          what every running jail is to us: descriptors
process       a running jail: its processes, killed and waited for
adopted       one that an earlier supervisor has started
idmapped      mounts in which files belong to another user
mounts        ways to closed directories, for a supervisor that runs as root
user          the host's user as whom jails run
projectdir    a project's directory, opened if it is the one that was checked
handover      what an artifact's program is given by descriptor
wrapperhome   a home for older artifacts' wrappers
programcode   our programs, compiled for the Python that runs them
starting      from a program that makes a jail to an agent that speaks
launcher      jails that bwrap makes, from what the host has
runonly       in place of an agent, where an artifact has none
artifact      jails that programs make which Nix has built
router        one of these two, as the environment has it
"""

from nsm.jail.failure import exhausted
from nsmd.jail.bubblewrap import find_bwrap
from nsmd.jail.interface import ColdLauncher, Jail, Launcher
from nsmd.jail.launcher import BwrapLauncher
from nsmd.jail.mounts import PrivateMounts, enter_private_mounts
from nsmd.jail.projectcopy import ProjectCopy
from nsmd.jail.router import open_router

__all__ = [
    "BwrapLauncher",
    "ColdLauncher",
    "Jail",
    "Launcher",
    "PrivateMounts",
    "ProjectCopy",
    "enter_private_mounts",
    "exhausted",
    "find_bwrap",
    "open_router",
]
