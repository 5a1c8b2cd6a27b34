"""`nsm diff`, `apply` and `discard`: what a session has changed in its copy of the project."""

from __future__ import annotations

import posixpath
import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING

from nsm.changes import Changes
from nsm.cli import connection, pager, terminal
from nsm.cli import options as cli
from nsm.cli.render.patch import counts_of, patch_of, quoted
from nsm.client.blocking import Client

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Mapping, Sequence

    from nsm.wire.files import ChangeEnd, ChangeReport, ChangeRow

LETTERS = {"added": "A", "changed": "M", "deleted": "D"}

PATHS = cli.operand(
    "[PATH ...]",
    "only this file, or what is in this directory; relative to the project",
    dest="paths",
)

_EPILOG_OF_DIFF = """\
For sessions with a copy of the project (`[project] mode = "overlay"`). The patch is for `git
apply`; lines that begin with `#` name what it leaves out, such as binary files. On a terminal,
control characters are shown as text, and the patch has colours (without NO_COLOR) and goes through
PAGER, else `less`. Changes in git repositories are only counted, unless a path names them.

examples:
  nsm diff work
  nsm diff work src --stat
  nsm diff work > work.patch
"""


@cli.verb(
    "diff",
    "Show what a session has changed in its copy of the project.",
    _EPILOG_OF_DIFF,
    cli.SESSION,
    PATHS,
    cli.flag("--stat", "show only the numbers of lines"),
    cli.as_json("an array of the changes"),
    parse=ArgumentParser.parse_intermixed_args,  # PATHs may follow options
)
def _diff(options: Namespace) -> None:
    paths = _project_paths(options.paths)
    with connection.client_of(options.session) as client:
        changes = Changes(client)
        rows, end = changes.rows(options.session, paths)
        tell_unchanged(rows, paths)
        if options.json:
            terminal.out_json(rows)
            return
        rows, left = _without_repositories(rows, paths)
        with pager.paged():
            if options.stat:
                _show_counts(changes, options.session, rows, left, end)
            else:
                for row in rows:
                    show_patch(changes, options.session, row)
                terminal.out("\n".join(f"# {_left(*each)}" for each in left.items()))


def _show_counts(
    changes: Changes,
    session: str,
    rows: Sequence[ChangeRow],
    left: Mapping[str, int],
    end: ChangeEnd,
) -> None:
    lines, added, removed = list[str](), 0, 0
    for row in rows:
        line, more, fewer = _stat_line(changes, session, row)
        lines.append(line)
        added, removed = added + more, removed + fewer
    lines += [_left(*each) for each in left.items()]
    room = f"{end.used_bytes / 2**20:.1f} of {end.size_bytes / 2**20:.0f} MiB"
    terminal.out("\n".join(lines))
    terminal.out(f"{_counted(len(rows))}, {added} + {removed} -; the copy takes {room}")


def _left(repository: str, changes: int) -> str:
    return f"{quoted(repository)}: {_counted(changes)} in a git repository; name it to see them"


_EPILOG_OF_APPLY = """\
These files are left out and named:
  - files that changed since they were shown, in the session or on the host
  - files that changed on the host since the session began (see --force)
  - files that git, editors or other tools would run by themselves, and links
    that lead out of the project, unless you give their very path
  - files in git repositories, unless a path names the repository (`.git`)
Nothing is written through links. Exits 1 when something was left out.

examples:
  nsm apply work
  nsm apply work src/main.py --yes
  nsm apply work .git/hooks/pre-commit
"""


@cli.verb(
    "apply",
    "Write a session's changes to the project, after a question.",
    _EPILOG_OF_APPLY,
    cli.SESSION,
    PATHS,
    cli.YES,
    cli.flag("--force", "also over files that were changed on the host since the session began"),
    cli.as_json("an object with what was applied and what was not"),
    parse=ArgumentParser.parse_intermixed_args,
)
def _apply(options: Namespace) -> int:
    paths = _project_paths(options.paths)
    _check_may_ask(options)
    with Client(autostart=False) as client:
        undone = "nothing was applied"
        session = _to_change(client, options, "Apply its changes to that project?", undone)
        changes = Changes(client)
        rows, end = changes.rows(session, paths)
        tell_unchanged(rows, paths)
        rows, repositories = _without_repositories(rows, paths)
        wanted, left = chosen(rows, named=paths, force=options.force)
        if not options.json:
            terminal.out(_summary(wanted))
            for repository, count in repositories.items():
                name = quoted(repository)
                terminal.note(
                    f"{_counted(count)} in {name} left alone: name it to apply what is in it"
                )
            if left:
                terminal.note(f"left out:\n{_summary(left)}")
        if not wanted:
            if options.json:
                terminal.out_json({"applied": 0, "refused": [], "left_out": left})
            else:
                terminal.note("there is nothing to apply")
            return cli.EXIT_FAILED if left else cli.EXIT_OK
        if not options.yes:
            agreed = _agreed(changes, session, wanted, end.project)
            if agreed is None:
                terminal.note(undone)
                return cli.EXIT_FAILED
            wanted = agreed
        report = changes.apply(session, wanted, force=options.force, risky=paths)
    if options.json:
        terminal.out_json({"applied": report.done, "refused": report.refused, "left_out": left})
    else:
        all_ = _counted(len(wanted) + len(left))
        terminal.out(f"applied {report.done} of {all_} to {end.project}")
        _tell_refused(report)
        if left:
            terminal.note(
                f"{_counted(len(left))} left out, as shown above: exit code {cli.EXIT_FAILED}"
            )
    return cli.EXIT_FAILED if report.refused or left else cli.EXIT_OK


def chosen(
    rows: Sequence[ChangeRow], *, named: Collection[str], force: bool
) -> tuple[list[ChangeRow], list[ChangeRow]]:
    """Split the changes into those to apply and those to leave. Paths that are named may be risks;
    force is over what was changed on the host."""
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


def _agreed(
    changes: Changes, target: str, wanted: Sequence[ChangeRow], project: str
) -> list[ChangeRow] | None:
    """The changes that a person has agreed to, as they were shown; None for none."""
    shown = list(wanted)
    question = f"Apply {_counted(len(shown))} to {project}? [y]es, [d]iff, [N]o"
    while True:
        match terminal.choice(question):
            case "y" | "yes":
                return shown
            case "d" | "diff":
                seen = [show_patch(changes, target, row) for row in shown]
                shown = [row for row in seen if row is not None]
            case _:
                return None


_EPILOG_OF_DISCARD = """\
The session then has these files as they are on the host now. `nsm kill` discards all changes, too,
since a session's copy ends with it.

examples:
  nsm discard work
  nsm discard work src/main.py
"""


@cli.verb(
    "discard",
    "Take back what a session has changed in its copy of the project.",
    _EPILOG_OF_DISCARD,
    cli.SESSION,
    PATHS,
    cli.YES,
    cli.as_json("an object with what was discarded and what was not"),
    parse=ArgumentParser.parse_intermixed_args,
)
def _discard(options: Namespace) -> int:
    paths = _project_paths(options.paths)
    _check_may_ask(options)
    with Client(autostart=False) as client:
        undone = "nothing was discarded"
        session = _to_change(client, options, "Discard its changes?", undone)
        changes = Changes(client)
        rows, _ = changes.rows(session, paths) if paths or not options.yes else ([], None)
        tell_unchanged(rows, paths)
        if not options.yes:
            if not rows:
                terminal.note("there is nothing to discard")
                return cli.EXIT_OK
            terminal.out(_summary(rows))
            if not terminal.agreed(f"Discard {_counted(len(rows))} in the session?"):
                terminal.note(undone)
                return cli.EXIT_FAILED
        report = changes.discard(session, paths)
    if options.json:
        terminal.out_json({"discarded": report.done, "refused": report.refused})
    else:
        terminal.out(f"discarded {_counted(report.done)}")
        _tell_refused(report)
    return cli.EXIT_FAILED if report.refused else cli.EXIT_OK


# All three.


def _project_paths(given: Sequence[str]) -> list[str]:
    """Paths below the project, normalised; none mean the whole project."""
    paths: list[str] = []
    for path in given:
        normal = posixpath.normpath(path)
        if normal.startswith(("/", "../")) or normal == "..":
            raise cli.UsageError(f"{path!r} is not in the project: give paths relative to it")
        if normal == ".":
            return []
        paths.append(normal)
    return paths


def _check_may_ask(options: Namespace) -> None:
    if not options.yes and (options.json or not terminal.may_ask()):
        raise cli.UsageError("no terminal to confirm on: review `nsm diff`, then pass --yes")


def _to_change(client: Client, options: Namespace, question: str, undone: str) -> str:
    """Id or name of the session that is to be changed. If it is another project's, a person is
    asked this question; a no is noted, and ends the verb (`Done`)."""
    session = connection.agreed(
        client, options.session, question, may_ask=terminal.may_ask(), yes=options.yes
    )
    if session is None:
        terminal.note(undone)
        raise cli.Done(cli.EXIT_FAILED)
    return session


def tell_unchanged(rows: Sequence[ChangeRow], named: Sequence[str]) -> None:
    """Say which of the paths that were given mean no change: they may be mistakes."""
    for path in named:
        if not any(f"{row.path}/".startswith(f"{path}/") for row in rows):
            terminal.note(f"nothing has changed at {quoted(path)} (paths begin at the project)")


def _counted(number: int) -> str:
    return f"{number} change{'' if number == 1 else 's'}"


def _repository_of(path: str) -> str | None:
    """The git repository that a file is part of, which makes no sense without all of it."""
    components = path.split("/")
    lowered = [component.lower() for component in components]
    if ".git" not in lowered:
        return None
    return "/".join(components[: lowered.index(".git") + 1])


def _without_repositories(
    rows: Sequence[ChangeRow], named: Sequence[str]
) -> tuple[list[ChangeRow], dict[str, int]]:
    """All rows but those of git repositories that no path names, and how many those are."""
    kept: list[ChangeRow] = []
    left: dict[str, int] = {}
    for row in rows:
        repository = _repository_of(row.path)
        if repository is None or any(f"{path}/".startswith(f"{repository}/") for path in named):
            kept.append(row)
        else:
            left[repository] = left.get(repository, 0) + 1
    return kept, left


def _summary(rows: Sequence[ChangeRow]) -> str:
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
    """Print the patch of a change; returns the change that was shown, None if there is none any
    more."""
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


def _stat_line(changes: Changes, target: str, row: ChangeRow) -> tuple[str, int, int]:
    """A change as a line with how much it adds and removes, and these numbers."""
    contents = changes.contents(target, row.path)
    added, removed = counts_of(patch_of(row, contents))
    return f"{added:>6} + {removed:>6} -  {_row(row)}", added, removed


def _tell_refused(report: ChangeReport) -> None:
    for refused in report.refused:
        terminal.note(f"not {quoted(refused.path)}: {refused.why}")
