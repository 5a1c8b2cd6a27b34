"""Start and end jails. No module imports a later one.

bubblewrap         the bwrap program: its path and its features
host               the parts of the host's root directory that a jail shows
mounts             paths to closed directories, for a supervisor that runs as root
user               the user that jails run as
project_copy       a session's changes to a project in an overlay
project_directory  a project's directory, opened only if it is the one that was checked
process            a running jail: its processes, killed and waited for
interface          specification of a template, and interface of a launcher
arguments          bwrap's arguments for one jail (pure)
binds              further directories that one jail shows (pure)
overlay_space      room for those changes, if a jail is no fork
program_code       our programs, compiled for the Python that runs them
starting           from a program that makes a jail to an agent that answers
handover           descriptors and variables for an artifact's program
namespace_limits   limits of inotify and inodes in jails that bwrap makes
host_network       files that a session with the host's network needs
git_settings       the user's name for git in jails
run_only           artifacts without an agent: run one piece of code
artifact           jails that programs built by Nix make
launcher           jails that bwrap makes from the host's programs
templates          sessions as forks of a Python that is already running
limits             limits of memory, processes and processor time
"""

from nsm.jail.failure import exhausted
from nsmd.jail.bubblewrap import find_bwrap
from nsmd.jail.interface import Launcher
from nsmd.jail.launcher import BwrapLauncher
from nsmd.jail.mounts import PrivateMounts, enter_private_mounts
from nsmd.jail.process import Jail
from nsmd.jail.project_copy import ProjectCopy

__all__ = [
    "BwrapLauncher",
    "Jail",
    "Launcher",
    "PrivateMounts",
    "ProjectCopy",
    "enter_private_mounts",
    "exhausted",
    "find_bwrap",
]
