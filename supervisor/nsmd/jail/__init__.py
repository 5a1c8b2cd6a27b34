"""Start and end jails. No module imports a later one.

bubblewrap    the bwrap program: its path, its features, limits that it has no option for
host          the parts of the host that a jail shows
user          the user that jails run as, and paths to directories closed to that user
interpreters  interpreters of this host that jails can show: searched and asked
project       the project in a jail: its directory, a session's changes in an overlay
process       a running jail: its processes, killed and waited for; and what a launcher is
arguments     bwrap's arguments for one jail, and the specification of a template (pure)
program_code  our programs, compiled for the Python that runs them
starting      from a program that makes a jail to an agent that answers
run_only      artifacts without an agent: run one piece of code
artifact      jails that programs built by Nix make
launcher      jails that bwrap makes from the host's programs
templates     sessions as forks of a Python that is already running
limits        limits of memory, processes and processor time
"""

from nsm.jail.failure import exhausted
from nsmd.jail.bubblewrap import find_bwrap
from nsmd.jail.launcher import BwrapLauncher
from nsmd.jail.process import Jail, Launcher
from nsmd.jail.project import ProjectCopy
from nsmd.jail.user import PrivateMounts, enter_private_mounts

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
