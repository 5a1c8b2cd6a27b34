"""Changes of a session in an overlay of the project. No module imports a later one.

comparison   differences, each with its risk and problem, and names by which the host would run them
application  apply changes to the project on the host, or discard them in the session
review       all of this for a live session, off the event loop
"""

from nsmd.sessions.changes.application import AgreedChange, RefusedChange
from nsmd.sessions.changes.comparison import Change, PathState
from nsmd.sessions.changes.review import PathContents, Review

__all__ = ["AgreedChange", "Change", "PathContents", "PathState", "RefusedChange", "Review"]
