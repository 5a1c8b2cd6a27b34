"""The page of files that your computer runs by itself: the table of `nsm.autorun`."""

from __future__ import annotations

from itertools import groupby

from nsm import autorun

HEAD = """\
# Files that your computer runs by itself

[Boxes](../how-to/claudebox.md#what-runs-on-your-host-later) and
[`nsm apply`](../how-to/project-modes.md#what-is-not-applied) use this one table. A name counts
at any depth of a project, in upper and lower case. A directory stands for all files in it. Reports
come at the end of a box.

| in a box | means |
| --- | --- |
| denied | at the top of the working directory it cannot be changed or made; below, nsm reports it |
| read-only | where it exists at the top, it cannot be changed; nsm reports new and changed ones |
| reported | can be changed, and nsm reports that |
| allowed | can be changed; only `nsm apply` warns of it |

`nsm apply` leaves all of them out unless you name the exact path. Files with a star are denied only
where another file of the same program exists: without one, that program ignores them. Files with a
double dagger are denied only where their program is on your PATH, and else reported. In a directory
that is empty, or has a `.git` alone, a box can make them all. Files with a dagger are mostly
harmless. They count only if they have a setting that runs something (`build =` in `Cargo.toml`,
`init-hook` in `pyproject.toml`), if they are longer than 1 MiB, or if they cannot be read. The
table lacks what you run by a command of its own: a Makefile, a test, a script of `package.json`. It
also lacks programs in `.venv` and `node_modules`, which editors and language servers run by
themselves.

"""

HOME = """
## In a home directory

If a box begins in one of these directories, nsm says so. If it begins in a directory that holds one
(`~/.config`), that one is denied.

"""


def page() -> str:
    """The text of the page."""
    return HEAD + _table(autorun.NAMES) + HOME + _table(autorun.IN_HOME)


def _table(entries: tuple[autorun.Autorun, ...]) -> str:
    lines = ["| files | run or obeyed by | when | in a box |", "| --- | --- | --- | --- |"]
    for (by, when, measure), each in groupby(entries, lambda e: (e.by, e.when, e.measure)):
        names = ", ".join(
            f"`{e.path}`"
            + r"\*" * e.only_beside
            + "\u2021" * bool(e.only_with)
            + "\u2020" * bool(e.says)
            for e in each
        )
        lines.append(f"| {names} | {by} | {when} | {measure} |")
    return "\n".join(lines) + "\n"
