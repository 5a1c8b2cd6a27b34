"""`nsm doctor`: check what nsm needs on this host; in a box, what of nsm reaches in there.

The supervisor is not in a box, and what it needs of the host cannot be seen from there.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nsm import paths
from nsm.checks import HostCheck, fail, ok, render_json, render_text, warn
from nsm.cli import connection, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK, as_json, verb
from nsm.client.blocking import Client
from nsm.jail import proxyvariables
from nsm.wire.environments import EnvironmentRow
from nsm.wire.errors import ForbiddenError, NsmError

if TYPE_CHECKING:
    from argparse import Namespace

_OUTSIDE = "Outside of the box: `nsm status`, `nsm doctor`."


_CONNECT_TIMEOUT_S = 5.0


_RUN_TIMEOUT_S = 30.0


_TRIALS = {"bash": "true", "sh": "true"}
"""Code that does nothing, by interpreter; `1` in the others."""


@verb(
    "doctor",
    "Check what nsm needs on this host, and say how to get what is missing.",
    "Exits 0 when code can be run, else 1. In a box, it checks what of nsm the box can use.",
    as_json("the checks"),
)
def _doctor(options: Namespace) -> int:
    if not in_a_box():
        return connection.become_supervisor("--doctor", *(["--json"] if options.json else []))
    checks = list(checks_in_box())
    shown = render_json(checks) if options.json else render_text(checks, terminal.width())
    terminal.out(shown.rstrip("\n"))
    return EXIT_FAILED if any(check.status == "fail" for check in checks) else EXIT_OK


def in_a_box() -> bool:
    """Return whether this process is in a box of nsm's."""
    return os.path.isdir(paths.BOX_PROGRAMS)


def checks_in_box(tools: str = paths.BOX_PROGRAMS) -> Iterator[HostCheck]:
    """Check a box, with nsm's programs in that directory, from its inside."""
    yield ok(
        "this is a box of nsm; its needs on the host cannot be checked from inside",
        "Run `nsm doctor` outside of the box for that.",
        of="box",
    )
    yield _programs_here(tools)
    try:
        with Client(name="nsm doctor", autostart=False) as client:
            yield ok(
                f"version {client.server.program_version} answers on {paths.socket_path()}",
                of="supervisor",
            )
            yield from _code(client)
            yield from _bridge(client)
    except (NsmError, OSError) as error:
        message = error.message if isinstance(error, NsmError) else str(error)
        yield fail(message, _OUTSIDE, of="supervisor")
    yield from _network()


def _programs_here(tools: str) -> HostCheck:
    missing = [name for name in ("nsm", "nsm-mcp") if not shutil.which(name, path=tools)]
    if missing:
        return warn(f"not in {tools}: {', '.join(missing)}", of="programs")
    return ok(f"nsm and nsm-mcp are in {tools}", of="programs")


def _code(client: Client) -> Iterator[HostCheck]:
    rows = client.envs()
    usable = [row for row in rows if row.available]
    for row in rows:
        if not row.available:
            name = f"environment {row.name}" if row.name else "environments"
            yield warn(row.problem or "cannot be used", of=name)
    if not usable:
        yield fail("there is no environment to run it in", _OUTSIDE, of="code")
        return
    yield _trial(client, usable[0], usable)


def _trial(client: Client, row: EnvironmentRow, usable: Sequence[EnvironmentRow]) -> HostCheck:
    try:
        result = client.run(
            _TRIALS.get(row.interpreter, "1"), env=row.name, timeout_s=_RUN_TIMEOUT_S
        )
    except NsmError as error:
        return fail(f"{row.name}: {error.message}", error.hint, of="code")
    if result.exit_code != 0:
        said = (result.stderr or result.stdout).strip()[-200:]
        return fail(
            f"{row.name}: code that does nothing ended with {result.exit_code}: {said}",
            _OUTSIDE,
            of="code",
        )
    names = ", ".join(each.name for each in usable)
    return ok(f"runs in {row.name}; there are {names}", of="code")


def _bridge(client: Client) -> Iterator[HostCheck]:
    try:
        names = [row.name for row in client.bridge.programs().programs]
    except ForbiddenError:
        yield ok("no programs of the host for this box", of="bridge")
        return
    yield ok(f"programs of the host: {', '.join(names) or 'none'}", of="bridge")


def _network() -> Iterator[HostCheck]:
    port = proxyvariables.PROXY_PORT
    if all(os.environ.get(name) == value for name, value in proxyvariables.WITHOUT_NETWORK):
        yield ok("none, as was asked for", of="network")
        return
    if f":{port}" not in os.environ.get("https_proxy", ""):
        yield ok("the host's, or what variables say", of="network")
        return
    try:
        socket.create_connection(("127.0.0.1", port), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        yield warn(
            f"the proxy on port {port} does not answer: {error.strerror or error}",
            _OUTSIDE,
            of="network",
        )
        return
    yield ok(f"the hosts of a list, by the proxy on port {port}", of="network")
