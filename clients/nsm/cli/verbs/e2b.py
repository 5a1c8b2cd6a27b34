"""`nsm e2b`: a server on this machine for the clients of E2B."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.http import token as httptoken

if TYPE_CHECKING:
    from argparse import Namespace

    from nsm.integrations.e2b.server import Ready

DEFAULT_LISTEN = "127.0.0.1:7644"


DEFAULT_KEY = "default"


_KEY_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")
_EPILOG = """\
The official clients of E2B (packages e2b, e2b-code-interpreter and @e2b/code-interpreter) make
sandboxes on this machine once three variables are set, which `serve` prints.

examples:
  nsm e2b serve
  nsm e2b serve --project . --network pypi.org,*.pythonhosted.org
  nsm e2b key
"""


_SERVE_EPILOG = """\
Starts a supervisor if none runs, and serves until Ctrl-C. Sandboxes are sessions: `nsm ps` lists
them, and they stay until their time is over if the server ends before.

Everybody on this machine can connect, and needs the key. Clients of different keys do not see each
other's sandboxes.
"""


def _key_name(text: str) -> str:
    if not _KEY_NAME.fullmatch(text):
        message = f"{text!r} is not a name for a key: use a-z, 0-9, '.', '_' and '-'"
        raise argparse.ArgumentTypeError(message)
    return text


_e2b = cli.verb("e2b", "Serve the clients of E2B with sandboxes of this machine.", _EPILOG)


@_e2b.action(
    "serve",
    "serve, and print the variables that clients need",
    _SERVE_EPILOG,
    cli.value(
        "-l --listen HOST:PORT",
        f"address of this machine's loopback, port 0 for any free one; else {DEFAULT_LISTEN}",
        default=DEFAULT_LISTEN,
    ),
    cli.repeated(
        "--key NAME",
        f"a key of that name, made if it is missing; may be repeated; else {DEFAULT_KEY}",
        _key_name,
    ),
    cli.repeated(
        "-e --env ENV",
        "an environment that clients may name as template; the first is the default; else python",
    ),
    cli.value(
        "-p --project DIR",
        "each sandbox has a copy of it as its home directory; else that is empty",
    ),
    cli.network("what sandboxes reach at most: off, full, or HOST,...; else off"),
    cli.value("--memory MB", "memory of a sandbox, in MiB", cli.whole_number),
    cli.value(
        "--max-timeout SECONDS",
        "how long a sandbox lives at most; else 3600",
        cli.whole_number,
        default=3600,
    ),
    cli.value(
        "--max-sandboxes N", "sandboxes of a key at once; else 100", cli.whole_number, default=100
    ),
)
def _serve(options: Namespace) -> int:
    connection.need_installed()  # in a box the keys would be others
    import os  # noqa: PLC0415
    from functools import partial  # noqa: PLC0415

    import trio  # noqa: PLC0415  # half of the start of other verbs

    from nsm.http.listen_address import Port, parse_listen  # noqa: PLC0415
    from nsm.integrations.e2b.sandboxes import ServeSettings  # noqa: PLC0415
    from nsm.integrations.e2b.server import serve  # noqa: PLC0415
    from nsm.wire.inspection import network_request  # noqa: PLC0415

    try:
        port = parse_listen(options.listen)
    except ValueError as error:
        raise cli.UsageError(f"--listen {options.listen}: {error}") from None
    if not isinstance(port, Port):
        raise cli.UsageError("--listen: clients of E2B reach ports only")
    network = options.network or "off"
    network_request(network)
    settings = ServeSettings(
        environments=tuple(dict.fromkeys(options.env)) or ("python",),
        project=None if options.project is None else os.path.abspath(options.project),
        network=network,
        memory_mb=options.memory,
        max_timeout_s=options.max_timeout,
        max_sandboxes=options.max_sandboxes,
    )
    names = tuple(dict.fromkeys(options.key)) or (DEFAULT_KEY,)
    logging.basicConfig(level=logging.WARNING, format="nsm: %(message)s", stream=sys.stderr)
    try:
        trio.run(partial(serve, port, names, settings, _show))
    except httptoken.TokenError as error:
        terminal.note(str(error))
        return cli.EXIT_FAILED
    except BaseExceptionGroup as group:
        if group.split(KeyboardInterrupt)[1] is not None:
            raise
    except KeyboardInterrupt:
        pass
    return cli.EXIT_OK


def _show(ready: Ready) -> None:
    if ready.note:
        terminal.note(ready.note)
    lines = [f"export E2B_API_URL={ready.url}", f"export E2B_SANDBOX_URL={ready.url}"]
    for name, key in ready.keys:
        shown = f"export E2B_API_KEY={key}"
        lines.append(shown if len(ready.keys) == 1 else f"{shown}  # {name}")
    terminal.out("\n".join(lines))
    sys.stdout.flush()


@_e2b.action(
    "key",
    "print a key, which is made if it is missing",
    "",
    cli.operand("[NAME]", f"its name; else {DEFAULT_KEY}", _key_name, default=DEFAULT_KEY),
    cli.flag("--rotate", "make a new one, which applies at once"),
)
def _key(options: Namespace) -> int:
    connection.need_installed()
    from nsm.integrations.e2b.server import key  # noqa: PLC0415  # loads trio

    try:
        terminal.out(key(options.name, rotate=options.rotate))
    except httptoken.TokenError as error:
        terminal.note(str(error))
        return cli.EXIT_FAILED
    return cli.EXIT_OK
