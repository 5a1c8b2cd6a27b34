"""Saves of sessions: what is in a session, in one file, and a new session made of it.

Example::

    import nsm
    from nsm.saves import Saves

    with nsm.Client() as client:
        client.run("data = list(range(1000))", env="python", session="work")
        saved = Saves(client).save("work")
        client.kill("work")
        report = Saves(client).restore(saved.path)
        assert [row.name for row in report.rows if row.restored] == ["data"]

The package:

    saves.py          `Saves`: operations on saves
    saving.py         writes what is in a session into a file
    restoring.py      makes a session of a file
    history.py        transcripts that go back beyond a save
    project_changes.py   changes of a session in its overlay of the project
    automatic.py      the process that the supervisor starts to save a session by itself
    kept.py           nsm's own directory of saves: find, list and remove them
    save_file.py      the file of a save: written whole or not at all, read and checked
    interpreters.py   programs for each interpreter, and their reports
    reports.py        outcomes of saves and restores, as values
    in_session/       programs that run in sessions: write their state, and restore it

The session makes the parts of a save and the client puts them into a file. The supervisor has no
operation for it and reads nothing of it, and neither it nor the client unpacks or loads anything:
loading pickled variables runs the code that is in them, so that happens in the new session's jail.
The hashes only find damage, since whoever changes a save on purpose can change them. A forked child
of the interpreter pickles, so that a variable which hangs or crashes then does no harm. It pickles
each variable alone, so that one that can't be saved costs no other; variables that share an object
are pickled again, together. Each save has the copy of cloudpickle that made it.
"""

from nsm.saves.reports import Restored, RestoredRow, Saved, SaveError, SaveInterruptedError
from nsm.saves.saves import Saves

__all__ = ["Restored", "RestoredRow", "SaveError", "SaveInterruptedError", "Saved", "Saves"]
