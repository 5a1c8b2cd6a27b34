"""`nsm host setup`: nsm on another machine, copied as one file."""

from __future__ import annotations

import shlex
import sys
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from nsm.hosts.archive import write_archive
from nsm.hosts.connections import connection_of, locked
from nsm.hosts.place import socket_of
from nsm.hosts.tunnel import INSTALLED, ask_ready, connect, read_answer
from nsm.wire.errors import HostError

if TYPE_CHECKING:
    from nsm.hosts.address import RemoteHost
    from nsm.hosts.ssh import SshConnection
    from nsm.hosts.tunnel import HostAnswer

_DIRECTORY = INSTALLED.removesuffix("/bin/nsm")
_ARCHIVE = f"{_DIRECTORY}.$$.pyz"
"""The archive there, as a shell sees it: another laptop may copy its own at the same time."""

_EXIT_NOT_COPIED = 75


class SetUp(NamedTuple):
    """Outcome of a set-up.

    Attributes:
        version: nsm's version there.
        directory: where it is.
        running: a supervisor runs there; it may be an older one.
        has_bwrap: bubblewrap is there.
    """

    version: str
    directory: str
    running: bool
    has_bwrap: bool


def set_up(host: RemoteHost) -> SetUp:
    """Copy nsm to a host, and install it for the user there.

    Raises:
        HostUnreachableError: the host cannot be reached.
        HostError: it cannot be installed there; the message says why.
    """
    path = socket_of(host)
    connection = connection_of(path)
    with locked(path):
        connect(path, connection)
        program = _find_python(host, connection)
        with tempfile.TemporaryFile(prefix="nsm-host-") as archive:
            write_archive(archive)
            archive.seek(0)
            done = connection.run(_shell(_install_script(program)), stdin=archive)
        if done.returncode == _EXIT_NOT_COPIED:
            raise HostError(
                f"nsm could not be copied to {host.name}: {_last(done.stderr)}",
                hint=f"It needs some 100 MB in ~/{_parent()} there.",
            )
        facts = read_answer(done.stdout) or {"error": _last(done.stderr)}
        if "installed" not in facts:
            raise HostError(
                f"nsm could not be installed on {host.name}: {facts.get('error')}",
                hint="What was there is as it was.",
            )
        answer: HostAnswer = ask_ready(host, connection, autostart=False)
    return SetUp(answer.version, facts["installed"], answer.running, bool(facts.get("bwrap")))


def _install_script(program: str) -> str:
    """Script that takes the archive from standard input, installs it, and leaves no part of it.

    It is one command: if the connection is lost or the user presses Ctrl-C, the part of the archive
    that has arrived is refused by Python, and removed as well.
    """
    return (
        f'archive="$HOME/{_ARCHIVE}"; trap \'rm -f "$archive"\' EXIT; '
        f'mkdir -p "$HOME/{_parent()}" && cat >"$archive" || exit {_EXIT_NOT_COPIED}; '
        f'{shlex.quote(program)} -I "$archive" "$HOME/{_DIRECTORY}"'
    )


def _find_python(host: RemoteHost, connection: SshConnection) -> str:
    major, minor = sys.version_info[:2]
    name = f"python{major}.{minor}"
    candidates = f"{name} /usr/bin/{name} /usr/local/bin/{name} python3 /usr/bin/python3"
    candidates += f' "$HOME/.local/bin/{name}"'  # where `uv python install` puts it
    test = f"import sys; sys.exit(sys.version_info[:2] != {(major, minor)})"
    found = connection.run(
        _shell(
            f'for python in {candidates}; do "$python" -I -c "{test}" 2>/dev/null && '
            'echo "nsm-python $python" && exit; done; exit 1'
        )
    )
    for line in found.stdout.decode(errors="replace").splitlines():
        if line.startswith("nsm-python "):
            return line.removeprefix("nsm-python ")
    raise HostError(
        f"there is no Python {major}.{minor} on {host.name}, as nsm has here",
        hint=f"Install it there, or nsm itself; `uv python install {major}.{minor}` needs no root.",
    )


def _parent() -> str:
    return _DIRECTORY.rpartition("/")[0]


def _shell(script: str) -> str:
    return f"exec sh -c {shlex.quote(script)}"


def _last(output: bytes) -> str:
    return " ".join(output.decode(errors="replace").strip().splitlines()[-1:]) or "no reason given"
