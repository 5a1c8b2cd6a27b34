"""Changes of a session in an overlay of the project. No module imports a later one.

change       one difference, with its kind, risk and problem (pure)
comparison   all differences, and names by which the host would run what they touch
application  apply changes to the project on the host, or discard them in the session
review       all of this for a live session, off the event loop
"""

from nsmd.sessions.changes.application import AgreedChange, RefusedChange
from nsmd.sessions.changes.change import Change, PathState
from nsmd.sessions.changes.review import PathContents, Review

__all__ = ["AgreedChange", "Change", "PathContents", "PathState", "RefusedChange", "Review"]
