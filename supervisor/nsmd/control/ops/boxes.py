"""Sockets for agents in boxes: the program that becomes the box asks for them; people list them."""

from __future__ import annotations

from typing import Any

from nsm.wire.boxes import RequestedBoxLimits
from nsm.wire.errors import BadRequestError, ForbiddenError
from nsm.wire.run import NetworkRequest
from nsmd.bridge.programs import Caller
from nsmd.control.call import Call
from nsmd.control.ops.network import checked_secrets, chosen_network
from nsmd.jail.limits import BoxBounds
from nsmd.model.names import PROGRAM_NAME

MAX_PROGRAMS = 64

_OFF = "`[bridge] enabled = true` in config.toml turns it on; then `nsm reload --config`."


async def box_open(
    call: Call,
    directory: str,
    profile: str,
    digest: str,
    network: NetworkRequest,
    *,
    shows_project: bool = False,
    programs: tuple[str, ...] = (),
    secrets: tuple[str, ...] = (),
    writable: tuple[str, ...] = (),
    limits: RequestedBoxLimits | None = None,
) -> dict[str, Any]:
    """Open sockets for the asking process, which end with it."""
    rule = chosen_network(call, network)
    assert rule is not None, "one was given"
    box = await call.services.boxes.open(
        call.peer[0],
        directory=directory,
        profile=profile,
        digest=digest,
        network=rule,
        shows_project=shows_project,
        programs=await _programs(call, programs),
        secrets=checked_secrets(secrets),
        writable=writable,
        bounds=None if limits is None else BoxBounds(**limits._asdict()),
    )
    given = None
    if box.grant is not None:
        given = {
            "variables": dict(box.grant.variables),
            "certificate": box.grant.certificate,
        }
    return box.facts() | {"sockets": box.sockets_directory, "given_secrets": given}


async def boxes(call: Call) -> list[dict[str, Any]]:
    """List the boxes."""
    return list(call.services.boxes.rows())


async def _programs(call: Call, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Bridge programs that the box may start. All must exist, so that a mistyped name shows now and
    not within the box.
    """
    bridge = call.services.bridge
    names = sorted(set(wanted))
    if len(names) > MAX_PROGRAMS or not all(map(PROGRAM_NAME.fullmatch, names)):
        raise BadRequestError(
            f"`programs` must be at most {MAX_PROGRAMS} names of the bridge's programs."
        )
    if not names:
        return ()
    if not call.bridges:
        raise ForbiddenError(
            "This connection may start no programs of the bridge, and give none to a box.",
            hint="Leave `programs` out, or connect with the right `bridge`.",
        )
    if not bridge.enabled:
        raise BadRequestError("The bridge is off.", hint=_OFF)
    caller = Caller(client=call.client, scope=call.scope, way="control", peer=call.peer)
    known = {program.name for program in bridge.programs(caller)}
    if not known.issuperset(names):
        await bridge.read_definitions()  # one may have been described just now
    for name in names:
        bridge.program(caller, name)
    return tuple(names)
