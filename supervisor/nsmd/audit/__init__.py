"""Who ran what, when, in which session, and what came of it: lines that are only ever added to.

files        one file, its rotation, and what a full disk does to it
journal      lines on their way there: a bounded queue that holds nobody up
recorder     what happens, as lines
"""

from nsmd.audit.journal import Journal, open_journal
from nsmd.audit.recorder import Recorder

__all__ = ["Journal", "Recorder", "open_journal"]
