"""Servers under test: a supervisor that serves MCP over HTTP, and its front with another server."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import trio

import e2e_support
from mcpconformance.clients import PROGRAM, Way
from mcpconformance.fixtures import SuiteServer
from nsm.http import token as httptoken
from nsmd.http.asgi_app import answering
from nsmd.http.listener import HttpListener
from nsmd.model.events import Events
from nsmd.model.settings import HttpSettings
from nsmd.telemetry import Traffic

CONFIGURATION = f"""
[bridge]
enabled = true

[http]
enabled = true
listen = "127.0.0.1:0"
programs = ["{PROGRAM}"]
"""
DEFINITION = """---
name: {name}
description: Brings the site to a stage.
command: {command}
---
Brings the site to a stage.
"""
COMMAND = """#!/bin/sh
echo "deploying $*"
echo careful >&2
sleep 0.3
"""
"""The TypeScript SDK's client forgets progress that arrives together with the result."""

MAX_BODY_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An endpoint over HTTP.

    Attributes:
        url: of it.
        token: that it wants to see.
    """

    url: str
    token: str = field(repr=False)

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def way(self) -> Way:
        """Connection for clients that can show a token."""
        return Way(url=self.url, token=self.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A supervisor of its own.

    Attributes:
        http: its endpoint over HTTP.
        stdio: how its shim is started.
    """

    http: Served
    stdio: Way


@contextmanager
def world(directory: Path) -> Generator[World]:
    """A supervisor with one program of the bridge, as long as the block lasts.

    Args:
        directory: private and with a short name.
    """
    settings = directory / "config" / "nsm"
    command = directory / "bin" / PROGRAM
    for folder in (settings / "tools", command.parent):
        folder.mkdir(parents=True)
    command.write_text(COMMAND)
    command.chmod(0o755)
    definition = DEFINITION.format(name=PROGRAM, command=command)
    (settings / "tools" / f"{PROGRAM}.md").write_text(definition)
    (settings / "config.toml").write_text(CONFIGURATION)
    with e2e_support.supervisor(directory) as running:
        said = json.loads(running.run("nsm", "http", "--json").stdout)
        token = running.run("nsm", "http", "token").stdout.strip()
        yield World(
            http=Served(url=said["url"], token=token),
            stdio=Way(
                command=(sys.executable, "-P", "-m", "nsm.shim"),
                variables={**running.variables, "NSM_AUTOSTART": "0"},
            ),
        )


@asynccontextmanager
async def front(directory: Path) -> AsyncGenerator[Served, None]:
    """nsm's HTTP front before the server that the suite wants to meet.

    Args:
        directory: private; for the token.
    """
    settings = HttpSettings(enabled=True, listen="127.0.0.1:0")
    async with answering(SuiteServer().make(), max_body_bytes=MAX_BODY_BYTES) as answer:
        listener = HttpListener(
            settings,
            str(directory / "http-token"),
            answer,
            events=Events(),
            traffic=Traffic(),
        )
        with ExitStack() as stack:
            opened = listener.open(stack)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(listener.serve, *opened))
                token = httptoken.read(str(directory / "http-token"))
                yield Served(url=listener.url, token=token)
                nursery.cancel_scope.cancel()
