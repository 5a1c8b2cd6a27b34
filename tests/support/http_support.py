"""A supervisor that serves MCP over HTTP, and what its clients need."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import trio.testing
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

if TYPE_CHECKING:
    from e2e_support import Supervisor

CONFIG = '[http]\nenabled = true\nlisten = "127.0.0.1:0"\n'
"""Any free port."""


def url_of(supervisor: Supervisor) -> str:
    """URL at which MCP is served."""
    return str(json.loads(supervisor.run("nsm", "http", "--json").stdout)["url"])


def token_of(supervisor: Supervisor, *options: str) -> str:
    """Return the token that clients present."""
    return supervisor.run("nsm", "http", "token", *options).stdout.strip()


@asynccontextmanager
async def sdk_client(
    url: str, token: str, mode: str = "auto", *, socket: str | None = None, **more: Any
) -> AsyncGenerator[Client]:
    """The SDK's own client.

    Args:
        mode: which revision of the protocol, as the SDK has it.
        socket: path of the Unix socket behind the URL; None where it is a port.
        more: further arguments of the SDK's.
    """
    headers = {"Authorization": f"Bearer {token}"}
    # Without TLS; certificates would take a fifth of a second to load.
    transport = httpx2.AsyncHTTPTransport(uds=socket, verify=False)
    with warnings.catch_warnings():
        # It leaves the generators of answers to the garbage collector, which trio warns of. Each
        # holds the next one, so trio has to close the first before the next becomes garbage.
        warnings.simplefilter("ignore", ResourceWarning)
        async with (
            httpx2.AsyncClient(headers=headers, timeout=120, transport=transport) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode, **more) as client,
        ):
            yield client
        del client, http
        gc.collect()
        await trio.testing.wait_all_tasks_blocked()
