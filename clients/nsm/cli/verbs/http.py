"""`nsm http`: MCP over HTTP: where it is served, and the token that clients need."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from nsm import httptoken, paths
from nsm.cli import connection, supervisor_program, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser
from nsm.cli.render.formats import visible
from nsm.client.blocking import Client
from nsm.wire.errors import NsmError


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "http",
        "Show where MCP is served over HTTP, or the token that its clients need.",
        "Starts no supervisor. `nsm http` exits 1 where nothing is served.\n"
        "`nsm http token` makes the token where there is none yet; whoever has it may run code.",
    )
    parser.add_argument(
        "action", nargs="?", choices=["status", "token"], default="status", help="what to show"
    )
    parser.add_argument(
        "--rotate",
        action="store_true",
        help="with `token`: make a new one, which applies at once",
    )
    parser.add_json("one object, or null when no supervisor runs,")
    return parser


def main(arguments: list[str]) -> int:
    """Show."""
    options = parser().parse_args(arguments)
    if options.action == "token":
        return _token(rotate=options.rotate, as_json=options.json)
    if options.rotate:
        parser().error("--rotate is for `nsm http token`")
    return _status(as_json=options.json)


def _token(*, rotate: bool, as_json: bool) -> int:
    # In a box the file would be another one, which lets nobody in.
    supervisor_program.need_installed()
    path = paths.http_token_path()
    try:
        token = httptoken.rotate(path) if rotate else httptoken.ensure(path)
    except httptoken.TokenError as error:
        terminal.note(str(error))
        return EXIT_FAILED
    if rotate:
        # A supervisor looks at the file then, which ends what the old one has let in.
        with suppress(NsmError), Client(autostart=False) as client:
            client.call("http")
    if as_json:
        terminal.out_json({"token": token, "file": path})
    else:
        terminal.out(token)
    return EXIT_OK


def _status(*, as_json: bool) -> int:
    facts = _facts()
    if as_json:
        terminal.out_json(facts)
    elif facts is None:
        terminal.out("")
    else:
        terminal.out("\n".join(map(visible, _lines(facts))))
    return EXIT_OK if facts is not None and facts["url"] else EXIT_FAILED


def _facts() -> dict[str, Any] | None:
    """Ask the supervisor; None where none runs."""
    client = connection.connect()
    if client is None:
        return None
    with client:
        return dict(client.call("http"))


def _lines(facts: dict[str, Any]) -> list[str]:
    if not facts["enabled"]:
        return [
            "off: once config.toml has `enabled = true` in section [http], `nsm reload` turns it on"
        ]
    rows = [
        ("url", facts["url"] or "none"),
        ("listen", facts["listen"]),
        ("token", f"nsm http token  ({paths.http_token_path()})"),
        ("connections", f"{facts['connections']} of {facts['max_connections']}"),
    ]
    if facts["problem"]:
        rows.append(("problem", facts["problem"]))
    refused = facts["refused"]
    if refused:
        told = ", ".join(f"{count} for {why}" for why, count in sorted(refused.items()))
        rows.append(("refused", told))
    return [f"{name:<12} {value}" for name, value in rows]
