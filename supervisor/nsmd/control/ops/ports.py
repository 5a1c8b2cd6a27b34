"""Ports of sessions that are open on the host: opened, closed and listed."""

from __future__ import annotations

from nsm.wire.live import PortAddress
from nsm.wire.ports import PortRow
from nsmd.control.call import Call


async def port_open(
    call: Call, target: str, port: int, *, listen: str = "", public: bool = False
) -> PortRow:
    """Open a port of a session on the host."""
    session = call.find(target)
    return await call.services.ports.open(session, port, listen, public=public, client=call.client)


async def port_close(call: Call, target: str, port: int) -> list[PortRow]:
    """Close a port of a session."""
    return call.services.ports.close(call.find(target), port, call.client)


async def ports(call: Call, target: str | None = None) -> list[PortRow]:
    """List the open ports, and those of the configuration that could not be opened: of one
    session, or of all.
    """
    return listed(call, None if target is None else call.find(target).id)


def listed(call: Call, session_id: str | None) -> list[PortRow]:
    """List ports for `ports` and `inspect`."""
    manager = call.services.ports
    return [*manager.rows(session_id), *manager.unopened(session_id)]


def addresses_of(call: Call, session_id: str) -> list[PortAddress]:
    """List ports of a session and where to connect to them."""
    rows = call.services.ports.rows(session_id)
    return [PortAddress(row.port, row.address) for row in rows]
