"""Interfaces to secrets: an `Interceptor` carries the connections to their hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import trio

from nsmd.model.host_rules import Host
from nsmd.model.values import NetworkRule


class Interceptor(Protocol):
    """Carries connections of one session or box (`nsmd.network.secrets`)."""

    @property
    def certificate(self) -> str:
        """Certificate that code has to trust, as PEM."""
        ...

    @property
    def stand_ins(self) -> Mapping[str, str]:
        """Stand-ins of its secrets, by name."""
        ...

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables with stand-ins."""
        ...

    def takes(self, host: Host, port: int) -> bool:
        """Return whether it carries connections to a host."""
        ...

    def hosts_changed(self) -> None:
        """End the connections of earlier supervisors: the list of hosts has changed."""

    async def carry(
        self,
        client: trio.SocketStream,
        server: trio.SocketStream,
        host: str,
        port: int,
        early: bytes,
        moved: Callable[[int, int], None],
    ) -> None:
        """Carry one connection, and return at its end; if cancelled, it ends. Closes both streams.

        Args:
            early: bytes that the client has sent for the server.
            moved: gets the numbers of bytes that were sent and received.
        """


class Granter(Protocol):
    """Gives secrets to sessions and boxes."""

    async def grant(self, owner: str, names: Sequence[str], rule: NetworkRule) -> object:
        """Give secrets to a session or box that begins.

        Args:
            owner: its id.
            rule: hosts that it reaches.

        Raises:
            NsmError: that is not possible; the error says why.
        """
        ...

    def held_by(self, owner: str) -> Interceptor | None:
        """Return what carries connections of a session or box; None if it has no secrets."""
        ...

    def end(self, owner: str) -> None:
        """Take its secrets from a session or box that has ended; harmless if it has none."""
