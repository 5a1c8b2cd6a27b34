"""Operations on environments that are built. A build continues without the client that asked."""

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
from nsmd.environments.builds.building import Building
from nsmd.model.flakes import shown
from nsmd.model.packages import WantedPackages

TELL_INTERVAL_S = 1.0
"""Interval of progress events, so that a client sees time pass in a silent build."""

LOG_PIECE_BYTES = 64 * 1024
"""Largest piece of a log in one event."""


async def env_add(call: Call) -> dict[str, Any]:
    """Add an environment, and report the progress of its build."""
    name = arguments.optional_text(call.args, "name") or ""
    devices = tuple(arguments.texts(call.args, "devices"))
    wanted = arguments.optional_map(call.args, "packages")
    if wanted is not None or devices:
        packages = _packages(wanted or {}, devices)
        building = call.services.builder.add_packages(packages, name)
    else:
        packages = None
        building = call.services.builder.add(arguments.text(call.args, "reference"), name)
    await wait_for(call, [building])
    if building.packages != packages:
        raise BadRequestError(
            f"{building.name!r} is made from other packages now: {shown(building.reference)}. "
            "Another call has changed them meanwhile.",
            hint="Choose another name, or add it again to have yours.",
        )
    return {"environment": row_of(building)}


async def env_update(call: Call) -> dict[str, Any]:
    """Build environments again."""
    targets = arguments.texts(call.args, "targets")
    buildings = call.services.builder.update(targets)
    await wait_for(call, buildings)
    return {"environments": [row_of(building) for building in buildings]}


async def env_list(call: Call) -> dict[str, Any]:
    """List the environments that nsm builds."""
    return {"environments": [row_of(building) for building in call.services.builder.buildings]}


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


async def env_gc(call: Call) -> dict[str, Any]:
    """Remove environments made from packages that nobody uses."""
    dry_run = arguments.flag(call.args, "dry_run")
    collected = await call.services.builder.collect(dry_run=dry_run)
    return {"removed": list(collected.paths), "freed_bytes": collected.freed_bytes}


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
            return {"environment": row_of(building)}
        async with trio.open_nursery() as nursery:
            for wait in (change.wait, stopped.wait):
                nursery.start_soon(_then_cancel, wait, nursery.cancel_scope)


async def wait_for(call: Call, buildings: Sequence[Building]) -> None:
    """Report builds until they have ended or the client stops waiting, if it asked with `wait`."""
    if not arguments.flag(call.args, "wait"):
        return
    async with trio.open_nursery() as nursery:
        call.on_cancel(nursery.cancel_scope.cancel)
        for building in buildings:
            nursery.start_soon(_tell, call, building)


async def _tell(call: Call, building: Building) -> None:
    packages = building.packages
    # A build may be under way that was begun for the packages before; the next one is for these.
    while (attempt := building.attempt) is not None and building.packages == packages:
        while not attempt.done.is_set():
            await call.emit("progress", {"environment": row_of(building)})
            if not attempt.done.is_set():
                with trio.move_on_after(TELL_INTERVAL_S):
                    await building.changed()


def _packages(wanted: arguments.Arguments, devices: tuple[str, ...]) -> WantedPackages:
    return WantedPackages(
        pip=tuple(arguments.texts(wanted, "pip")),
        requirements=arguments.optional_text(wanted, "requirements") or "",
        project=arguments.optional_text(wanted, "project") or "",
        npm=tuple(arguments.texts(wanted, "npm")),
        package_lock=arguments.optional_text(wanted, "package_lock") or "",
        image=arguments.optional_text(wanted, "image") or "",
        language=arguments.optional_text(wanted, "language") or "",
        root=arguments.optional_text(wanted, "root") or "",
        interpreter=arguments.optional_text(wanted, "interpreter") or "",
        allow_builds=arguments.flag(wanted, "allow_builds"),
        preload=tuple(arguments.texts(wanted, "preload")),
        devices=devices,
    )


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


def row_of(building: Building) -> dict[str, Any]:
    """Make the row of an environment that is built."""
    attempt, built, failed = building.attempt, building.built, building.failed
    since_s = None
    if attempt is not None:
        begun_s = attempt.queued_s if attempt.started_s is None else attempt.started_s
        since_s = trio.current_time() - begun_s
    wanted_by = {
        "nsm env add": building.added,
        "config.toml": building.configured,
        "nsm env use": building.agreed,
        "NIX_SANDBOX_ENVS": building.variable,
        "clients": building.clients > 0,
    }
    return {
        "name": building.name,
        "reference": shown(building.reference),
        "state": building.state,
        "wanted_by": [who for who, wants in wanted_by.items() if wants],
        "lock": built.lock if built is not None else "",
        "note": built.note if built is not None else "",
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
