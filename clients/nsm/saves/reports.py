"""Outcomes of saves and restores, as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.wire.errors import NsmError
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from nsm.wire.code import RunResult


RESTORED_FROM = "restored-from"
"""Label of a restored session: name of a save that is kept, or path of another one."""


class SaveError(NsmError):
    """A session cannot be saved, or a save cannot be used."""


class SaveInterruptedError(SaveError):
    """Somebody interrupted a save or a restore. Nothing of it is left."""


class NotSaved(NamedTuple):
    """Something of a session that is not in its save, and why."""

    name: str
    why: str


class Saved(NamedTuple):
    """A save: its file, the bytes of that, variables and definitions that are in it, what is not,
    and what else a person should know.
    """

    path: str
    size: int
    names: tuple[str, ...]
    not_saved: tuple[NotSaved, ...]
    notes: tuple[str, ...] = ()


class RestoredRow(NamedTuple):
    """One thing of a save, and what became of it.

    Attributes:
        kind: ``variable``, ``definition``, ``import``, ``alias``, ``trap``, ``directory``,
            ``file``, or ``change`` of the project.
        why: why it was not restored; empty if it was.
        remade: it was made again by running the code that had made it.
    """

    name: str
    kind: str
    why: str = ""
    remade: bool = False

    @property
    def restored(self) -> bool:
        """True if it is there, as it was."""
        return not self.why


class Restored(NamedTuple):
    """A session that was made of a save.

    Attributes:
        notes: what else a person should know.
        interrupted: somebody interrupted code that was run again; the rest was not run.
    """

    id: str
    name: str
    env: str
    rows: tuple[RestoredRow, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False


class KeptSave(NamedTuple):
    """A save in nsm's directory.

    Attributes:
        made_at: Unix time, seconds.
        project: directory that the session saw, or None.
        automatic: nobody asked for it; the oldest of these go first.
        problem: why it cannot be used; empty if it can.
    """

    name: str
    path: str
    size: int
    made_at: float
    env: str = ""
    session: str = ""
    session_id: str = ""
    project: str | None = None
    automatic: bool = False
    problem: str = ""


def check_ran(result: RunResult, done: str) -> None:
    """Check that nsm's own program ran to its end in the session."""
    if result.interrupted:
        raise SaveInterruptedError(f"the session was not {done}: it was interrupted")
    if result.exit_code == 0:
        return
    why = (result.stderr.strip().splitlines() or ["it failed, and printed no reason"])[-1]
    if result.timed_out:
        why = f"it took longer than {result.timeout_s:g} s"
    if result.interpreter_restarted:
        why += f". Its interpreter was restarted: {result.restart_reason}"
    raise SaveError(f"the session was not {done}: {why}")
