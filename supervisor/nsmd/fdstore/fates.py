"""Fates of executions of an earlier supervisor, for clients that ask again."""

from __future__ import annotations

from typing import Literal

from nsmd.model import names

Fate = Literal["never", "done", "unknown"]
"""It has not been run and never will be; it was run, and its result was given up; nobody knows."""


class Fates:
    """Fates that are known after sessions were reattached. Until then, and if there were none,
    everything is unknown: the sessions that could tell are gone.

    Attributes:
        complete: every session that the earlier supervisor had is accounted for below.
        done: ids of executions that were answered, and whose answers are no longer there, with
            scope and name of the sessions whose agents say so: each speaks for its own only.
        surviving: (scope, name) of the named sessions that live on.
        lost_one_shots: some execution without a session of its own was lost with its jail.
    """

    def __init__(self) -> None:
        self.complete = False
        self.done: dict[str, set[tuple[str, str | None]]] = {}
        self.surviving: set[tuple[str, str]] = set()
        self.lost_one_shots = False

    def __repr__(self) -> str:
        return f"<Fates of {len(self.done)} executions, {len(self.surviving)} sessions>"

    def was_done(self, execution_id: str, scope: str, name: str | None) -> None:
        """One was answered in that session."""
        self.done.setdefault(execution_id, set()).add((scope, name))

    def of(self, execution_id: str, scope: str, name: str | None) -> Fate:
        """Find the fate of an execution that is not under way here.

        Args:
            scope, name: of the session that it was meant for; None for no session of its own,
                "new" for one whose name was to be made.
        """
        said = self.done.get(execution_id, ())
        if any(scope == each and name in (its, names.NEW) for each, its in said):
            return "done"
        if not self.complete:
            return "unknown"
        if name is None:
            return "unknown" if self.lost_one_shots else "never"
        return "never" if (scope, name) in self.surviving else "unknown"
