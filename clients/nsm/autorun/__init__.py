"""Files of a project that make the host run something, each with the program that does, and when.

This table decides what a box can neither change nor make, what nsm reports when a box has ended,
and which changes `nsm apply` warns of; tools/autorun_page.py makes a page of it. It lacks what
people run by a command of its own: a Makefile, a test, a script of package.json; and programs in
`.venv` and `node_modules`, which editors run, too. For files of git the content counts, not the
name (`nsmbox.protection.leftovers`).

names    the entries: names that count wherever below a project they are, and below a home directory
lookup   finds the entry of a path
"""

from nsm.autorun.lookup import (
    CLAUDE_WORKTREES,
    DENIED,
    DENIED_FILE,
    ENDINGS,
    FIRST,
    PACKAGE_DIRECTORIES,
    beside,
    find,
    folded,
)
from nsm.autorun.names import IN_HOME, MAX_CONTENT_BYTES, NAMES, Autorun, Measure

__all__ = [
    "CLAUDE_WORKTREES",
    "DENIED",
    "DENIED_FILE",
    "ENDINGS",
    "FIRST",
    "IN_HOME",
    "MAX_CONTENT_BYTES",
    "NAMES",
    "PACKAGE_DIRECTORIES",
    "Autorun",
    "Measure",
    "beside",
    "find",
    "folded",
]
