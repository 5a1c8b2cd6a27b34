"""Changes of a session in an overlay of the project. No module imports a later one.

copy_files   files below a directory that is not trusted, by descriptor
change       one difference, with its kind, risk and problem (pure)
comparison   all differences
application  apply changes to the project on the host
restoration  discard changes in the session
review       all of this for a live session, off the event loop
"""

from nsmd.sessions.changes.application import Refusal, Wanted
from nsmd.sessions.changes.change import Change, State
from nsmd.sessions.changes.review import Contents, Review

__all__ = ["Change", "Contents", "Refusal", "Review", "State", "Wanted"]
