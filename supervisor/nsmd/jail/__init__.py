"""Start and end jails. No module imports a later one, except the interface.

interface          interface of a backend: `Launcher` starts a jail, `Jail` is a running one
host               the parts of the host's root directory that a jail shows
arguments          bwrap's arguments for one jail (pure)
binds              further directories that one jail shows (pure)
bubblewrap         the bwrap program: its path and its features
process_tree       the processes below one of our children
project_copy       a session's changes to a project in an overlay
overlay_space      room for those changes, if a jail is no fork
handle             the descriptors of any running jail
process            a running jail: its processes, killed and waited for
adopted            a jail that an earlier supervisor started
mounts             paths to closed directories, for a supervisor that runs as root
user               the user that jails run as
project_directory  a project's directory, opened only if it is the one that was checked
handover           descriptors and variables for an artifact's program
program_code       our programs, compiled for the Python that runs them
starting           from a program that makes a jail to an agent that answers
namespace_limits   limits of inotify and inodes in jails that bwrap makes
host_network       files that a session with the host's network needs
git_settings       the user's name for git in jails
launcher           jails that bwrap makes from the host's programs
run_only           artifacts without an agent: run one piece of code
artifact           jails that programs built by Nix make
router             choice between the two launchers, by environment
templates          sessions as forks of a Python that is already running
limits             limits of memory, processes and processor time
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
