"""Ports of sessions that are open on the host: opened, closed and listed."""

from __future__ import annotations

from typing import Any

from nsm.wire.errors import BadRequestError
from nsmd.control import arguments
from nsmd.control.call import Call

MAX_ADDRESS = 4096 + len("unix:")
"""Characters of an address, at most a path."""


async def port_open(call: Call) -> dict[str, Any]:
    """Open a port of a session on the host."""
    session = call.target()
    address = arguments.optional_text(call.args, "listen") or ""
    if len(address) > MAX_ADDRESS:
        raise BadRequestError("The address to listen at is too long.")
    row = await call.services.ports.open(
        session,
        _number(call),
        address,
        public=arguments.flag(call.args, "public"),
        client=call.client,
    )
    return {"port": row._asdict()}


async def port_close(call: Call) -> dict[str, Any]:
    """Close a port of a session."""
    rows = call.services.ports.close(call.target(), _number(call), call.client)
    return {"ports": [row._asdict() for row in rows]}


async def ports(call: Call) -> dict[str, Any]:
    """List the open ports, and those of the configuration that could not be opened: of one
    session, or of all.
    """
    target = arguments.optional_text(call.args, "target")
    return {"ports": described(call, None if target is None else call.find(target).id)}


def described(call: Call, session_id: str | None) -> list[dict[str, Any]]:
    """Describe ports for `ports` and `inspect`."""
    manager = call.services.ports
    rows = [*manager.rows(session_id), *manager.unopened(session_id)]
    return [row._asdict() for row in rows]


def addresses_of(call: Call, session_id: str) -> list[dict[str, Any]]:
    """Ports of a session and where to connect to them."""
    rows = call.services.ports.rows(session_id)
    return [{"port": row.port, "address": row.address} for row in rows]


def _number(call: Call) -> int:
    number = arguments.optional_count(call.args, "port")
    if number is None:
        raise BadRequestError("`port` is missing.", hint="It is the port in the session.")
    return number
