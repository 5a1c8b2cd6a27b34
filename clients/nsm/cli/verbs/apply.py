"""`nsm apply`: what a session has changed in the project, brought to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.changes import Changes
from nsm.cli import terminal
from nsm.cli.confirm import choice
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser
from nsm.cli.project_changes import (
    add_operands,
    counted,
    parsed,
    session_to_change,
    show_patch,
    summary,
    tell_refused,
    tell_unchanged,
    without_repositories,
)
from nsm.cli.render.patch import quoted
from nsm.client.blocking import Client

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from nsm.wire.files import ChangeRow, Refused

_EPILOG = """\
Only what was shown is written: a file that the session or somebody on the host has changed since
is left alone, and named. So is a file that was changed on the host since the session began (see
--force), and one that git, editors or other tools would act on without being told to, or a link
that leads out of the project, unless its very path is given. What is in a git repository is left
alone unless a path names that (`nsm apply work .git`). Nothing is written through links.

Exits 1 when something was left out.

examples:
  nsm apply work
  nsm apply work src/main.py --yes
  nsm apply work .git/hooks/pre-commit
"""

_UNDONE = "nothing was applied"


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "apply", "Bring what a session has changed to the project, after a question.", _EPILOG
    )
    add_operands(parser)
    parser.add_yes()
    parser.add_argument(
        "--force",
        action="store_true",
        help="also over files that were changed on the host since the session began",
    )
    parser.add_json("an object with what was applied and what was not")
    return parser


def main(arguments: list[str]) -> int:
    """Apply."""
    verb = parser()
    options, paths = parsed(verb, arguments, asks=True)
    with Client(autostart=False) as client:
        session = session_to_change(client, options, "Apply its changes to that project?", _UNDONE)
        if session is None:
            return EXIT_FAILED
        changes = Changes(client)
        rows, end = changes.rows(session, paths)
        tell_unchanged(rows, paths)
        rows, repositories = without_repositories(rows, paths)
        wanted, left = chosen(rows, named=paths, force=options.force)
        if not options.json:
            terminal.out(summary(wanted))
            for repository, count in repositories.items():
                name = quoted(repository)
                terminal.note(
                    f"{counted(count)} in {name} left alone: name it to apply what is in it"
                )
            if left:
                terminal.note(f"left out:\n{summary(left)}")
        if not wanted:
            if not options.json:
                terminal.note("there is nothing to apply")
            else:
                terminal.out_json(_plain(0, [], left))
            return EXIT_FAILED if left else EXIT_OK
        if not options.yes:
            agreed = _ask(changes, session, wanted, end.project)
            if agreed is None:
                terminal.note(_UNDONE)
                return EXIT_FAILED
            wanted = agreed
        report = changes.apply(session, wanted, force=options.force, risky=paths)
    if options.json:
        terminal.out_json(_plain(report.done, report.refused, left))
    else:
        terminal.out(
            f"applied {report.done} of {counted(len(wanted) + len(left))} to {end.project}"
        )
        tell_refused(report)
        if left:
            terminal.note(f"{counted(len(left))} left out, as shown above: exit code {EXIT_FAILED}")
    return EXIT_FAILED if report.refused or left else EXIT_OK


def chosen(
    rows: Sequence[ChangeRow], *, named: Collection[str], force: bool
) -> tuple[list[ChangeRow], list[ChangeRow]]:
    """Split the changes into those to apply and those to leave.

    Args:
        named: paths that were given, each of which may be a risk.
        force: over what was changed on the host.
    """
    wanted: list[ChangeRow] = []
    left: list[ChangeRow] = []
    for row in rows:
        unwanted = (
            row.problem or (row.conflict and not force) or (row.risk and row.path not in named)
        )
        (left if unwanted else wanted).append(row)
    # What is in a directory is not taken away for something that does not take its place.
    kept = [
        f"{row.path}/"
        for row in left
        if row.before is not None and row.before.type == "directory"
        if row.after is not None and row.after.type != "directory"
    ]
    stays = [row for row in wanted if any(row.path.startswith(path) for path in kept)]
    reason = "what takes the place of its directory is left out"
    left += [row._replace(problem=reason) for row in stays]
    return [row for row in wanted if row not in stays], left


def _ask(
    changes: Changes, target: str, wanted: Sequence[ChangeRow], project: str
) -> list[ChangeRow] | None:
    """The changes that a person has agreed to, as they were shown; None for none."""
    shown = list(wanted)
    question = f"Apply {counted(len(shown))} to {project}? [y]es, [d]iff, [N]o"
    while True:
        match choice(question):
            case "y" | "yes":
                return shown
            case "d" | "diff":
                seen = [show_patch(changes, target, row) for row in shown]
                shown = [row for row in seen if row is not None]
            case _:
                return None


def _plain(done: int, refused: Sequence[Refused], left: Sequence[ChangeRow]) -> dict[str, object]:
    return {
        "applied": done,
        "refused": refused,
        "left_out": left,
    }
