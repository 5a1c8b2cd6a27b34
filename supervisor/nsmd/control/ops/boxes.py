"""Sockets for agents in boxes: the program that becomes the box asks for them; people list them."""

from __future__ import annotations

from typing import Any

from nsm.wire.errors import BadRequestError, ForbiddenError
from nsmd.bridge.programs import Caller
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.control.ops import network as networking
from nsmd.control.ops import secrets
from nsmd.jail.limits import BoxBounds
from nsmd.model.names import PROGRAM_NAME
from nsmd.model.settings import MAX_MEGABYTES

MAX_PROGRAMS = 64
MAX_WRITABLE = 256

_LIMITS = {
    "memory_mb": MAX_MEGABYTES,
    "files_mb": 4 * MAX_MEGABYTES,
    "processes": 32768,
    "cpu_weight": 10_000,
}
"""Limits of a box, each with the largest value."""

_OFF = "`[bridge] enabled = true` in config.toml turns it on; then `nsm reload --config`."


async def box_open(call: Call) -> dict[str, Any]:
    """Open sockets for the asking process, which end with it."""
    network = networking.wanted(call)
    if network is None:
        raise BadRequestError(
            "`network` is missing.", hint="Send the box's network: a map of `mode` and `allow`."
        )
    box = await call.services.boxes.open(
        call.peer[0],
        directory=arguments.text(call.args, "directory"),
        profile=_short(call, "profile"),
        digest=_digest(call),
        network=network,
        shows_project=arguments.flag(call.args, "shows_project"),
        programs=await _programs(call),
        secrets=secrets.names_in(call),
        writable=arguments.paths(call.args, "writable", MAX_WRITABLE),
        bounds=_bounds(call),
    )
    given = None
    if box.grant is not None:
        given = {
            "variables": dict(box.grant.variables),
            "certificate": box.grant.certificate,
        }
    return box.facts() | {"sockets": box.sockets_directory, "given_secrets": given}


async def boxes(call: Call) -> dict[str, Any]:
    """List the boxes."""
    return {"boxes": list(call.services.boxes.rows())}


def _short(call: Call, name: str) -> str:
    value = arguments.text(call.args, name)
    if not 1 <= len(value) <= 64 or not value.isprintable():
        raise BadRequestError(f"`{name}` must be 1 to 64 printable characters.")
    return value


async def _programs(call: Call) -> tuple[str, ...]:
    """Bridge programs that the box may start. All must exist, so that a mistyped name shows now and
    not within the box.
    """
    bridge = call.services.bridge
    names = sorted(set(arguments.texts(call.args, "programs")))
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
        await bridge.look()  # one may have been described just now
    for name in names:
        bridge.program(caller, name)
    return tuple(names)


def _bounds(call: Call) -> BoxBounds | None:
    """Limits of the box's processes; None from a client that knows none."""
    given = arguments.optional_map(call.args, "limits")
    if given is None:
        return None
    values = {name: arguments.optional_count(given, name) for name in _LIMITS}
    found = {name: value for name, value in values.items() if value is not None}
    if len(found) < len(_LIMITS) or not all(
        0 < value <= most for value, most in zip(found.values(), _LIMITS.values(), strict=True)
    ):
        names = ", ".join(f"{name} (1 to {most})" for name, most in _LIMITS.items())
        raise BadRequestError(f"`limits` must have {names}.")
    return BoxBounds(**found)


def _digest(call: Call) -> str:
    value = arguments.text(call.args, "digest")
    if len(value) != 64 or set(value) - set("0123456789abcdef"):
        raise BadRequestError("`digest` must be 64 hex digits.")
    return value
