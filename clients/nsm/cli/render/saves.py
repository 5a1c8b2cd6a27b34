"""Saves of sessions as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli.render import formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsm.saves.reports import KeptSave, Restored, RestoredRow, Saved


def saved_text(saved: Saved) -> str:
    """A new save: its file, what is in it, and what is not."""
    lines = [f"saved in {saved.path} ({formats.size(saved.size)})"]
    if saved.names:
        lines.append(f"  saved: {', '.join(saved.names)}")
    lines += [f"  not saved: {each.name}: {each.why}" for each in saved.not_saved]
    lines += [f"  {note}" for note in saved.notes]
    return "\n".join(map(formats.visible, lines))


def restored_text(restored: Restored) -> str:
    """A session that was made of a save, and each thing of the save."""
    lines = [f"restored session {restored.name} ({restored.id}, {restored.env})"]
    lines += [f"  {_outcome(row)}" for row in restored.rows]
    lines += [f"  {note}" for note in restored.notes]
    return "\n".join(map(formats.visible, lines))


def _outcome(row: RestoredRow) -> str:
    is_told = row.kind in ("variable", "directory")  # the name of a directory says what it is
    what = row.name if is_told else f"{row.kind} {row.name}"
    if row.restored:
        return f"{what}: restored"
    if row.remade:
        return f"{what}: made again by running its code"
    return f"{what}: not restored: {row.why}"


def saves_table(rows: Sequence[KeptSave]) -> str:
    """The saves that are kept."""
    if not rows:
        return "no saves; `nsm save SESSION` makes one"
    cells = [
        (
            row.name,
            formats.date(row.made_at),
            formats.size(row.size),
            row.env or row.problem,
            "nsm" if row.automatic else "you",
        )
        for row in rows
    ]
    return formats.table(("NAME", "MADE", "SIZE", "ENV", "BY"), cells, "SIZE")
