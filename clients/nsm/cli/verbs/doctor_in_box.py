"""`nsm doctor` in a box: what of nsm reaches in here, and whether code can be run.

The supervisor is not in a box, and what it needs of the host cannot be seen from there.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from nsm import paths
from nsm.checks import Check, render_text
from nsm.cli import terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK
from nsm.client.blocking import Client
from nsm.jail import proxyvariables
from nsm.wire.environments import EnvironmentRow
from nsm.wire.errors import ForbiddenError, NsmError

_OUTSIDE = "Outside of the box: `nsm status`, `nsm doctor`."
_CONNECT_TIMEOUT_S = 5.0
_RUN_TIMEOUT_S = 30.0

_TRIALS = {"bash": "true", "sh": "true"}
"""Code that does nothing, by interpreter; `1` in the others."""


def in_a_box() -> bool:
    """Return whether this process is in a box of nsm's."""
    return os.path.isdir(paths.BOX_PROGRAMS)


def show(*, as_json: bool) -> int:
    """Check, and print what was found. Returns the exit code: 0 when code can be run."""
    checks = list(look())
    ok = all(check.status != "fail" for check in checks)
    if as_json:
        found = {"ok": ok, "checks": [asdict(check) for check in checks]}
        terminal.out(json.dumps(found, indent=2))
    else:
        terminal.out(render_text(checks, terminal.width()).rstrip("\n"))
    return EXIT_OK if ok else EXIT_FAILED


def look(tools: str = paths.BOX_PROGRAMS) -> Iterator[Check]:
    """Check a box from its inside.

    Args:
        tools: where nsm's programs are.
    """
    yield Check(
        name="box",
        status="ok",
        detail="this is a box of nsm's; what it needs of the host is not to be seen from in here",
        fix="Outside of the box, `nsm doctor` tells that.",
    )
    yield _programs_here(tools)
    try:
        with Client(name="nsm doctor", autostart=False) as client:
            yield Check(
                name="supervisor",
                status="ok",
                detail=f"version {client.server.program_version} answers on {paths.socket_path()}",
            )
            yield from _code(client)
            yield from _bridge(client)
    except (NsmError, OSError) as error:
        message = error.message if isinstance(error, NsmError) else str(error)
        yield Check(name="supervisor", status="fail", detail=message, fix=_OUTSIDE)
    yield from _network()


def _programs_here(tools: str) -> Check:
    missing = [name for name in ("nsm", "nsm-mcp") if not shutil.which(name, path=tools)]
    if missing:
        return Check(name="programs", status="warn", detail=f"not in {tools}: {', '.join(missing)}")
    return Check(name="programs", status="ok", detail=f"nsm and nsm-mcp are in {tools}")


def _code(client: Client) -> Iterator[Check]:
    rows = client.envs()
    usable = [row for row in rows if row.available]
    for row in rows:
        if not row.available:
            name = f"environment {row.name}" if row.name else "environments"
            yield Check(name=name, status="warn", detail=row.problem or "cannot be used")
    if not usable:
        yield Check(
            name="code", status="fail", detail="there is no environment to run it in", fix=_OUTSIDE
        )
        return
    yield _trial(client, usable[0], usable)


def _trial(client: Client, row: EnvironmentRow, usable: Sequence[EnvironmentRow]) -> Check:
    try:
        result = client.run(
            _TRIALS.get(row.interpreter, "1"), env=row.name, timeout_s=_RUN_TIMEOUT_S
        )
    except NsmError as error:
        return Check(
            name="code", status="fail", detail=f"{row.name}: {error.message}", fix=error.hint
        )
    if result.exit_code != 0:
        said = (result.stderr or result.stdout).strip()[-200:]
        return Check(
            name="code",
            status="fail",
            detail=f"{row.name}: code that does nothing ended with {result.exit_code}: {said}",
            fix=_OUTSIDE,
        )
    names = ", ".join(each.name for each in usable)
    return Check(name="code", status="ok", detail=f"runs in {row.name}; there are {names}")


def _bridge(client: Client) -> Iterator[Check]:
    try:
        names = [row.name for row in client.bridge.programs().programs]
    except ForbiddenError:
        yield Check(name="bridge", status="ok", detail="no programs of the host for this box")
        return
    yield Check(
        name="bridge", status="ok", detail=f"programs of the host: {', '.join(names) or 'none'}"
    )


def _network() -> Iterator[Check]:
    port = proxyvariables.PROXY_PORT
    if all(os.environ.get(name) == value for name, value in proxyvariables.WITHOUT_NETWORK):
        yield Check(name="network", status="ok", detail="none, as was asked for")
        return
    if f":{port}" not in os.environ.get("https_proxy", ""):
        yield Check(name="network", status="ok", detail="the host's, or what variables say")
        return
    try:
        socket.create_connection(("127.0.0.1", port), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        yield Check(
            name="network",
            status="warn",
            detail=f"the proxy on port {port} does not answer: {error.strerror or error}",
            fix=_OUTSIDE,
        )
        return
    yield Check(
        name="network",
        status="ok",
        detail=f"the hosts of a list, by the proxy on port {port}",
    )
