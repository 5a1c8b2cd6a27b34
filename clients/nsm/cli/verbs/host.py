"""`nsm host`: other machines that have sessions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from nsm import paths
from nsm._version import program_version
from nsm.cli import terminal
from nsm.cli.options import EXIT_OK, Parser
from nsm.hosts.tunnel import ANSWER_KEY
from nsm.startup import start
from nsm.wire.errors import NotRunningError, NsmError
from nsm.wire.messages import PROTOCOL_VERSION

if TYPE_CHECKING:
    import argparse

_EPILOG = """\
examples:
  nsm --host ssh://me@big run -e python 'print(1)'
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("host", "Show and prepare other machines that have sessions.", _EPILOG)
    actions = parser.add_actions()
    ready = actions.add(
        "ready", "start a supervisor on this machine, and print its socket, for another one's nsm"
    )
    ready.add_argument("--no-start", action="store_true", help="start none")
    return parser


def main(arguments: list[str]) -> int:
    """Carry out an action."""
    options = parser().parse_args(arguments)
    return _ready(options)


def _ready(options: argparse.Namespace) -> int:
    path = paths.socket_path()
    answer = {
        ANSWER_KEY: 1,
        "protocol": PROTOCOL_VERSION,
        "version": program_version(),
        "socket": path,
        "data": paths.data_dir(),
        "running": True,
    }
    try:
        start.connect(path, autostart=not options.no_start).close()
    except NotRunningError as error:
        answer["running"] = False
        if not options.no_start:
            answer |= {"error": error.message, "hint": error.hint}
    except (NsmError, OSError) as error:
        answer |= {"running": False, "error": str(error)}
    terminal.out(json.dumps(answer))
    return EXIT_OK
