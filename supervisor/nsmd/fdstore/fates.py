"""Fates of executions of an earlier supervisor, for clients that ask again."""

from __future__ import annotations

from typing import Literal

from nsmd.model import names

Fate = Literal["never", "done", "unknown"]
"""never: it has not run and never will; done: it ran, and its result was dropped; unknown: nobody
knows.
"""


class Fates:
    """Known fates, after sessions were taken over. Until then, and if there were no sessions, all
    fates are unknown: the sessions that could tell are gone.

    Attributes:
        complete: True once no answer of a session of the earlier supervisor is awaited any more.
            Until then, only the sessions that have answered are known below.
        done: ids of executions that were answered and whose answers are gone, with scope and name
            of the sessions whose agents say so: each speaks only for its own.
        surviving: (scope, name) of the named sessions that live on.
        lost_one_shots: some one-shot was lost with its jail.
    """

    def __init__(self) -> None:
        self.complete = False
        self.done: dict[str, set[tuple[str, str | None]]] = {}
        self.surviving: set[tuple[str, str]] = set()
        self.lost_one_shots = False

    def __repr__(self) -> str:
        return f"<Fates of {len(self.done)} executions, {len(self.surviving)} sessions>"

    def was_done(self, execution_id: str, scope: str, name: str | None) -> None:
        """Note that an execution was answered in that session."""
        self.done.setdefault(execution_id, set()).add((scope, name))

    def of(self, execution_id: str, scope: str, name: str | None) -> Fate:
        """Find the fate of an execution that is not under way here.

        Args:
            scope, name: scope and name of its session; None for a one-shot, "new" for a session
                with a generated name.
        """
        said = self.done.get(execution_id, ())
        if any(scope == each and name in (its, names.NEW) for each, its in said):
            return "done"
        if name is not None:
            return "never" if (scope, name) in self.surviving else "unknown"
        return "never" if self.complete and not self.lost_one_shots else "unknown"
