"""`nsm net`: what a session may reach, and what it has asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import targets, terminal
from nsm.cli.options import EXIT_OK, Parser
from nsm.cli.render import formats
from nsm.client.blocking import Client

if TYPE_CHECKING:
    from nsm.client.api import NetworkAction
    from nsm.wire.inspection import NetworkDecision, NetworkReport

ACTIONS: tuple[NetworkAction, ...] = ("list", "allow", "deny", "off")

_EPILOG = """\
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


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("net", "Show or change what a session may reach.", _EPILOG)
    parser.add_session()
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="list", metavar="ACTION")
    parser.add_argument("hosts", nargs="*", default=[], metavar="HOST")
    parser.add_json("one object")
    return parser


def main(arguments: list[str]) -> int:
    """Show, or change and show."""
    verb = parser()
    options = verb.parse_intermixed_args(arguments)  # the action may follow --json
    if bool(options.hosts) != (options.action in ("allow", "deny")):
        verb.error(
            f"{options.action} takes no hosts"
            if options.hosts
            else f"{options.action} which hosts?"
        )
    with Client(autostart=False) as client:
        targets.tell(client, options.session)
        report = client.network(options.session, options.action, options.hosts)
    terminal.answer(options, report, lambda: shown(report))
    return EXIT_OK


def shown(report: NetworkReport) -> str:
    """The text of `nsm net`."""
    lines = [_rule(report)]
    if report.problem:
        lines.append(f"but {formats.visible(report.problem)}")
    lines += [f"  {formats.visible(pattern)}" for pattern in report.allow]
    if report.decisions:
        lines += ["", *(_decision(decision) for decision in report.decisions)]
    return "\n".join(lines)


def _rule(report: NetworkReport) -> str:
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
    asked = f"{decision.host}:{decision.port}" if decision.host else "?"
    why = f"  {decision.detail}" if decision.verdict not in ("allowed", "not-allowed") else ""
    age = formats.duration(decision.age_s)
    return formats.visible(f"{age:>6} ago  {decision.verdict:<11}  {asked}{why}")
