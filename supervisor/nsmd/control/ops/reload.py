"""Operation `reload`: the supervisor becomes the program that is installed now."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from nsm.wire.errors import ShuttingDownError, StartFailedError
from nsmd.control.call import Call
from nsmd.fdstore.successor import SuccessorError, try_successor

log = logging.getLogger(__name__)


async def reload(call: Call) -> dict[str, Any]:
    """Try the next program, and become it once the answer is sent.

    Sessions stay, and what runs in them continues.
    """
    services = call.services
    if services.ending.how is not None:
        raise ShuttingDownError("The supervisor is ending already.")
    try:
        version = await try_successor(services.successor)
    except SuccessorError as error:
        raise StartFailedError(
            f"The supervisor goes on as it is, since the installed version does not start: {error}",
            hint="`nsm config` shows mistakes in the configuration; else install it again.",
        ) from error
    log.info("becoming version %s, asked by %s", version, call.client)
    call.afterwards(partial(services.ending.ask, "reload"))
    return {
        "version": version,
        "pid": services.pid,
        "waits_for": services.bridge.under_way(),
        "waits_s": services.configuration.settings.drain.timeout_seconds,
    }
