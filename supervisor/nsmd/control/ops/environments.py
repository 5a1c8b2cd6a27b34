"""Operations on environments that Nix builds. A build continues without the client that asked."""

from __future__ import annotations

import codecs
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import trio

from nsm.wire.errors import BadRequestError, NsmError
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.environments.builds.build_state import Building
from nsmd.model.flakes import shown

TELL_INTERVAL_S = 1.0
"""Interval of progress events, so that a client sees time pass in a silent build."""

LOG_PIECE_BYTES = 64 * 1024
"""Largest piece of a log in one event."""


async def env_add(call: Call) -> dict[str, Any]:
    """Add an environment, and report the progress of its build."""
    name = arguments.optional_text(call.args, "name") or ""
    building = call.services.builder.add(arguments.text(call.args, "reference"), name)
    await _wait(call, [building])
    return {"environment": _row(building)}


async def env_update(call: Call) -> dict[str, Any]:
    """Build environments again."""
    targets = arguments.texts(call.args, "targets")
    buildings = call.services.builder.update(targets)
    await _wait(call, buildings)
    return {"environments": [_row(building) for building in buildings]}


async def env_list(call: Call) -> dict[str, Any]:
    """List the environments that nsm builds."""
    return {"environments": [_row(building) for building in call.services.builder.buildings]}


async def env_remove(call: Call) -> dict[str, Any]:
    """Remove environments, and cancel their builds."""
    targets = arguments.texts(call.args, "targets")
    if not targets:
        raise BadRequestError("`env_remove` takes `targets`.", hint="Name environments.")
    removed: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for target in targets:
        try:
            building = await call.services.builder.remove(target)
        except NsmError as error:
            errors.append({"target": target, "error": error.to_wire()})
        else:
            removed.append({"name": building.name, "reference": shown(building.reference)})
    return {"removed": removed, "errors": errors}


async def env_log(call: Call) -> dict[str, Any]:
    """Send the log of an environment's last build in pieces; with `follow`, until the
    build ends.
    """
    builder = call.services.builder
    building = builder.find(arguments.text(call.args, "target"))
    attempt = building.attempt if arguments.flag(call.args, "follow") else None
    stopped = trio.Event()
    call.on_cancel(stopped.set)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    offset = 0
    while True:
        # Ask before reading, so that neither the end nor anything written before it is missed.
        change = building.next_change
        ended = attempt is None or attempt.done.is_set() or stopped.is_set()
        while data := await trio.to_thread.run_sync(read_log, builder.log_path(building), offset):
            offset += len(data)
            await call.emit("log", {"text": decoder.decode(data)})
        if ended:
            return {"environment": _row(building)}
        async with trio.open_nursery() as nursery:
            for wait in (change.wait, stopped.wait):
                nursery.start_soon(_then_cancel, wait, nursery.cancel_scope)


async def _wait(call: Call, buildings: Sequence[Building]) -> None:
    """Report builds until they have ended or the client stops waiting, if it asked with `wait`."""
    if not arguments.flag(call.args, "wait"):
        return
    async with trio.open_nursery() as nursery:
        call.on_cancel(nursery.cancel_scope.cancel)
        for building in buildings:
            nursery.start_soon(_tell, call, building)


async def _tell(call: Call, building: Building) -> None:
    attempt = building.attempt
    while attempt is not None and not attempt.done.is_set():
        await call.emit("progress", {"environment": _row(building)})
        if not attempt.done.is_set():
            with trio.move_on_after(TELL_INTERVAL_S):
                await building.changed()


async def _then_cancel(wait: Any, scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()


def read_log(path: str, offset: int) -> bytes:
    """Read a piece of a log; empty at its end, or if there is none. Blocks."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, LOG_PIECE_BYTES, offset)
    finally:
        os.close(descriptor)


def _row(building: Building) -> dict[str, Any]:
    attempt, built, failed = building.attempt, building.built, building.failed
    since_s = None
    if attempt is not None:
        begun_s = attempt.queued_s if attempt.started_s is None else attempt.started_s
        since_s = trio.current_time() - begun_s
    wanted_by = {
        "nsm env add": building.added,
        "config.toml": building.configured,
        "NIX_SANDBOX_ENVS": building.variable,
        "clients": building.clients > 0,
    }
    return {
        "name": building.name,
        "reference": shown(building.reference),
        "state": building.state,
        "wanted_by": [who for who, wants in wanted_by.items() if wants],
        "path": built.path if built is not None else None,
        "built_at": built.built_s if built is not None else None,
        "since_s": since_s,
        "progress": asdict(attempt.progress) if attempt is not None else None,
        "error": failed.message if failed is not None else None,
        "hint": (failed.hint or f"`nsm env log {building.name}` shows all of its log.")
        if failed is not None
        else None,
        "cause": failed.cause if failed is not None else None,
    }
