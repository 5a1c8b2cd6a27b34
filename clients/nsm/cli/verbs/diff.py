"""`nsm diff`: what a session has changed in the project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.changes import Changes
from nsm.cli import targets, terminal
from nsm.cli.options import EXIT_OK, Parser
from nsm.cli.pager import paged
from nsm.cli.project_changes import (
    add_operands,
    counted,
    parsed,
    show_patch,
    stat_line,
    tell_unchanged,
    without_repositories,
)
from nsm.cli.render.patch import quoted
from nsm.client.blocking import Client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsm.wire.files import ChangeEnd, ChangeRow

_EPILOG = """\
For sessions whose project is copied on write (`[project] mode = "overlay"`). The patch is one that
`git apply` takes; lines that begin with `#` say what it cannot, binary files among it. What
a terminal would act on is made visible where standard output is one; there it has colours (without
NO_COLOR) and goes through PAGER, which is `less` where it is not set. What is in git
repositories is counted, unless a path names it.

examples:
  nsm diff work
  nsm diff work src --stat
  nsm diff work > work.patch
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("diff", "Show what a session has changed in its copy of the project.", _EPILOG)
    add_operands(parser)
    parser.add_argument("--stat", action="store_true", help="show only the numbers of lines")
    parser.add_json("an array of the changes")
    return parser


def main(arguments: list[str]) -> int:
    """Show."""
    options, paths = parsed(parser(), arguments)
    with Client(autostart=False) as client:
        targets.tell(client, options.session)
        changes = Changes(client)
        rows, end = changes.rows(options.session, paths)
        tell_unchanged(rows, paths)
        rows, left = (rows, {}) if options.json else without_repositories(rows, paths)
        if options.json:
            terminal.out_json(rows)
        else:
            with paged():
                if options.stat:
                    _show_counts(changes, options.session, rows, left, end)
                else:
                    for row in rows:
                        show_patch(changes, options.session, row)
                    terminal.out("\n".join(f"# {_left(*each)}" for each in left.items()))
    return EXIT_OK


def _show_counts(
    changes: Changes,
    session: str,
    rows: Sequence[ChangeRow],
    left: Mapping[str, int],
    end: ChangeEnd,
) -> None:
    lines, added, removed = list[str](), 0, 0
    for row in rows:
        line, more, fewer = stat_line(changes, session, row)
        lines.append(line)
        added, removed = added + more, removed + fewer
    lines += [_left(*each) for each in left.items()]
    room = f"{end.used_bytes / 2**20:.1f} of {end.size_bytes / 2**20:.0f} MiB"
    terminal.out("\n".join(lines))
    terminal.out(f"{counted(len(rows))}, {added} + {removed} -; the copy takes {room}")


def _left(repository: str, changes: int) -> str:
    return f"{quoted(repository)}: {counted(changes)} in a git repository; name it to see them"
