"""Start and end jails. No module imports a later one, except the interface.

interface          what a backend offers: `Launcher` starts a jail, `Jail` is a running one
host               what of the host's root directory a jail shows
arguments          bwrap's arguments for one jail (pure)
binds              which further directories one jail shows (pure)
bubblewrap         the bwrap program: where it is, what it can do
process_tree       the processes below one that we started
project_copy       what a session has changed in a project that is copied on write
overlay_space      room for those changes, where a jail is no fork
handle             the descriptors of any running jail
process            a running jail: its processes, killed and waited for
adopted            a jail that an earlier supervisor started
idmapped           mounts in which files belong to another user
mounts             ways to closed directories, for a supervisor that runs as root
user               the user as whom jails run
project_directory  a project's directory, opened if it is the one that was checked
handover           what an artifact's program is given by descriptor
wrapper_home       a home directory for wrappers of older artifacts
program_code       our programs, compiled for the Python that runs them
starting           from a program that makes a jail to an agent that answers
host_network       what a session with the host's network needs
launcher           jails that bwrap makes from what the host has
run_only           artifacts without an agent: run one piece of code
artifact           jails that programs built by Nix make
router             choose between the two launchers, as the environment says
templates          sessions as forks of a Python that is already running
cgroups            limits of memory, processes and processor time
"""

from nsm.jail.failure import exhausted
from nsmd.jail.bubblewrap import find_bwrap
from nsmd.jail.interface import ColdLauncher, Jail, Launcher
from nsmd.jail.launcher import BwrapLauncher
from nsmd.jail.mounts import PrivateMounts, enter_private_mounts
from nsmd.jail.project_copy import ProjectCopy
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
