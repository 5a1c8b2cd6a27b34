"""`nsm secrets`: secrets that sessions and boxes use without seeing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_OK, EXIT_RUN_FAILED, Parser
from nsm.cli.render import formats
from nsm.client.blocking import Client

if TYPE_CHECKING:
    import argparse

    from nsm.wire.host import SecretsReport

_EPILOG = """\
Secrets are described in config.toml, [secrets.NAME]. A session or box that is
granted one sees a stand-in; nsm puts the value into requests to the secret's
hosts. No command shows a value.

  ls                     the secrets, and who has them
  test NAME              read the value as for a session, say what is wrong
  revoke NAME [TARGET]   make the stand-ins worthless: in all, or in one

examples:
  nsm run -e bash --network api.example.org --secret github 'gh api user'
  nsm secrets ls
  nsm secrets test github
  nsm secrets revoke github build
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("secrets", "Show, test and revoke secrets.", _EPILOG)
    parser.add_argument("action", metavar="ACTION", choices=("ls", "test", "revoke"), nargs="?")
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of the secret")
    parser.add_argument("target", metavar="TARGET", nargs="?", help="a session, or a box's id")
    parser.add_json("what there is")
    return parser


def main(arguments: list[str]) -> int:
    """Show, test or revoke."""
    verb = parser()
    options = verb.parse_args(arguments)
    action = options.action or "ls"
    if (action == "ls") != (options.name is None):
        verb.error("test and revoke take the NAME of a secret; ls takes none")
    if options.target is not None and action != "revoke":
        verb.error("only revoke takes a TARGET")
    if action == "ls":
        return _list(options)
    if action == "test":
        return _test(options)
    return _revoke(options)


def _test(options: argparse.Namespace) -> int:
    with Client() as client:
        stand_in = client.secrets.test(options.name)
    text = f"{options.name}: {len(stand_in)} characters; code sees a text such as {stand_in}"
    terminal.answer(options, {"stand_in": stand_in}, lambda: formats.visible(text))
    return EXIT_OK


def _revoke(options: argparse.Namespace) -> int:
    with Client(autostart=False) as client:
        owners = list(client.secrets.revoke(options.name, options.target))
    if not owners:
        terminal.note(f"no session or box has the secret {formats.visible(options.name)}")
        return EXIT_RUN_FAILED
    terminal.answer(
        options, {"owners": owners}, lambda: f"revoked {options.name} in {', '.join(owners)}"
    )
    return EXIT_OK


def _list(options: argparse.Namespace) -> int:
    client = connection.connect(options, '{"secrets": [], "grants": []}')
    if client is None:
        return EXIT_OK
    with client:
        report = client.secrets.list()
    terminal.answer(options, report, lambda: _table(report))
    return EXIT_OK


def _table(report: SecretsReport) -> str:
    if not report.secrets:
        return "No secrets are configured."
    has: dict[str, list[str]] = {}
    for grant in report.grants:
        uses = "revoked" if grant.revoked else formats.count(grant.uses, "use")
        has.setdefault(grant.secret, []).append(
            f"{grant.kind} {grant.name or grant.owner} ({uses})"
        )
    return formats.table(
        ("NAME", "FROM", "HOSTS", "AS", "GRANTED"),
        [
            (
                row.name,
                row.source,
                " ".join(row.hosts),
                " ".join((*row.variables, *row.headers)),
                ", ".join(has.get(row.name, ())) or "-",
            )
            for row in report.secrets
        ],
        width=terminal.width(),
    )
