"""`nsm net`, `port` and `secrets`: what sessions reach, what reaches them, and with whose name."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.cli.render import formats
from nsm.client.blocking import Client
from nsm.client.host import UNIX

if TYPE_CHECKING:
    from argparse import Namespace

    from nsm.client.api import NetworkAction
    from nsm.wire.host import SecretsReport
    from nsm.wire.inspection import NetworkDecision, NetworkReport

ACTIONS: tuple[NetworkAction, ...] = ("list", "allow", "deny", "off")


_EPILOG_OF_NET = """\
actions:
  list          show the list, and the latest hosts asked for (the default)
  allow HOST... add to the list, from now on and until the session ends
  deny HOST...  take away from it; connections that are allowed no more end
  off           allow nothing

A HOST is example.org, *.example.org, an address or a network, or * for all that is public; each
for ports 80 and 443, or with :PORT, or :* for all.

examples:
  nsm net work
  nsm net work allow packages.example.org files.example.org
  nsm net work deny packages.example.org
"""


@cli.verb(
    "net",
    "Show or change what a session may reach.",
    _EPILOG_OF_NET,
    cli.SESSION,
    cli.operand("[ACTION]", choices=ACTIONS, default="list"),
    cli.operand("[HOST ...]", dest="hosts"),
    cli.as_json("one object"),
    parse=ArgumentParser.parse_intermixed_args,  # the action may follow --json
)
def _net(options: Namespace) -> None:
    if bool(options.hosts) != (options.action in ("allow", "deny")):
        raise cli.UsageError(
            f"{options.action} takes no hosts"
            if options.hosts
            else f"{options.action} which hosts?"
        )
    with connection.client_of(options.session) as client:
        report = client.network(options.session, options.action, options.hosts)
    terminal.answer(options, report, lambda: _network_text(report))


def _network_text(report: NetworkReport) -> str:
    lines = [_network_rule(report)]
    if report.problem:
        lines.append(f"but {formats.visible(report.problem)}")
    lines += [f"  {formats.visible(pattern)}" for pattern in report.allow]
    if report.decisions:
        lines += ["", *(_decision(decision) for decision in report.decisions)]
    return "\n".join(lines)


def _network_rule(report: NetworkReport) -> str:
    match report.mode:
        case "off":
            return "off: this session reaches nothing"
        case "full":
            return "full: this session has the network of the host"
        case _ if not report.allow:
            return "a list of hosts, which is empty"
        case _:
            return "a list of hosts:"


def _decision(decision: NetworkDecision) -> str:
    port = f":{decision.port}" if decision.port else ""  # none where a name was looked up
    asked = f"{decision.host}{port}" if decision.host else "?"
    why = f"  {decision.detail}" if decision.verdict not in ("allowed", "not-allowed") else ""
    age = formats.duration(decision.age_s)
    return formats.visible(f"{age:>6} ago  {decision.verdict:<11}  {asked}{why}")


LOOPBACK = ("127.", "[::1]:")
"""Beginnings of addresses that other machines do not reach."""


_EPILOG_OF_PORT = """\
With SESSION and PORT, connections to an address of this machine reach that port of the session, on
its own loopback, until the session ends. The address is printed. The session gets no network.
Without PORT, the open ports are listed.

Everybody on this machine, and any web page that a browser on it shows, can connect to a TCP
address. A Unix socket (--listen unix:PATH) is for you alone.

examples:
  nsm port web 8000
  nsm port web 8000 --listen 127.0.0.1:8000
  nsm port web 8000 --listen unix:web.sock
  nsm port web --close 8000
  nsm port
"""


@cli.verb(
    "port",
    "Open, close and list ports of sessions.",
    _EPILOG_OF_PORT,
    cli.operand("[SESSION]", "an id, a name, or SCOPE/NAME"),
    cli.operand("[PORT]", "port in the session, to open", cli.whole_number),
    cli.value(
        "-l --listen ADDRESS",
        "HOST:PORT of this machine's loopback, or unix:PATH; else 127.0.0.1 and any free port",
    ),
    cli.flag("--public", "permit an address that other machines can reach"),
    cli.value("--close PORT", "close a port; open connections go on", cli.whole_number),
    cli.as_json("what is open"),
    parse=ArgumentParser.parse_intermixed_args,  # options may stand between the operands
)
def _port(options: Namespace) -> None:
    opens = options.port is not None
    if options.close is not None and (options.session is None or opens):
        raise cli.UsageError("--close PORT takes a session and nothing else to open")
    if (options.listen is not None or options.public) and not opens:
        raise cli.UsageError("--listen and --public are for opening: name a SESSION and a PORT")
    if opens:
        _open_port(options)
    elif options.close is not None:
        with connection.client_of(options.session) as client:
            client.ports.close(options.session, options.close)
    else:
        from nsm.cli.render.sessions import ports_table  # noqa: PLC0415  # of one verb

        with connection.running(options, "[]") as client:
            rows = client.ports.list(options.session)
        terminal.answer(options, rows, lambda: ports_table(rows, terminal.width()))


def _open_port(options: Namespace) -> None:
    with connection.client_of(options.session) as client:
        row = client.ports.open(
            options.session, options.port, listen=options.listen, public=options.public
        )
    if not options.json and not row.address.startswith(UNIX):
        others = "" if row.address.startswith(LOOPBACK) else "other machines, "
        terminal.note(
            f"{others}everybody on this machine, and any web page in a browser on it, can connect; "
            "--listen unix:PATH is for you alone"
        )
    terminal.answer(options, row, lambda: formats.visible(row.address))


_EPILOG_OF_SECRETS = """\
Secrets are described in config.toml, [secrets.NAME]. A session or box that is
given one sees a placeholder; nsm puts the value into requests to the secret's
hosts. No command shows a value.

  ls                     the secrets, and who has them
  test NAME              read the value as for a session, say what is wrong
  revoke NAME [TARGET]   make the placeholders worthless: in all, or in one

examples:
  nsm run -e bash --network api.example.org --secret github 'gh api user'
  nsm secrets ls
  nsm secrets test github
  nsm secrets revoke github build
"""


@cli.verb(
    "secrets",
    "Show, test and revoke secrets.",
    _EPILOG_OF_SECRETS,
    cli.operand("[ACTION]", choices=("ls", "test", "revoke")),
    cli.operand("[NAME]", "name of the secret"),
    cli.operand("[TARGET]", "a session, or a box's id"),
    cli.as_json("what there is"),
)
def _secrets(options: Namespace) -> int:
    action = options.action or "ls"
    if (action == "ls") != (options.name is None):
        raise cli.UsageError("test and revoke take the NAME of a secret; ls takes none")
    if options.target is not None and action != "revoke":
        raise cli.UsageError("only revoke takes a TARGET")
    if action == "ls":
        with connection.running(options, '{"secrets": [], "grants": []}') as client:
            report = client.secrets.list()
        terminal.answer(options, report, lambda: _table(report))
        return cli.EXIT_OK
    return _test(options) if action == "test" else _revoke(options)


def _test(options: Namespace) -> int:
    with Client() as client:
        stand_in = client.secrets.test(options.name)
    text = f"{options.name}: {len(stand_in)} characters; code sees a text such as {stand_in}"
    terminal.answer(options, {"stand_in": stand_in}, lambda: formats.visible(text))
    return cli.EXIT_OK


def _revoke(options: Namespace) -> int:
    with Client(autostart=False) as client:
        owners = list(client.secrets.revoke(options.name, options.target))
    if not owners:
        terminal.note(f"no session or box has the secret {formats.visible(options.name)}")
        return cli.EXIT_FAILED
    terminal.answer(
        options, {"owners": owners}, lambda: f"revoked {options.name} in {', '.join(owners)}"
    )
    return cli.EXIT_OK


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
