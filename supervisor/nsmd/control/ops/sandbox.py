"""Operations on sessions that a program makes with settings of its own, and their labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError
from nsmd.control import arguments
from nsmd.control.call import Call
from nsmd.environments.pending import NO_ENVIRONMENT, patiently
from nsmd.manager.run_service import RunService
from nsmd.model import names
from nsmd.model.values import Environment, Labels, RunRequest
from nsmd.sessions.session import Session

MAX_LABELS = 16
MAX_LABEL_CHARS = 200
LEAST_MEMORY_MB = 16

_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?", re.ASCII)


def opening(request_of: Callable[[Call, str], RunRequest]) -> Callable[[Call], Any]:
    """Make the operation that makes a session.

    Args:
        request_of: makes a request of a call and code.
    """

    async def session_open(call: Call) -> dict[str, Any]:
        asked = _asked(call, request_of(call, ""))
        run_service = call.services.run_service
        make = partial(_make, run_service, asked, call.args)
        ends_with_client = arguments.flag(call.args, "ends_with_client")
        scope, call_id = asked.client.scope, asked.client.made_by
        index = run_service.session_manager.index
        known = index.made_by(scope, call_id) if asked.again and call_id else []
        try:
            session = known[0] if known else make()
        except NO_ENVIRONMENT:
            await run_service.look(call.as_client())
            session = await patiently(make, call.on_cancel)
        if ends_with_client:
            call.own_sessions.add(session)
        try:
            await session.requests.settled()
        finally:
            run_service.session_manager.pool.answered(session)
        return {
            "id": session.id,
            "name": session.name,
            "env": session.spec.environment.name,
            "labels": dict(asked.client.labels),
        }

    return session_open


async def session_keep(call: Call) -> dict[str, Any]:
    """Let a session that was to end with its client outlive that, or have it end with this one."""
    session = call.target()
    if arguments.flag(call.args, "ends_with_client"):
        call.own_sessions.add(session)
    else:
        call.own_sessions.discard(session)
    return {"id": session.id}


def _asked(call: Call, request: RunRequest) -> RunRequest:
    """Add the idle time and the labels that a call asks for to its request."""
    configured = call.services.run_service.longest_idle_s
    idle_s = arguments.optional_number(call.args, "idle_s")
    if idle_s is not None and not 0 < idle_s <= configured:
        raise BadRequestError(
            f"Argument 'idle_s' is {idle_s:g}; it may be up to {configured:g}.",
            hint="`idle_timeout_seconds` in [session] of config.toml is the most.",
        )
    client = replace(
        request.client,
        idle_timeout_s=idle_s,
        labels=labels_of(call.args),
        made_by=request.execution_id or "",
    )
    return replace(request, client=client, session=request.session or names.NEW)


def _make(run_service: RunService, request: RunRequest, args: Mapping[str, Any]) -> Session:
    request, live, environment = run_service.place(request, None)
    if live is not None:
        raise BadRequestError(
            f"There is a session {request.session!r} already.",
            hint="Choose another name, or none for a fresh one.",
        )
    own = _tightened(environment, args)
    session, _ = run_service.session_for(request, own, pooled=own is environment)
    return session


def _tightened(environment: Environment, args: Mapping[str, Any]) -> Environment:
    """Return the environment with the memory limit and the variables that a call asks for."""
    variables = arguments.variables(args)
    if variables:
        known = [pair for pair in environment.variables if pair[0] not in variables]
        environment = replace(environment, variables=(*known, *variables.items()))
    memory_mb = arguments.optional_count(args, "memory_mb")
    if memory_mb is None:
        return environment
    if not LEAST_MEMORY_MB <= memory_mb <= environment.memory_mb:
        raise BadRequestError(
            f"Argument 'memory_mb' is {memory_mb}; for {environment.name!r} it may be "
            f"{LEAST_MEMORY_MB} to {environment.memory_mb}.",
            hint="`memory_mb` in [defaults] or [environments.NAME] of config.toml is the most.",
        )
    return replace(environment, memory_mb=memory_mb)


def labels_of(args: Mapping[str, Any]) -> Labels:
    """Read labels.

    Raises:
        BadRequestError: they are not labels, or too many.
    """
    found = arguments.text_map(args, "labels")
    if len(found) > MAX_LABELS:
        raise BadRequestError(f"{len(found)} labels are too many; a session has {MAX_LABELS}.")
    for key, value in found.items():
        if not _KEY.fullmatch(key):
            raise BadRequestError(
                f"{key!r:.80} is not a valid name of a label.",
                hint="It has 1 to 63 letters, digits, '.', '_', '/' and '-', and begins and ends "
                "with a letter or digit.",
            )
        if len(value) > MAX_LABEL_CHARS or not value.isprintable():
            raise BadRequestError(
                f"The label {key!r} has a value that is longer than {MAX_LABEL_CHARS} characters, "
                "or has control characters."
            )
    return tuple(sorted(found.items()))


def has_labels(session: Session, wanted: Labels) -> bool:
    """Return whether a session has all these labels."""
    return session.tenancy is not None and set(wanted) <= set(session.tenancy.labels)
