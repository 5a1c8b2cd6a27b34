"""Sockets for agents in boxes: asked for by the program that becomes the box, listed for people."""

from __future__ import annotations

from typing import Any

from nsm.wire.errors import BadRequestError
from nsmd.control import arguments, networking
from nsmd.control.call import Call


async def box_open(call: Call) -> dict[str, Any]:
    """Sockets for the process that asks, for as long as it lives."""
    network = networking.wanted(call)
    if network is None:
        raise BadRequestError(
            "`network` is missing.", hint="It is what the box reaches: a map of `mode` and `allow`."
        )
    box = call.services.boxes.open(
        call.peer[0],
        directory=arguments.text(call.args, "directory"),
        profile=_short(call, "profile"),
        digest=_digest(call),
        network=network,
        shows_project=arguments.flag(call.args, "shows_project"),
    )
    return box.facts() | {"sockets": box.sockets_directory}


async def boxes(call: Call) -> dict[str, Any]:
    """What boxes there are."""
    return {"boxes": list(call.services.boxes.rows())}


def _short(call: Call, name: str) -> str:
    value = arguments.text(call.args, name)
    if not 1 <= len(value) <= 64 or not value.isprintable():
        raise BadRequestError(f"`{name}` must be 1 to 64 printable characters.")
    return value


def _digest(call: Call) -> str:
    value = arguments.text(call.args, "digest")
    if len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise BadRequestError("`digest` must be 64 hex digits.")
    return value
