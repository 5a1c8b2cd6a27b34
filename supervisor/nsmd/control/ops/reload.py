"""Operation `reload`: the supervisor becomes the program that is installed now.

It does so by itself, too, when a holder of sessions answers again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from nsm.wire.errors import ShuttingDownError, StartFailedError
from nsmd.control import arguments
from nsmd.control.call import Call, Services
from nsmd.fdstore.handover import SuccessorAnswer, SuccessorError, try_successor
from nsmd.fdstore.running_holders import SilentHolders
from nsmd.restart.kept_sessions import session_id_of

log = logging.getLogger(__name__)

END_WAIT_S = 5.0
"""Time for sessions to end that the next program cannot use; the kernel needs milliseconds."""

MAX_NAMED = 20
"""Largest number of sessions and others that a refusal names."""


async def reload(call: Call) -> dict[str, Any]:
    """Try the next program, and become it once the answer is sent.

    Sessions stay, and what runs in them continues. If the next program cannot use some of them,
    this is refused; if the client says `force`, they are ended.
    """
    services = call.services
    if services.ending.how is not None:
        raise ShuttingDownError("The supervisor is ending already.")
    trial = await _try(services)
    if arguments.flag(call.args, "force"):
        await _end_unusable(services, trial)
    else:
        _check_all_usable(services, trial)
    log.info("becoming version %s, asked by %s", trial.version, call.client)
    call.afterwards(partial(services.ending.ask, "reload"))
    return {
        "version": trial.version,
        "pid": services.pid,
        "waits_for": services.bridge.under_way(),
        "waits_s": services.configuration.settings.drain.timeout_seconds,
    }


async def reload_once_answered(services: Services, silent: SilentHolders) -> None:
    """Become the next program once a silent holder answers: that one takes over its sessions.

    If the next program does not start, or cannot use what is here, this one goes on, and says so.
    """
    await silent.wait()
    try:
        trial = await _try(services)
        _check_all_usable(services, trial)
    except StartFailedError as error:
        silent.refused = str(error)
        log.error("%s", silent.problem)  # noqa: TRY400 (the message says all)
        return
    log.info("becoming version %s, which takes over sessions of that holder", trial.version)
    services.ending.ask("reload")


async def _try(services: Services) -> SuccessorAnswer:
    """Try the next program.

    Raises:
        StartFailedError: it does not start.
    """
    try:
        return await try_successor(services.successor, services.everything_kept)
    except SuccessorError as error:
        raise StartFailedError(
            f"The supervisor goes on as it is, since the installed version does not start: {error}",
            hint="`nsm config` shows mistakes in the configuration; else install it again.",
        ) from error


def _check_all_usable(services: Services, trial: SuccessorAnswer) -> None:
    """Check that the next program can use what is here.

    Raises:
        StartFailedError: it cannot, or does not tell.
    """
    live = services.run_service.live_sessions()
    if trial.unreadable is None and live:
        plural = "" if len(live) == 1 else "s"
        raise StartFailedError(
            f"The supervisor goes on as it is: the installed version ({trial.version}) is older, "
            f"and does not say whether it can take over {len(live)} session{plural}.",
            hint="`nsm reload --force` tries it: what it cannot use ends. Or install a newer one.",
        )
    lost = _unusable(services, trial)
    if lost:
        told = [f"{each} ({why})" for each, why in list(lost.items())[:MAX_NAMED]]
        if len(lost) > MAX_NAMED:
            told.append(f"{len(lost) - MAX_NAMED} more")
        raise StartFailedError(
            f"The supervisor goes on as it is: the installed version ({trial.version}) cannot take "
            f"over {', '.join(told)}.",
            hint="`nsm reload --force` ends these sessions. Or install a version that can.",
            data={"unusable": list(lost)},
        )


def _unusable(services: Services, trial: SuccessorAnswer) -> Mapping[str, str]:
    """Describe what the next program cannot use and this one can, with the reasons."""
    sessions = {each.id: each for each in services.run_service.live_sessions()}
    lost: dict[str, str] = {}
    for name, why in (trial.unreadable or {}).items():
        if services.left_alone.has_entry(name):
            continue  # nothing changes for these
        session = sessions.get(session_id_of(name)) if name.startswith("session-") else None
        lost[name if session is None else f"session {session.name or session.id}"] = why
    return lost


async def _end_unusable(services: Services, trial: SuccessorAnswer) -> None:
    """End the sessions that the next program cannot use."""
    gone = {session_id_of(name) for name in trial.unreadable or () if name.startswith("session-")}
    ending = [each for each in services.run_service.live_sessions() if each.id in gone]
    for session in ending:
        session.end(f"version {trial.version} of nsm could not take it over")
    with trio.move_on_after(END_WAIT_S):
        for session in ending:
            await session.wait_ended()
