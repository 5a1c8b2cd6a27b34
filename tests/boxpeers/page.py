"""The tables of `docs/explanation/box-peers.md`: pure functions from results to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BEGIN = "<!-- made by `make box-peers`: begin -->"
END = "<!-- made by `make box-peers`: end -->"


@dataclass(slots=True, kw_only=True)
class Column:
    """Results of one sandbox.

    Attributes:
        what: how it is started.
        missing: why it could not be tried; empty if it was.
        attacks: by name: `held`, `told` or `open`, and how much it got.
        tasks: by name: whether it could be done.
    """

    name: str
    what: str
    missing: str = ""
    tasks: dict[str, bool] = field(default_factory=dict[str, bool])
    attacks: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])

    def count(self, outcome: str) -> int:
        """Return how many attacks came out that way."""
        return sum(each[0] == outcome for each in self.attacks.values())


def tables(columns: Sequence[Column], described: Mapping[str, str]) -> str:
    """Build the part of the page that is made.

    Args:
        described: attacks, in order, with what each does.
    """
    tried = [column for column in columns if not column.missing]
    names = [column.name for column in tried]
    lines = [f"- **{column.name}**: {column.what}." for column in tried]
    lines += [f"- **{c.name}**: not tried: {c.missing}." for c in columns if c.missing]
    lines += ["", "| attack | what it does |" + "".join(f" {name} |" for name in names)]
    lines.append("| --- " * (2 + len(tried)) + "|")
    for name, what in described.items():
        cells = [_cell(*column.attacks[name]) for column in tried]
        lines.append(f"| {name} | {what} | " + " | ".join(cells) + " |")
    counted = [f"**{c.count('open')}** open, {c.count('told')} told" for c in tried]
    lines.append("| all | | " + " | ".join(counted) + " |")
    lines += ["", "| work |" + "".join(f" {name} |" for name in names)]
    lines.append("| --- " * (1 + len(tried)) + "|")
    for name in tried[0].tasks:
        cells = ["yes" if c.tasks[name] else "**no**" for c in tried]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    counted = [f"{sum(c.tasks.values())} of {len(c.tasks)}" for c in tried]
    lines.append("| all | " + " | ".join(counted) + " |")
    return "\n".join(lines)


def _cell(outcome: str, count: str) -> str:
    text = f"{outcome}, {count}" if count else outcome
    return f"**{text}**" if outcome == "open" else text


def replaced(page: str, made: str) -> str:
    """Return the page with other tables."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.split(END)[1]}"
