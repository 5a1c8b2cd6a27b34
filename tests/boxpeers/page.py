"""The results of attacks and work in several sandboxes: their data, and the page made from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pages

HEAD = """\
# The box beside its peers

The same attacks and the same work in nsm's box and in other sandboxes that people run coding agents
in. `make box-peers` runs them and writes `docs/data/box-peers.json`. It needs Node, npm, socat and,
the first time, the network.

Each attack and each piece of work starts in a world of its own: the home directory of an ordinary
user with keys, logins, another project, open sockets, and a repository with one commit. Without a
sandbox each attack succeeds and all work can be done; otherwise nothing is written.

- **held**: the attack got nothing.
- **told**: it succeeded, but at the end whoever started the sandbox reads what was left and what
  would run it.
- **open**: it succeeded, and nobody is told.

Every sandbox has the settings that its documentation begins with. Some differences are meant:
sandbox-runtime and Claude Code's sandbox let code read everything that nobody has denied, and work
that they refuse can often be allowed by a setting. Attacks on the filter of system calls are not
here.

"""


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


def page() -> str:
    """Return the whole page."""
    return HEAD + tables(*read()) + "\n"


def read() -> tuple[list[Column], dict[str, str]]:
    """Read the results that are kept: columns, and attacks with what each does."""
    kept = pages.read("box-peers")
    return [Column(**column) for column in kept["columns"]], kept["attacks"]


def write(columns: Sequence[Column], described: Mapping[str, str]) -> None:
    """Keep results."""
    kept = {"columns": [dataclasses.asdict(column) for column in columns], "attacks": described}
    pages.keep("box-peers", kept)


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
