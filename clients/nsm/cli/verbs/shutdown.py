"""`nsm shutdown`: end the supervisor."""

from __future__ import annotations

import os
import select
import socket
from contextlib import ExitStack

from nsm.cli import connection, terminal
from nsm.cli.confirm import may_ask
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser
from nsm.cli.render import formats
from nsm.hosts.place import client_socket
from nsm.startup.start import peer_of
from nsm.wire.errors import DisconnectedError

END_TIMEOUT_S = 30.0
"""Time limit for the process to end after its last client: jails and the holder end first."""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "shutdown",
        "End the supervisor and all sessions; returns when it has ended. Starts none.",
        "On a terminal you are asked first, if there are sessions. `nsm reload` restarts the\n"
        "supervisor and keeps them.",
    )
    parser.add_yes()
    parser.add_json(
        "an array of the supervisors that were ended, each with its pid and its number of sessions,"
    )
    return parser


def main(arguments: list[str]) -> int:
    """End it."""
    options = parser().parse_args(arguments)
    client = connection.connect(options, "[]")
    if client is None:
        return EXIT_OK
    with client, ExitStack() as stack:
        if may_ask() and not (options.yes or options.json) and not connection.agreed_to_end(client):
            return EXIT_FAILED
        sessions = client.status().sessions
        pid = client.server.pid
        process = _process(pid)
        if process is not None:
            stack.callback(os.close, process)
        client.shutdown()
        # It has closed the connection. What it holds for the next one, as HTTP's port, is free when
        # the process has ended.
        if process is not None and not select.select([process], [], [], END_TIMEOUT_S)[0]:
            raise DisconnectedError(
                f"the supervisor has not ended within {END_TIMEOUT_S:.0f} s",
                hint=f"Its process is {pid}.",
            )
    if options.json:
        terminal.out_json([{"pid": pid, "sessions": sessions}])
    else:
        also = f" and {formats.count(sessions, 'session')}" if sessions else ""
        terminal.out(f"ended supervisor {pid}{also}")
    return EXIT_OK


def _process(pid: int | None) -> int | None:
    """A descriptor that tells the end of the supervisor's process (pidfd_open(2)).

    Returns:
        None where its number means nothing here: on another system, or among other processes.
    """
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(client_socket())
            peer, _, _ = peer_of(link)
        return os.pidfd_open(peer) if peer == pid != os.getpid() else None
    except (OSError, AttributeError):
        return None
