"""Saves of sessions as text, and sessions and saves as a tree. Pure.

In the tree a save is below its session, a restored session below its save, a fork below its
original.

work (27bcf03a)  python, idle, 12 runs, 88 MB
└─ save work  2026-11-24 00:10, 3 MB
   └─ again (9be10c55)  python, idle, 1 run, 80 MB
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsm.cli.render import formats
from nsm.saves.reports import RESTORED_FROM
from nsm.wire.sessions import FORKED_FROM
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsm.saves.reports import KeptSave, Restored, RestoredRow, Saved
    from nsm.wire.sessions import SessionRow


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


BRANCHES, ASCII_BRANCHES = ("├─ ", "└─ ", "│  "), ("|- ", "`- ", "|  ")


class TreeNode(NamedTuple):
    """One thing in the tree, with all that was made of it.

    Facts are of the session (`nsm ps --json`) or the save (`nsm save ls --json`); of a save that is
    in another file only its `path`."""

    kind: str
    name: str
    facts: dict[str, Any]
    children: tuple[TreeNode, ...] = ()


def forest(rows: Sequence[SessionRow], saves: Sequence[KeptSave]) -> tuple[TreeNode, ...]:
    """Make the trees of sessions and saves, the oldest sessions first."""
    nodes: dict[str, TreeNode] = {}
    parents: dict[str, str] = {}
    for save in saves:
        key = f"save {save.name}"
        nodes[key] = TreeNode("save", save.name, save._asdict())
        parents[key] = save.session_id
    for row in sorted(rows, key=lambda row: -row.age_s):
        nodes[row.id] = TreeNode("session", row.name or row.id, _session_facts(row))
        if original := row.labels.get(FORKED_FROM):
            parents[row.id] = original
        elif source := row.labels.get(RESTORED_FROM):
            key = f"save {source}"
            nodes.setdefault(key, TreeNode("save", source, {"path": source}))
            if parents.get(key) != row.id:  # else it has replaced the one it was restored from
                parents[row.id] = key
    return _children(nodes, _without_rings(nodes, parents), "")


def _session_facts(row: SessionRow) -> dict[str, Any]:
    return row._asdict() | {"ports": [port._asdict() for port in row.ports]}


def _without_rings(nodes: dict[str, TreeNode], parents: dict[str, str]) -> dict[str, str]:
    """Keep of the parents those that are there, and lead up to one that has none."""
    kept: dict[str, str] = {}
    for key, parent in parents.items():
        above = parent
        while above in kept and above != key:
            above = kept[above]
        if parent in nodes and above != key:
            kept[key] = parent
    return kept


def _children(
    nodes: dict[str, TreeNode], parents: dict[str, str], parent: str
) -> tuple[TreeNode, ...]:
    found = [key for key in nodes if parents.get(key, "") == parent]
    order = ("session", "save") if not parent else ("save", "session")
    found.sort(key=lambda key: order.index(nodes[key].kind))
    return tuple(nodes[key]._replace(children=_children(nodes, parents, key)) for key in found)


def tree_text(
    nodes: Sequence[TreeNode], width: int | None = None, branches: tuple[str, str, str] = BRANCHES
) -> str:
    """The trees as lines. Branches stand before a node, before the last one of its parent, and
    below any but the last."""
    if not nodes:
        return "No sessions, and no saves."
    lines = [line for node in nodes for line in _lines(node, branches)]
    if width is not None:
        lines = [formats.shortened(line, width) for line in lines]
    return "\n".join(lines)


def _lines(node: TreeNode, branches: tuple[str, str, str]) -> Iterator[str]:
    inner, last, below = branches
    yield formats.visible(_line(node))
    for child in node.children:
        is_last = child is node.children[-1]
        first, *rest = _lines(child, branches)
        yield (last if is_last else inner) + first
        yield from ((" " * len(below) if is_last else below) + line for line in rest)


def _line(node: TreeNode) -> str:
    facts = node.facts
    if node.kind == "session":
        name = f"{node.name} ({facts['id']})" if facts["name"] else node.name
        told = [facts["env"], facts["state"], formats.count(facts["executions"], "run")]
        if facts["memory_bytes"] is not None:
            told.append(formats.memory(facts["memory_bytes"]))
        if facts["checkpoints"]:
            told.append(formats.count(facts["checkpoints"], "checkpoint"))
        return f"{name}  {', '.join(told)}"
    if "made_at" not in facts:
        return f"save {node.name}"
    told = [formats.date(facts["made_at"]), formats.size(facts["size"])]
    if facts["problem"]:
        told.append(facts["problem"])
    return f"save {node.name}  {', '.join(told)}"
