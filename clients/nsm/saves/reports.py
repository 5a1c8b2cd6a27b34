"""Outcomes of saves and restores, as values."""

from __future__ import annotations

from typing import NamedTuple

from nsm.wire.errors import NsmError


class SaveError(NsmError):
    """A session cannot be saved, or a save cannot be used."""


class NotSaved(NamedTuple):
    """Something of a session that is not in its save, and why."""

    name: str
    why: str


class Saved(NamedTuple):
    """A save.

    Attributes:
        path: the file.
        size: its bytes.
        names: variables and definitions that are in it.
        not_saved: what is not.
        notes: what else a person should know.
    """

    path: str
    size: int
    names: tuple[str, ...]
    not_saved: tuple[NotSaved, ...]
    notes: tuple[str, ...] = ()


class RestoredRow(NamedTuple):
    """One thing of a save, and what became of it.

    Attributes:
        kind: ``variable``, ``definition``, ``import``, ``alias``, ``trap``, ``directory`` or
            ``file``.
        why: why it was not restored; empty if it was.
        replayed: it was made again by running the code that had made it.
    """

    name: str
    kind: str
    why: str = ""
    replayed: bool = False

    @property
    def restored(self) -> bool:
        """True if it is there, as it was."""
        return not self.why


class Restored(NamedTuple):
    """A session that was made of a save.

    Attributes:
        id, name, env: of the session.
        rows: what was in the save.
        notes: what else a person should know.
    """

    id: str
    name: str
    env: str
    rows: tuple[RestoredRow, ...]
    notes: tuple[str, ...] = ()


class KeptSave(NamedTuple):
    """A save in nsm's directory.

    Attributes:
        made_at: Unix time, seconds.
        problem: why it cannot be used; empty if it can.
    """

    name: str
    path: str
    size: int
    made_at: float
    env: str = ""
    session: str = ""
    problem: str = ""
