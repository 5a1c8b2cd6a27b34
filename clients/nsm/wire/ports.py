"""Ports of sessions that are open on the host."""

from typing import Annotated, NamedTuple, TypeAlias

from nsm.wire.decode import at_least, at_most
from nsm.wire.operation import operation

PortNumber: TypeAlias = Annotated[int, at_least(0)]

MAX_ADDRESS = 4096 + len("unix:")
"""Characters of an address, at most a path."""


class PortRow(NamedTuple):
    """An open port of a session, or one of the configuration that could not be opened.

    Attributes:
        session: id of the session; `name` and `scope` are the session's, too.
        port: port in the session.
        address: where to connect: ``HOST:PORT`` or ``unix:PATH``.
        client: program that opened it.
        connections: number of open connections; `total`: of all so far.
        refused: connections that were reset because no program listened in the session.
        failed: connections that were reset for other reasons, such as an agent that was stopped.
        sent_bytes: bytes into the session; `received_bytes`: bytes out of it.
        full: True while further connections wait because the session has too many.
        relay_pid: process id of its relay; None if none runs.
        problem: why it does not work at present, for people; else None.
        is_open: False for a port of the configuration that could not be opened.
    """

    session: str
    name: str | None
    scope: str
    port: int
    address: str
    client: str = ""
    connections: int = 0
    total: int = 0
    refused: int = 0
    failed: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    full: bool = False
    relay_pid: int | None = None
    problem: str | None = None
    is_open: bool = True


@operation("manage", key="port", recorded=None)
def port_open(
    target: str,
    port: PortNumber,
    *,
    listen: Annotated[str, at_most(MAX_ADDRESS, "characters")] = "",
    public: bool = False,
) -> PortRow: ...
@operation("manage", key="ports", recorded=None)
def port_close(target: str, port: PortNumber) -> list[PortRow]: ...
@operation("read", key="ports")
def ports(target: str | None = None) -> list[PortRow]: ...
