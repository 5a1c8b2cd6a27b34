"""`nsm env list`, `nsm env show` and their older form `nsm envs [ENV]`."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.cli import terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser
from nsm.cli.render import formats
from nsm.cli.render.environments import environment_details, environments_table, suggestions
from nsm.cli.render.project_environments import hints
from nsm.client.blocking import Client
from nsm.client.project_environments import ProjectEnvironments
from nsm.client.projects import DEFAULT, project_of
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from nsm.wire.builds import BuiltRow
    from nsm.wire.environments import EnvironmentRow


LISTS = "list the environments, also those that cannot be used here, with the reason"
EPILOG = "LIMIT is the default and the upper limit of one run."
EPILOG_OF_ONE = (
    "Of one that Nix builds, why its last build failed. Exits 1 where there is none of that name."
)


def parser() -> Parser:
    """The options of the older form."""
    parser = Parser("envs", f"{LISTS[0].upper()}{LISTS[1:]}.", f"{EPILOG}\n{EPILOG_OF_ONE}")
    parser.add_argument("env", nargs="?", metavar="ENV", help="show this one in detail")
    parser.add_json("an array of objects, or with ENV an object")
    return parser


def main(arguments: list[str]) -> int:
    """List, or show one."""
    options = parser().parse_args(arguments)
    with Client() as client:
        return list_all(client, options) if options.env is None else show(client, options)


def list_all(client: Client, options: argparse.Namespace) -> int:
    """List all environments."""
    rows = client.envs()
    terminal.answer(
        options,
        rows,
        lambda: environments_table(rows, os.path.expanduser("~"), terminal.width()),
    )
    if not options.json:
        for line in suggestions(rows):
            terminal.out(line)
        _hint(client)
    return EXIT_OK


def _hint(client: Client) -> None:
    """Say which environments lie in the project, if nobody has agreed to use them."""
    project = project_of(DEFAULT).path
    if project is None:
        return
    with suppress(NsmError):  # it is no project that nsm shows, or the connection may not ask
        for line in hints(ProjectEnvironments(client, project).find()):
            terminal.out(line)


def show(client: Client, options: argparse.Namespace) -> int:
    """One environment: what can be used, what is the matter, and how it was built."""
    rows, name = client.envs(), options.env
    found = [row for row in rows if name in (row.name, *row.aliases)]
    built = next(
        (row for row in client.builds.list_all() if name in (row.name, row.reference)), None
    )
    if not found and built is None:
        known = ", ".join(dict.fromkeys(row.name for row in rows if row.name))
        terminal.note(formats.error(f"no environment {name!r}", f"There are: {known}"))
        return EXIT_FAILED
    terminal.answer(
        options,
        {"environments": found, "build": built},
        lambda: _text(found, built),
    )
    return EXIT_OK


def _text(found: Sequence[EnvironmentRow], built: BuiltRow | None) -> str:
    lines = [line for row in found for line in environment_details(row)]
    lines += [
        ("" if number else "slow imports", text) for number, text in enumerate(suggestions(found))
    ]
    if built is None:
        return formats.listing(lines)
    from nsm.cli.render import builds  # noqa: PLC0415  # most are not built

    lines += builds.detail(built)
    text = formats.listing(lines)
    if built.error is None:
        return text
    return f"{text}\n\n{formats.error(built.error, built.hint or '')}"
