"""E2B's API: sandboxes are made, listed, prolonged and ended."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from nsm.integrations.e2b.errors import RefusalError
from nsm.integrations.e2b.requests import number, text, texts
from nsm.integrations.e2b.sandboxes import DEFAULT_TIMEOUT_S, ENVD_VERSION

if TYPE_CHECKING:
    from nsm.integrations.e2b.requests import HttpRequest
    from nsm.integrations.e2b.sandboxes import E2bSandbox, Sandboxes

PAGE = 100
"""Sandboxes of a page, at most and by default."""

_LACKS = {
    "pause": "nsm cannot pause a sandbox: it runs until its time is over",
    "resume": "nsm has no paused sandboxes; connect to a running one",
    "fork": "nsm e2b serve cannot fork a sandbox",
    "snapshots": "nsm e2b serve makes no snapshots",
    "metrics": "nsm e2b serve has no metrics of sandboxes; see `nsm top`",
    "logs": "nsm e2b serve has no logs of sandboxes; see `nsm logs` and `nsm jobs`",
    "network": "nsm e2b serve does not change the network of a sandbox that is there",
    "refreshes": "use timeout",
}
"""Requests that are refused, and why."""

_ASKED_FOR_NOTHING: tuple[object, ...] = (None, False, "", [], {})


async def answer(sandboxes: Sandboxes, request: HttpRequest) -> None:
    """Answer a request."""
    parts = request.path.strip("/").split("/")
    if parts[0] == "v2":
        del parts[0]
    match request.method, parts:
        case "POST", ["sandboxes"]:
            await request.answer(201, _opened(await _create(sandboxes, request)))
        case "GET", ["sandboxes"]:
            await _list(sandboxes, request)
        case "GET", ["sandboxes", sandbox_id]:
            await request.answer(200, _detail(await _found(sandboxes, sandbox_id)))
        case "DELETE", ["sandboxes", sandbox_id]:
            if not await sandboxes.kill(sandbox_id):
                raise _unknown(sandbox_id)
            await request.answer(204)
        case "POST", ["sandboxes", sandbox_id, "timeout"]:
            sandbox = await _found(sandboxes, sandbox_id)
            timeout_s = number(request.json(), "timeout", DEFAULT_TIMEOUT_S)
            sandboxes.set_timeout(sandbox, timeout_s)
            await request.answer(204)
        case "POST", ["sandboxes", sandbox_id, "connect"]:
            sandbox = await _found(sandboxes, sandbox_id)
            timeout_s = number(request.json(), "timeout", DEFAULT_TIMEOUT_S)
            sandboxes.extend(sandbox, timeout_s)
            await request.answer(200, _opened(sandbox))
        case _, ["sandboxes", sandbox_id, what] if what in _LACKS:
            await _found(sandboxes, sandbox_id)
            raise RefusalError("unimplemented", _LACKS[what])
        case _, [("templates" | "volumes" | "secrets" | "snapshots") as what, *_]:
            raise RefusalError(
                "unimplemented",
                f"nsm e2b serve has no {what}. Environments are its templates (`nsm env add`)",
            )
        case _:
            raise RefusalError("not_found", f"there is no {request.method} {request.path}")


async def _found(sandboxes: Sandboxes, sandbox_id: str) -> E2bSandbox:
    try:
        return await sandboxes.find(sandbox_id)
    except RefusalError:
        raise _unknown(sandbox_id) from None


async def _create(sandboxes: Sandboxes, request: HttpRequest) -> E2bSandbox:
    asked = request.json()
    for name, what in (
        ("autoPause", "pause a sandbox"),
        ("autoResume", "resume a sandbox"),
        ("mcp", "start an MCP gateway"),
        ("iam", "give tokens to sandboxes"),
        ("volumeMounts", "mount volumes"),
    ):
        given = asked.get(name)
        if name == "autoResume" and isinstance(given, dict):
            given = given.get("enabled")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if given not in _ASKED_FOR_NOTHING:
            raise RefusalError("unimplemented", f"{name}: nsm e2b serve cannot {what}")
    return await sandboxes.create(
        asked,
        template=text(asked, "templateID"),
        timeout_s=number(asked, "timeout", DEFAULT_TIMEOUT_S),
        metadata=texts(asked, "metadata"),
        envs=texts(asked, "envVars"),
    )


async def _list(sandboxes: Sandboxes, request: HttpRequest) -> None:
    query = request.query
    limit, start = _count(query, "limit", PAGE), _count(query, "nextToken", 0)
    wanted = {unquote(name): unquote(value) for name, value in parse_qsl(query.get("metadata", ""))}
    found = [
        sandbox
        for sandbox in await sandboxes.all()
        if wanted.items() <= sandbox.metadata.items()
        and query.get("template", sandbox.template) == sandbox.template
        and "running" in query.get("state", "running").split(",")
    ]
    if query.get("order") != "asc":
        found.reverse()
    end = start + min(max(1, limit), PAGE)
    more = {"x-next-token": str(end)} if end < len(found) else {}
    rows = [_listed(sandbox) for sandbox in found[start:end]]
    await request.answer(200, rows, headers=more)


def _opened(sandbox: E2bSandbox) -> dict[str, Any]:
    return {
        "sandboxID": sandbox.id,
        "templateID": sandbox.template,
        "clientID": "nsm",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": sandbox.sandboxes.key.access_token(sandbox.id),
        "trafficAccessToken": sandbox.sandboxes.key.access_token(sandbox.id),
        "domain": None,
    }


def _listed(sandbox: E2bSandbox) -> dict[str, Any]:
    return {
        "sandboxID": sandbox.id,
        "templateID": sandbox.template,
        "clientID": "nsm",
        "startedAt": sandbox.started_at_text,
        "endAt": sandbox.ends_at_text,
        "cpuCount": os.cpu_count() or 1,
        "memoryMB": sandbox.sandboxes.memory_mb(sandbox),
        "diskSizeMB": 0,
        "metadata": sandbox.metadata,
        "state": "running",
        "envdVersion": ENVD_VERSION,
    }


def _detail(sandbox: E2bSandbox) -> dict[str, Any]:
    token = sandbox.sandboxes.key.access_token(sandbox.id)
    return {**_listed(sandbox), "envdAccessToken": token, "domain": None}


def _unknown(sandbox_id: str) -> RefusalError:
    return RefusalError("not_found", f"sandbox {sandbox_id} doesn't exist or has ended")


def _count(query: dict[str, str], name: str, default: int) -> int:
    value = query.get(name, "")
    if not value:
        return default
    if not (value.isascii() and value.isdecimal() and len(value) <= 6):
        raise RefusalError("invalid_argument", f"{name} must be a number")
    return int(value)
