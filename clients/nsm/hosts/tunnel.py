"""The way to a host's supervisor: connect, start a supervisor there, and forward its socket.

Any number of programs may open it at once: they queue for one lock, as for the start of a
supervisor (`nsm.startup.start`).
"""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from nsm import paths
from nsm._version import program_version
from nsm.hosts import ports
from nsm.hosts.ssh import (
    connection_of,
    facts_file,
    forwarded_file,
    host_of,
    locked,
    remote_socket,
)
from nsm.wire.decode import DecodeError, decode
from nsm.wire.errors import CannotStartError, HostError, HostUnreachableError, NotRunningError
from nsm.wire.messages import PROTOCOL_VERSION
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from nsm.hosts.address import RemoteHost
    from nsm.hosts.ssh import SshConnection

ANSWER_KEY = "nsm-host"
"""Key of the map that `nsm host ready` prints; a login may print other lines."""

INSTALLED = ".local/share/nsm/host/bin/nsm"
"""Path of the program that `nsm host setup` has installed, from the home directory there."""

_MISSING = "nsm-host-missing"
_MAX_SAID = 300


class HostAnswer(NamedTuple):
    """Answer of a host's nsm.

    Attributes:
        protocol: version of the control protocol.
        version: of the program.
        socket: path of the control socket.
        running: a supervisor listens there.
        error, hint: why none could be started; empty if all is well.
        final: none can start, which another try does not change.
    """

    protocol: int
    version: str
    socket: str
    home: str
    running: bool
    error: str = ""
    hint: str = ""
    final: bool = False


def open_tunnel(path: str, *, autostart: bool) -> str:
    """Have a host's supervisor answer on a socket here. Returns the host's name.

    Args:
        path: path of the socket, in the directory that `nsm.hosts.place` made.
        autostart: start a supervisor there if none runs.

    Raises:
        HostUnreachableError: the host cannot be reached.
        HostError: its nsm is missing, or speaks another protocol.
        NotRunningError: no supervisor runs there.
    """
    host = host_of(path)
    connection = connection_of(path)
    with locked(path):
        if connect(path, connection):
            ports.restore(path, connection)
        answer = ask_ready(host, connection, autostart=autostart)
        facts = json.dumps({"home": answer.home, "version": answer.version}).encode()
        paths.replace_file(facts_file(path), facts)
        if not answer.running:
            raise NotRunningError(
                f"no supervisor runs on {host.name}",
                hint="`nsm run` or `nsm-mcp` starts one there.",
            )
        _forward(connection, path, answer.socket)
    return host.name


def connect(path: str, connection: SshConnection) -> bool:
    """Have the connection up; returns whether it is a fresh one."""
    if connection.is_up():
        return False
    for stale in (path, forwarded_file(path)):
        with suppress(FileNotFoundError):
            os.unlink(stale)
    connection.open()
    return True


def run_there(
    host: RemoteHost,
    connection: SshConnection,
    arguments: Sequence[str],
    *,
    stdin: IO[bytes] | None = None,
) -> tuple[int, bytes, bytes]:
    """Run nsm on a host; returns its exit code, and what it printed on both streams. Without nsm
    there, a `HostError`."""
    command = nsm_command(host, arguments)
    done = connection.run(command) if stdin is None else connection.run(command, stdin=stdin)
    if done.returncode == _EXIT_MISSING and _MISSING.encode() in done.stderr:
        where = f"There is no {host.program}" if host.program else "nsm was not found"
        raise HostError(
            f"{where} on {host.name}",
            hint=f"`nsm host setup {shlex.quote(host.name)}` copies it there; or install it as on "
            "this machine.",
        )
    return done.returncode, done.stdout, done.stderr


_EXIT_MISSING = 127


def nsm_command(host: RemoteHost, arguments: Sequence[str]) -> str:
    """A command of any login shell that runs nsm."""
    programs = (
        shlex.quote(host.program)
        if host.program
        else f'"$HOME/{INSTALLED}" nsm "$HOME/.local/bin/nsm"'
    )
    script = (
        f"for nsm in {programs}; do "
        'if command -v "$nsm" >/dev/null 2>&1; then '
        f'exec "$nsm" {shlex.join(arguments)}; fi; done; '
        f"echo {_MISSING} >&2; exit {_EXIT_MISSING}"
    )
    # The user's shell may be another one than sh: all take one word in single quotes.
    return f"exec sh -c {shlex.quote(script)}"


def read_answer(output: bytes) -> dict[str, Any] | None:
    """The map that a command of `nsm host` printed; None if there is none."""
    for line in reversed(output.splitlines()):
        with suppress(ValueError):
            answer: object = json.loads(line)
            if isinstance(answer, dict) and ANSWER_KEY in answer:
                return cast("dict[str, Any]", answer)
    return None


def ask_ready(host: RemoteHost, connection: SshConnection, *, autostart: bool) -> HostAnswer:
    """Ask a host's nsm where its supervisor listens. Without `autostart`, none may run."""
    arguments = ["host", "ready", *([] if autostart else ["--no-start"])]
    code, output, said = run_there(host, connection, arguments)
    facts = read_answer(output)
    if facts is None:
        last = said.decode(errors="replace").strip()[-_MAX_SAID:]
        raise HostError(
            f"nsm on {host.name} gave no answer that this nsm knows (exit code {code}): {last}",
            hint=f"It may be older: `nsm host setup {shlex.quote(host.name)}` copies this one "
            "there.",
        )
    try:
        answer = decode(HostAnswer, facts)
    except DecodeError as error:
        raise HostError(
            f"nsm on {host.name} gave an answer that this nsm does not know: {error}",
            hint=f"`nsm host setup {shlex.quote(host.name)}` copies this nsm there.",
        ) from error
    if answer.protocol != PROTOCOL_VERSION:
        raise HostError(
            f"nsm {answer.version} on {host.name} speaks version {answer.protocol} of the control "
            f"protocol, and this nsm {program_version()} version {PROTOCOL_VERSION}",
            hint="Have the same version of nsm on both machines: "
            f"`nsm host setup {shlex.quote(host.name)}` copies this one there.",
        )
    if answer.error:
        kind = CannotStartError if answer.final else NotRunningError
        raise kind(f"on {host.name}: {answer.error}", hint=answer.hint)
    return answer


def _forward(connection: SshConnection, path: str, there: str) -> None:
    """Forward the socket, unless that is done."""
    forwarded = ""
    with suppress(HostUnreachableError):
        forwarded = remote_socket(path)
    if forwarded == there and os.path.exists(path):
        return
    if forwarded:
        connection.unforward(path, forwarded)
    with suppress(FileNotFoundError):
        os.unlink(path)
    connection.forward(path, there)
    paths.replace_file(forwarded_file(path), there.encode())
