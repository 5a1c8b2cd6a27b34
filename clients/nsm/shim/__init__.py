"""`nsm-mcp`: an MCP client's connection to the supervisor.

    relay.py    moves lines between client and supervisor; sends again what has no answer
    link.py     the connection to one supervisor: how it attaches, what is on its way there

An editor starts it for every window: the package imports the standard library only, little of that,
and nothing that imports `typing` or `dataclasses`.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys

from nsm._version import program_version
from nsm.hosts.place import client_socket
from nsm.shim.relay import Relay, say
from nsm.startup import start

TYPE_CHECKING = False  # `typing` itself takes 8 ms to import; checkers know this name
if TYPE_CHECKING:
    import socket

_HELP = """\
usage: nsm-mcp [--host HOST] [--stdio] [--version] [--help]

Connects an MCP client (Claude Code, Codex, Cursor, Zed, ...) to the nsm supervisor, which is
started if none runs. Name it as the command of a stdio server in the client's configuration:

    {"mcpServers": {"nsm": {"command": "nsm-mcp"}}}

--host HOST runs the sessions on another machine: ssh://user@host:port, or a name in config.toml.
--stdio changes nothing: nsm-mcp always speaks over standard input and output.
"""


def _claim_stdio() -> tuple[int, int]:
    """Move stdin and stdout to private descriptors, so that nothing else can write to the client;
    OSError if one of them is closed."""
    stdin = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    stdout = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # no stderr
        os.dup2(null, 1)
    os.close(null)
    return stdin, stdout


def _connect_supervisor(patience_s: float) -> socket.socket:
    return start.reconnect(client_socket(), patience_s=patience_s)


def _take_host(arguments: list[str]) -> list[str]:
    """Have sessions on the host that the arguments name; returns the others."""
    for place, argument in enumerate(arguments):
        option, equals, host = argument.partition("=")
        if option == "--host" and (equals or arguments[place + 1 :]):
            taken = 1 if equals else 2
            os.environ["NSM_HOST"] = host if equals else arguments[place + 1]
            return arguments[:place] + arguments[place + taken :]
    return arguments


def main() -> int:
    """Console script `nsm-mcp`."""
    # Some clients add --stdio to every server's command.
    arguments = _take_host([argument for argument in sys.argv[1:] if argument != "--stdio"])
    if arguments:
        if arguments == ["--version"]:
            sys.stdout.write(f"nsm-mcp {program_version()}\n")
            return 0
        known = arguments in (["--help"], ["-h"])
        (sys.stdout if known else sys.stderr).write(_HELP)
        return 0 if known else 2
    # Ended by a signal like any filter, without a traceback; SIGTERM does so already.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        stdin, stdout = _claim_stdio()
    except OSError as error:
        say(f"stdin and stdout must be open: {error.strerror}")
        return 2
    if os.isatty(stdin):
        say("waiting for an MCP client on stdin; `nsm-mcp --help` says how to set one up")
    prepare = None
    if os.environ.get("NSM_HOST"):
        from nsm.hosts.place import bring_entry  # noqa: PLC0415  # most shims stay here

        prepare = bring_entry
    return Relay(stdin, stdout, _connect_supervisor, prepare=prepare).run()
