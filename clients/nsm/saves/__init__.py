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
"""

from nsm.saves.reports import Restored, RestoredRow, Saved, SaveError, SaveInterruptedError
from nsm.saves.saves import Saves

__all__ = ["Restored", "RestoredRow", "SaveError", "SaveInterruptedError", "Saved", "Saves"]
