"""`nsm host`: other machines that have sessions."""

from __future__ import annotations

import json
import sys
import tarfile
from typing import TYPE_CHECKING

from nsm import paths
from nsm._version import program_version
from nsm.cli import terminal
from nsm.cli.options import flag, operand, verb
from nsm.hosts.address import find_host
from nsm.hosts.tunnel import ANSWER_KEY
from nsm.startup import start
from nsm.wire.errors import CannotStartError, NotRunningError, NsmError
from nsm.wire.messages import PROTOCOL_VERSION

if TYPE_CHECKING:
    from argparse import Namespace

_EPILOG = """\
`setup` copies nsm and all that it needs to another machine as one file, over ssh, and installs it
there for your user, below ~/.local/share/nsm/host. That machine needs Python, of the version that
nsm has here, and bubblewrap, but neither a compiler nor a network.

examples:
  nsm host setup ssh://me@big
  nsm --host ssh://me@big run -e python 'print(1)'
"""


_host = verb("host", "Show and prepare other machines that have sessions.", _EPILOG)


@_host.action(
    "ready",
    "start a supervisor here, and print its socket; nsm on another machine runs this",
    "",
    flag("--no-start", "only print it if one runs"),
)
def _ready(options: Namespace) -> None:
    path = paths.socket_path()
    answer = {
        ANSWER_KEY: 1,
        "protocol": PROTOCOL_VERSION,
        "version": program_version(),
        "socket": path,
        "home": paths.home(),
        "running": True,
    }
    try:
        start.connect(path, autostart=not options.no_start).close()
    except NotRunningError as error:
        answer["running"] = False
        final = isinstance(error, CannotStartError)
        if final or not options.no_start:
            answer |= {"error": error.message, "hint": error.hint, "final": final}
    except (NsmError, OSError) as error:
        answer |= {"running": False, "error": str(error)}
    terminal.out(json.dumps(answer))


@_host.action(
    "receive",
    "take over a project; nsm on another machine runs this",
    "",
    flag("--list", "only list the files that are there"),
    operand("KEY", "which copy"),
    operand("NAME", "name of the directory"),
)
def _receive(options: Namespace) -> None:
    from nsm.hosts import received  # noqa: PLC0415  # tarfile

    answer: dict[str, object] = {ANSWER_KEY: 1}
    try:
        directory = received.open_copy(options.key, options.name)
        answer["directory"] = directory
        if options.list:
            answer["files"] = received.seen_in(directory, received.names_below(directory))
        else:
            answer |= received.receive(directory, sys.stdin.buffer)
    except (NsmError, OSError, ValueError, tarfile.TarError) as error:
        answer["error"] = str(error)
    terminal.out(json.dumps(answer))


@_host.action(
    "setup",
    "install this nsm on another machine, or bring it up to date",
    "",
    operand("HOST", "ssh://user@host:port, or a name in config.toml"),
)
def _setup(options: Namespace) -> None:
    from nsm.hosts.setup import set_up  # noqa: PLC0415  # packaging, zipfile

    terminal.note(f"copying nsm to {options.host}")
    done = set_up(find_host(options.host))
    terminal.out(f"nsm {done.version} is in {done.directory} of {options.host}")
    if not done.has_bwrap:
        terminal.note("bubblewrap is missing there; Debian, Ubuntu: apt-get install bubblewrap")
    if done.running:
        terminal.note(
            f"a supervisor runs there; `nsm --host {options.host} reload` has it become this "
            "version, with all its sessions"
        )
