"""`nsm port`: ports of sessions, opened on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import connection, targets, terminal
from nsm.cli.options import EXIT_OK, Parser, whole_number
from nsm.cli.render.formats import visible
from nsm.cli.render.sessions import ports_table
from nsm.client.blocking import Client
from nsm.client.ports import UNIX

if TYPE_CHECKING:
    import argparse

LOOPBACK = ("127.", "[::1]:")
"""Beginnings of addresses that other machines do not reach."""

_EPILOG = """\
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


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("port", "Open, close and list ports of sessions.", _EPILOG)
    parser.add_argument(
        "session", metavar="SESSION", nargs="?", help="an id, a name, or SCOPE/NAME"
    )
    parser.add_argument(
        "port", metavar="PORT", nargs="?", type=whole_number, help="port in the session, to open"
    )
    parser.add_argument(
        "-l",
        "--listen",
        metavar="ADDRESS",
        help="HOST:PORT of this machine's loopback, or unix:PATH; else 127.0.0.1 and any free port",
    )
    parser.add_argument(
        "--public", action="store_true", help="permit an address that other machines can reach"
    )
    parser.add_argument(
        "--close", metavar="PORT", type=whole_number, help="close a port; open connections go on"
    )
    parser.add_json("what is open")
    return parser


def main(arguments: list[str]) -> int:
    """Open, close or list."""
    verb = parser()
    options = verb.parse_intermixed_args(arguments)  # options may stand between the operands
    opens = options.port is not None
    if options.close is not None and (options.session is None or opens):
        verb.error("--close PORT takes a session and nothing else to open")
    if (options.listen is not None or options.public) and not opens:
        verb.error("--listen and --public are for opening: name a SESSION and a PORT")
    if opens:
        return _open(options)
    if options.close is not None:
        with Client(autostart=False) as client:
            targets.tell(client, options.session)
            client.ports.close(options.session, options.close)
        return EXIT_OK
    return _list(options)


def _open(options: argparse.Namespace) -> int:
    with Client(autostart=False) as client:
        targets.tell(client, options.session)
        row = client.ports.open(
            options.session, options.port, listen=options.listen, public=options.public
        )
    if not options.json and not row.address.startswith(UNIX):
        others = "" if row.address.startswith(LOOPBACK) else "other machines, "
        terminal.note(
            f"{others}everybody on this machine, and any web page in a browser on it, can connect; "
            "--listen unix:PATH is for you alone"
        )
    terminal.answer(options, row, lambda: visible(row.address))
    return EXIT_OK


def _list(options: argparse.Namespace) -> int:
    client = connection.connect(options, "[]")
    if client is None:
        return EXIT_OK
    with client:
        rows = client.ports.list(options.session)
    terminal.answer(options, rows, lambda: ports_table(rows, terminal.width()))
    return EXIT_OK
