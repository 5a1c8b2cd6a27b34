"""Changes of a session in a copied project. No module imports a later one.

copy_files   files below a directory that is not trusted, by descriptor
change       one difference, and what there is to say of it (pure)
comparison   all differences
application  apply changes to the project on the host
restoration  discard changes in the session
review       all of this for a live session, off the event loop
"""

from nsmd.sessions.changes.application import Refusal, Wanted
from nsmd.sessions.changes.change import Change, State
from nsmd.sessions.changes.review import Contents, Review

__all__ = ["Change", "Contents", "Refusal", "Review", "State", "Wanted"]
