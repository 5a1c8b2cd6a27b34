"""All machines that have sessions: this one, and the hosts of config.toml. For `--all-hosts`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from nsm.cli import terminal
from nsm.cli.options import EXIT_FAILED, EXIT_OK
from nsm.cli.render import formats
from nsm.client.blocking import Client
from nsm.hosts.address import configured_hosts
from nsm.wire.errors import (
    AmbiguousSessionError,
    HostUnreachableError,
    NotRunningError,
    NsmError,
    UnknownSessionError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = "here"
"""This machine, where hosts are shown."""


def all_hosts() -> list[str]:
    """The machines, for the `host` of clients: empty for this one."""
    return ["", *configured_hosts()]


def shown(host: str) -> str:
    """The name of a machine for people."""
    return formats.visible(host) or HERE


class HostClients:
    """Clients of all machines whose supervisors run. Standard error names unreachable machines, and
    `code` is an exit code that tells of them."""

    def __init__(self) -> None:
        self.code = EXIT_OK

    def opened(self) -> Iterator[tuple[str, Client]]:
        """Make the clients, with the names of their machines; the caller closes each."""
        for host in all_hosts():
            try:
                yield host, Client(host=host, autostart=False)
            except HostUnreachableError as error:
                self._missed(host, error)
            except NotRunningError:
                continue
            except (NsmError, OSError) as error:
                self._missed(host, error)

    def __iter__(self) -> Iterator[tuple[str, Client]]:
        for host, client in self.opened():
            with closing(client):
                yield host, client

    def _missed(self, host: str, error: NsmError | OSError) -> None:
        terminal.note(f"{shown(host)}: {formats.visible(str(error))}")
        self.code = EXIT_FAILED


def host_with(target: str) -> str:
    """The one machine that has a session, for the `host` of a client; an error if none or several
    do."""
    having: list[str] = []
    for host, client in HostClients():
        try:
            client.call("find", {"target": target})
        except UnknownSessionError:
            continue
        having.append(host)
    if len(having) == 1:
        return having[0]
    if not having:
        raise UnknownSessionError(
            f"no session {target!r} on any host", hint="`nsm ps --all-hosts` lists them."
        )
    raise AmbiguousSessionError(
        f"{' and '.join(map(shown, having))} have a session {target!r}",
        hint="Name one: `nsm --host HOST ...`.",
    )
