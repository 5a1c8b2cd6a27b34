"""Secrets: chosen for new sessions, listed, tried and revoked."""

from __future__ import annotations

from typing import Any

from nsm.wire.errors import BadRequestError, ForbiddenError
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.model.secrets import MAX_SECRETS, SECRET_NAME


def wanted(call: Call) -> tuple[str, ...] | None:
    """Read the secrets of a `run`; None for the configured ones.

    Raises:
        ForbiddenError: the connection may not choose.
        BadRequestError: these are no names.
    """
    if "secrets" not in call.args:
        return None
    if call.confined:
        raise ForbiddenError(
            "This connection may run code, but not choose the code's secrets.",
            hint="Leave `secrets` out.",
        )
    return names_in(call)


def names_in(call: Call) -> tuple[str, ...]:
    """Read names of secrets.

    Raises:
        BadRequestError: these are none.
    """
    names = tuple(dict.fromkeys(arguments.texts(call.args, "secrets")))
    if len(names) > MAX_SECRETS or not all(map(SECRET_NAME.fullmatch, names)):
        raise BadRequestError(f"`secrets` must be at most {MAX_SECRETS} names of secrets.")
    return names


async def secrets(call: Call) -> dict[str, Any]:
    """List the secrets, and who has them."""
    listed = call.services.secrets.rows()
    live = {session.id: session.name for session in call.services.run_service.live_sessions()}
    boxes = {row["id"] for row in call.services.boxes.rows()}
    for grant in listed["grants"]:
        owner = grant["owner"]
        grant["kind"] = "box" if owner in boxes else "session"
        grant["name"] = live.get(owner)
    return listed


async def secret_test(call: Call) -> dict[str, Any]:
    """Read a secret as for a session, and tell what code would see."""
    return {"stand_in": await call.services.secrets.test(arguments.text(call.args, "name"))}


async def secret_revoke(call: Call) -> dict[str, Any]:
    """Make the stand-ins of a secret worthless, in one session or box or in all."""
    name = arguments.text(call.args, "name")
    target = arguments.optional_text(call.args, "owner")
    owner = None
    if target is not None:
        boxes = {row["id"] for row in call.services.boxes.rows()}
        owner = target if target in boxes else call.find(target).id
    return {"owners": call.services.secrets.revoke(name, owner)}
