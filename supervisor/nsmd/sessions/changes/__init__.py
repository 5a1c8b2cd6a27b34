"""Changes of a session in an overlay of the project. No module imports a later one.

comparison   differences, each with its risk and problem, and names by which the host would run them
application  apply changes to the project on the host, or discard them in the session
review       all of this for a live session, off the event loop

The session's own set-up mounts the overlay (`sandbox.template.mounts`) and passes a descriptor of
its upper layer out. The supervisor reads changes there, so a review costs as much as the changes,
not as the project. It applies them itself, on descriptors: the session takes no part, and a patch
written by the session would say what code wants. The layer is in memory, so code can't fill the
disk, and no program of the user finds it; the changes end with the session.
"""

from nsmd.sessions.changes.application import AgreedChange, RefusedChange
from nsmd.sessions.changes.comparison import Change, PathState
from nsmd.sessions.changes.review import PathContents, Review

__all__ = ["AgreedChange", "Change", "PathContents", "PathState", "RefusedChange", "Review"]
