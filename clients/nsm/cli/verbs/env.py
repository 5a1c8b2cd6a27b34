"""`nsm env`: list the environments, and build more with Nix."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from nsm.cli import terminal
from nsm.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Parser
from nsm.cli.render import builds, formats
from nsm.cli.verbs import envs
from nsm.client.blocking import Client

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from nsm.wire.builds import BuiltRow

_EPILOG = """\
Without an ACTION it lists the environments, as `list` does.

REF#NAME is a reference to a flake that yields a sandbox (`lib.mkSandbox` of nsm's flake), as in
github:OWNER/REPO#NAME or ./DIRECTORY#NAME. Nix builds it in the background: calls to other
environments work meanwhile, and a build goes on when you leave.

examples:
  nsm env
  nsm env add github:me/envs#data-science
  nsm env log -f data-science
  nsm env update
"""

_LEFT = "goes on being built in the background"


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("env", "List the environments; build more of them with Nix.", _EPILOG)
    parser.add_json("an array of objects")
    actions = parser.add_actions(required=False)
    listed = actions.add("list", envs.LISTS, envs.EPILOG)
    listed.add_json("an array of objects")
    shown = actions.add("show", "show all that is known of one", envs.EPILOG_OF_ONE)
    shown.add_argument("env", metavar="ENV", help="its name")
    shown.add_json("an object")
    add = actions.add("add", "build one with Nix, and keep it", "Exits 1 when its build fails.")
    add.add_argument("reference", metavar="REF#NAME", help="a reference to a flake")
    add.add_argument("--name", metavar="NEW", help="name to use instead of its own")
    _add_no_wait(add)
    add.add_json("the environment")
    built = actions.add("builds", "list those that Nix builds, and the progress of their builds")
    built.add_json("an array of objects")
    actions.add_alias("ls", built)
    rm = actions.add(
        "rm", "remove one of those, and cancel its build", "Sessions that run in it live on."
    )
    rm.add_argument("names", nargs="+", metavar="BUILT", help="a name, or a reference")
    rm.add_json("an array of those that were removed")
    update = actions.add(
        "update",
        "build those again, from newer sources if there are some",
        "What worked goes on working when its update fails, which exits 1.",
    )
    update.add_argument("names", nargs="*", metavar="BUILT", help="a name or a reference; or all")
    _add_no_wait(update)
    update.add_json("an array of objects")
    log = actions.add("log", "show what was printed by the last build of one")
    log.add_argument("name", metavar="BUILT", help="a name, or a reference")
    log.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="follow until the build ends, or until Ctrl-C, which is no failure",
    )
    log.add_json("an object with the environment and the log")
    return parser


def _add_no_wait(parser: Parser) -> None:
    parser.add_argument("--no-wait", action="store_true", help="return at once")


def main(arguments: list[str]) -> int:
    """Do it."""
    verb = parser()
    options = verb.parse_args(verb.action_first(arguments))
    with Client() as client:
        return _ACTIONS[options.action](client, options)


def _add(client: Client, options: argparse.Namespace) -> int:
    with builds.BuildProgressLine() as progress:
        row = client.builds.add(
            builds.absolute(options.reference),
            name=options.name,
            wait=not options.no_wait,
            on_progress=progress.show,
        )
    return _tell([row], options, builds.added)


def _update(client: Client, options: argparse.Namespace) -> int:
    before = {row.reference: row.path for row in client.builds.list_all()}
    with builds.BuildProgressLine() as progress:
        rows = client.builds.update(
            [builds.absolute(name) for name in options.names],
            wait=not options.no_wait,
            on_progress=progress.show,
        )
    return _tell(rows, options, lambda row: builds.updated(row, before.get(row.reference)))


def _tell(
    rows: Sequence[BuiltRow], options: argparse.Namespace, words: Callable[[BuiltRow], str]
) -> int:
    """Say what came of builds; the exit code."""
    if options.json:
        terminal.out_json(rows if options.action == "update" else rows[0])
    for row in rows:
        if row.going_on:
            name = formats.visible(row.name)
            terminal.note(f"{name} {_LEFT}; `nsm env log -f {name}` shows how")
        elif row.state == "failed":
            terminal.note(formats.error(row.error or "its build failed", row.hint or ""))
        elif not options.json:
            terminal.out(words(row))
    if any(row.state == "failed" for row in rows):
        return EXIT_FAILED
    waited = any(row.going_on for row in rows) and not options.no_wait
    return EXIT_INTERRUPTED if waited else EXIT_OK


def _ls(client: Client, options: argparse.Namespace) -> int:
    rows = client.builds.list_all()
    terminal.answer(options, rows, lambda: builds.table(rows))
    return EXIT_OK


def _rm(client: Client, options: argparse.Namespace) -> int:
    report = client.builds.remove([builds.absolute(name) for name in options.names])
    terminal.answer(
        options,
        report.removed,
        lambda: "\n".join(f"removed {formats.visible(row.name)}" for row in report.removed),
    )
    for failed in report.errors:
        terminal.report(failed.error)
    return EXIT_FAILED if report.errors else EXIT_OK


def _log(client: Client, options: argparse.Namespace) -> int:
    pieces: list[str] = []

    def show(text: str) -> None:
        pieces.append(text)
        if options.follow and not options.json:
            sys.stdout.write(builds.visible_log(text))
            sys.stdout.flush()

    row = client.builds.log(builds.absolute(options.name), show, follow=options.follow)
    if options.json:
        terminal.out_json({"environment": row, "log": "".join(pieces)})
    elif not pieces:
        terminal.note(f"nothing was built of {formats.visible(row.name)} yet")
    elif not options.follow:
        if row.cause:
            terminal.note(f"its build failed: {formats.visible(row.cause)}")
        # A log of 4 MiB at most: why comes before it.
        sys.stdout.write(builds.visible_log("".join(pieces)))
    return EXIT_OK


_ACTIONS: dict[str | None, Callable[[Client, argparse.Namespace], int]] = {
    None: envs.list_all,
    "list": envs.list_all,
    "show": envs.show,
    "builds": _ls,
    "add": _add,
    "ls": _ls,
    "rm": _rm,
    "update": _update,
    "log": _log,
}
