"""Parts that `nsm diff`, `nsm apply` and `nsm discard` share."""

from __future__ import annotations

import posixpath
import sys
from typing import TYPE_CHECKING

from nsm.cli import pager, targets, terminal
from nsm.cli.confirm import may_ask
from nsm.cli.render.patch import counts_of, patch_of, quoted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nsm.changes import Changes
    from nsm.cli.options import Parser
    from nsm.client.blocking import Client
    from nsm.wire.files import ChangeReport, ChangeRow

LETTERS = {"added": "A", "changed": "M", "deleted": "D"}


def add_operands(parser: Parser) -> None:
    """Add the operands: a session, and paths of its project."""
    parser.add_session()
    parser.add_argument(
        "paths",
        nargs="*",
        default=[],  # else argparse calls it required
        metavar="PATH",
        help="only this file, or what is in this directory; relative to the project",
    )


def parsed(
    verb: Parser, arguments: list[str], *, asks: bool = False
) -> tuple[argparse.Namespace, list[str]]:
    """Options, and paths below the project, normalised; no paths mean the whole project.

    Args:
        asks: the verb asks before it does something, unless `--yes` is given.
    """
    options = verb.parse_intermixed_args(arguments)  # PATHs may follow options
    paths = _project_paths(verb, options.paths)
    if asks and not options.yes and (options.json or not may_ask()):
        verb.error("no terminal to confirm on: review `nsm diff`, then pass --yes")
    return options, paths


def _project_paths(verb: Parser, given: Sequence[str]) -> list[str]:
    paths: list[str] = []
    for path in given:
        normal = posixpath.normpath(path)
        if normal.startswith(("/", "../")) or normal == "..":
            verb.error(f"{path!r} is not in the project: give paths relative to it")
        if normal == ".":
            return []
        paths.append(normal)
    return paths


def tell_unchanged(rows: Sequence[ChangeRow], named: Sequence[str]) -> None:
    """Say which of the paths that were given mean no change: they may be mistakes.

    Args:
        rows: all changes below these paths.
    """
    for path in named:
        if not any(f"{row.path}/".startswith(f"{path}/") for row in rows):
            terminal.note(f"nothing has changed at {quoted(path)} (paths begin at the project)")


def counted(number: int) -> str:
    """Put a number of changes into words."""
    return f"{number} change{'' if number == 1 else 's'}"


def repository_of(path: str) -> str | None:
    """The git repository that a file is part of, which makes no sense without all of it."""
    components = path.split("/")
    lowered = [component.lower() for component in components]
    if ".git" not in lowered:
        return None
    return "/".join(components[: lowered.index(".git") + 1])


def without_repositories(
    rows: Sequence[ChangeRow], named: Sequence[str]
) -> tuple[list[ChangeRow], dict[str, int]]:
    """All rows but those of git repositories that are not asked for, and how many those are.

    Args:
        named: paths that were given.
    """
    kept: list[ChangeRow] = []
    left: dict[str, int] = {}
    for row in rows:
        repository = repository_of(row.path)
        if repository is None or any(f"{path}/".startswith(f"{repository}/") for path in named):
            kept.append(row)
        else:
            left[repository] = left.get(repository, 0) + 1
    return kept, left


def summary(rows: Sequence[ChangeRow]) -> str:
    """A line for each change."""
    return "\n".join(_row(row) for row in rows)


def _row(row: ChangeRow) -> str:
    types = [state.type for state in (row.before, row.after) if state is not None]
    slash = "/" if types[-1] == "directory" else ""
    words = [word for word in (row.problem, row.conflict, row.risk) if word]
    becomes = f"{types[0]} becomes {types[-1]}" if types[0] != types[-1] else ""
    if row.before and row.after and row.before.mode != row.after.mode and not becomes:
        becomes = f"mode {row.before.mode:03o} becomes {row.after.mode:03o}"
    told = "; ".join([*([becomes] if becomes else []), *words])
    return f"{LETTERS[row.kind]} {quoted(row.path)}{slash}{f'  ({told})' if told else ''}"


def show_patch(changes: Changes, target: str, row: ChangeRow) -> ChangeRow | None:
    """Print the patch of a change.

    Returns:
        The change that was shown; None if there is none any more.
    """
    contents = changes.contents(target, row.path)
    patch = patch_of(row, contents)
    if sys.stdout.isatty():
        from nsm.cli.streams.escapes import uncovered  # noqa: PLC0415  # not for a pipe

        text = uncovered(patch.decode(errors="replace"))
        sys.stdout.write(pager.coloured(text) if pager.may_colour() else text)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(patch)
    return contents.change


def stat_line(changes: Changes, target: str, row: ChangeRow) -> tuple[str, int, int]:
    """A change as a line with how much it adds and removes, and these numbers."""
    contents = changes.contents(target, row.path)
    added, removed = counts_of(patch_of(row, contents))
    return f"{added:>6} + {removed:>6} -  {_row(row)}", added, removed


def session_to_change(
    client: Client, options: argparse.Namespace, question: str, undone: str
) -> str | None:
    """Id or name of the session that `nsm apply` or `nsm discard` is about; None if a person says
    no, which is noted.

    Args:
        question: asks whether to do it to another project's session.
        undone: says that nothing was done.
    """
    session = targets.agreed(client, options.session, question, may_ask=may_ask(), yes=options.yes)
    if session is None:
        terminal.note(undone)
    return session


def tell_refused(report: ChangeReport) -> None:
    """Say what was not done, and why."""
    for refused in report.refused:
        terminal.note(f"not {quoted(refused.path)}: {refused.why}")
