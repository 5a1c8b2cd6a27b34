"""What a session has changed in a project that is copied on write. A map; no module imports a later
one.

below         files below a directory that is not to be trusted
change        one difference, and what there is to say of it (pure)
comparison    all differences
application   brings them to the host
restoration   takes them back in the session
review        the same of a live session, off the event loop
"""

from nsmd.changes.application import Refusal, Wanted
from nsmd.changes.change import Change, State
from nsmd.changes.review import Contents, Review

__all__ = ["Change", "Contents", "Refusal", "Review", "State", "Wanted"]
