# pyright: basic, reportMissingImports=false
"""Calls of Ray's actors, from asyncio."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import ray
from ray.exceptions import RayTaskError

if TYPE_CHECKING:
    from typing import Any


async def asked(reference: Any) -> Any:
    """Await the result of a call; errors are those that the actor raised.

    Cancellation: the call is cancelled, too.
    """
    try:
        return await reference
    except RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, Exception) else error from None
    except asyncio.CancelledError:
        ray.cancel(reference, force=False)
        raise
