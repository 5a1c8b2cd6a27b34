"""Changes of a session in an overlay of the project. No module imports a later one.

copy_files    changes to files in a directory that is not trusted
change        one difference, with its kind, risk and problem (pure)
linked_names  names by which the host would run what lies elsewhere in the project
comparison    all differences
application   apply changes to the project on the host
restoration   discard changes in the session
review        all of this for a live session, off the event loop
"""

from nsmd.sessions.changes.application import AgreedChange, RefusedChange
from nsmd.sessions.changes.change import Change, PathState
from nsmd.sessions.changes.review import PathContents, Review

__all__ = ["AgreedChange", "Change", "PathContents", "PathState", "RefusedChange", "Review"]
