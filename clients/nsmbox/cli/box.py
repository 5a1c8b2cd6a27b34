"""`nsm box`: a command in a jail of its own, with the working directory and little else."""

from __future__ import annotations

import argparse
import gc
import os
from typing import TYPE_CHECKING

from nsm.cli.options import EXIT_OK, UsageError, network, secrets, verb
from nsm.wire.errors import BadRequestError

if TYPE_CHECKING:
    from nsm.cli.options import Parser
    from nsmbox.host.added_directories import RequestedDirectory
    from nsmbox.model.plan import Network

_EPILOG = """\
A box has the working directory, the system (read-only), an empty home directory and a few
variables. `claudebox` is a box for Claude Code. docs/how-to/claudebox.md has the details.

examples:
  nsm box -- bash
  nsm box --network off -- make test
  nsm box --network pypi.org,files.pythonhosted.org -- pip download cbor2
  nsm box --add ../library:ro --add ../docs:rw --hide .env -- bash
  nsm box --profile codex
  nsm box --profile claude --bridge deploy,restart-db
  nsm box --dry-run -- bash
"""


def _arguments(parser: Parser) -> None:
    from nsmbox import profiles  # noqa: PLC0415  # slow

    parser.add_argument(
        "--profile",
        metavar="PROFILE",
        choices=profiles.names(),
        help="what kind of box: %(choices)s",
    )
    network("what it may reach: off, full (the default), or hosts separated by commas", _network)(
        parser
    )
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="DIR[:ro|:rw]",
        type=_directory,
        help="show this directory too: read-only, or writable with :rw; may be repeated",
    )
    parser.add_argument(
        "--hide",
        action="append",
        default=[],
        metavar="PATH",
        help="hide this path, or a name (.env) or pattern ('*.pem') everywhere; may be repeated",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        type=_variable,
        help="pass your variable NAME, or set it to VALUE; may be repeated",
    )
    parser.add_argument(
        "--worktrees",
        action=argparse.BooleanOptionalAction,
        help="show NAME.worktrees beside the repository, for git's worktrees; remembered",
    )
    parser.add_argument(
        "--bridge",
        metavar="NAMES",
        type=_programs,
        help="programs that it may start on the host, see `nsm bridge ls`: NAME,... or '' for none",
    )
    secrets("a secret that it uses and does not see, see `nsm secrets`")(parser)
    parser.add_argument(
        "--protect",
        action=argparse.BooleanOptionalAction,
        help="files of the project that the host would run cannot be changed (the default)",
    )
    parser.add_argument(
        "--limit",
        metavar="NAME=NUMBER",
        action="append",
        type=_limit,
        help="memory_mb, processes, tmp_mb, home_mb, shm_mb, cpu_weight or descriptors",
    )
    parser.add_argument(
        "--unprotect",
        metavar="PATHS",
        type=_paths,
        help="protected files that it may change and make: PATH,... or '' for none",
    )
    parser.add_argument("--yes", action="store_true", help="start without asking")
    parser.add_argument("--dry-run", action="store_true", help="print the command, run nothing")
    parser.add_argument("--check", action="store_true", help="check what it needs")
    parser.add_argument("--list", action="store_true", help="list the boxes")
    parser.add_argument(
        "--keep-last",
        nargs="?",
        const="box-last",
        metavar="DIR",
        help="copy files that the last box here left outside of the project to DIR (box-last)",
    )
    parser.add_argument("--json", action="store_true", help="with --list: as JSON")
    parser.add_argument(
        "command",
        nargs="*",
        default=[],
        metavar="COMMAND",
        help="what to run, with arguments; with an agent's profile, the agent's arguments alone",
    )


def _parse(parser: Parser, arguments: list[str]) -> argparse.Namespace:
    """Read our arguments; argparse would take options out of those after `--`."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:place])
    options.command += arguments[place + 1 :]
    return options


@verb(
    "box",
    "Run a command in a box.",
    _EPILOG,
    _arguments,
    usage="nsm box [OPTIONS] [-- COMMAND ...]",
    parse=_parse,
)
def _box(options: argparse.Namespace) -> int:
    """Start it; where that works, this process waits for the box and ends as it does."""
    from nsmbox.cli import common  # noqa: PLC0415

    if options.list:
        if options.command:
            raise UsageError("--list takes no command: it lists the boxes that run")
        from nsmbox.cli import listing  # noqa: PLC0415

        return listing.show(as_json=options.json)
    if options.json:
        raise UsageError("--json goes with --list only")
    if options.keep_last is not None:
        return common.guarded("nsm box", lambda: _get_back(options.keep_last))
    gc.disable()  # a seventh of the time until this process is another program
    try:
        return common.guarded(
            "nsm box", lambda: common.of_box(options, tuple(options.command), os.environ)
        )
    finally:
        gc.enable()


def _get_back(target: str) -> int:
    """Copy the files that the last box left outside of the project into a new directory."""
    from nsm.cli import terminal  # noqa: PLC0415
    from nsm.cli.render import formats  # noqa: PLC0415
    from nsmbox.start import unsaved_files  # noqa: PLC0415

    path, count = unsaved_files.get_back(os.getcwd(), target)
    terminal.out(f"{formats.count(count, 'file')} in {formats.visible(path)}")
    return EXIT_OK


def _directory(text: str) -> RequestedDirectory:
    from nsmbox.host import added_directories  # noqa: PLC0415

    return added_directories.parse(text)


def _variable(text: str) -> tuple[str, str | None]:
    from nsmbox.model import settings  # noqa: PLC0415

    name, equals, value = text.partition("=")
    if not settings.is_variable_name(name):
        raise argparse.ArgumentTypeError(
            f"{name!r:.80} is not a variable name"
        )  # no value: a secret
    if "\0" in value:
        raise argparse.ArgumentTypeError(f"the value of {name} has a null byte")
    return name, value if equals else None


def _programs(text: str) -> tuple[str, ...]:
    from nsmbox.cli import common  # noqa: PLC0415

    try:
        return common.programs(text)
    except ValueError:
        message = f"{text!r:.200} is not NAME,... (a to z, 0 to 9, - and _; at most 64 names)"
        raise argparse.ArgumentTypeError(message) from None


def _limit(text: str) -> tuple[str, int]:
    from nsmbox.cli import common  # noqa: PLC0415

    try:
        return common.limit(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _paths(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (path.strip() for path in text.split(",")))))


def _network(text: str) -> Network:
    from nsmbox.cli import common  # noqa: PLC0415

    try:
        return common.network(text)
    except BadRequestError as error:
        raise argparse.ArgumentTypeError(f"{error.message}\n{error.hint}") from None
