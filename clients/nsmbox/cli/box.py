"""`nsm box`: a command in a jail of its own, with the working directory and little else."""

from __future__ import annotations

import argparse
import gc
import os
from typing import TYPE_CHECKING

from nsm.cli.options import Parser, add_network
from nsm.wire.errors import BadRequestError

if TYPE_CHECKING:
    from nsmbox.model.plan import Network

_EPILOG = """\
In the box are the working directory, the system read-only, an empty home directory, and of the
variables a few. `claudebox` is the same for Claude Code. docs/how-to/claudebox.md has all of it.

examples:
  nsm box -- bash
  nsm box --network off -- make test
  nsm box --network pypi.org,files.pythonhosted.org -- pip download cbor2
  nsm box --profile codex
  nsm box --profile claude --bridge deploy,restart-db
  nsm box --dry-run -- bash
"""


def parser() -> Parser:
    """The verb's options."""
    from nsmbox.profiles import profile  # noqa: PLC0415  # shells ask for other verbs' options, too

    parser = Parser("box", "Run a command in a box.", _EPILOG)
    parser.usage = "nsm box [OPTIONS] [-- COMMAND ...]"
    parser.add_argument(
        "--profile",
        metavar="PROFILE",
        choices=profile.names(),
        help="what kind of box: %(choices)s",
    )
    add_network(
        parser.add_argument,
        "what it may reach: off, full (the default), or hosts separated by commas",
        _network,
    )
    parser.add_argument(
        "--bridge",
        metavar="NAMES",
        type=_programs,
        help="programs that it may start on the host, see `nsm bridge ls`: NAME,... or '' for none",
    )
    parser.add_argument(
        "--protect",
        action=argparse.BooleanOptionalAction,
        help="files of the project that the host would run cannot be changed (the default)",
    )
    parser.add_argument("--yes", action="store_true", help="start without asking")
    parser.add_argument("--dry-run", action="store_true", help="print the command, run nothing")
    parser.add_argument("--check", action="store_true", help="check what it needs")
    parser.add_argument("--list", action="store_true", help="list the boxes")
    parser.add_argument("--json", action="store_true", help="with --list: as JSON")
    parser.add_argument(
        "command",
        nargs="*",
        metavar="COMMAND",
        help="what to run, with arguments; with an agent's profile, the agent's arguments alone",
    )
    return parser


def main(arguments: list[str]) -> int:
    """Start it; where that works, this process waits for the box and ends as it does."""
    from nsmbox.cli import common  # noqa: PLC0415

    own, command = _split(arguments)
    options = parser().parse_args(own)
    if options.list:
        from nsmbox.cli import listing  # noqa: PLC0415

        return listing.show(as_json=options.json)
    gc.disable()  # a seventh of the time until this process is another program
    try:
        return common.guarded(
            "nsm box", lambda: common.of_box(options, (*options.command, *command), os.environ)
        )
    finally:
        gc.enable()


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split our arguments from those after `--`: argparse would take options out of these."""
    if "--" not in arguments:
        return arguments, []
    place = arguments.index("--")
    return arguments[:place], arguments[place + 1 :]


def _programs(text: str) -> tuple[str, ...]:
    from nsmbox.cli import common  # noqa: PLC0415

    try:
        return common.programs(text)
    except ValueError:
        message = f"{text!r:.200} is not NAME,... (a to z, 0 to 9, - and _; at most 64 names)"
        raise argparse.ArgumentTypeError(message) from None


def _network(text: str) -> Network:
    from nsmbox.cli import common  # noqa: PLC0415

    try:
        return common.network(text)
    except BadRequestError as error:
        raise argparse.ArgumentTypeError(f"{error.message}\n{error.hint}") from None
