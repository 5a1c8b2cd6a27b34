"""The server under test: a supervisor that serves MCP over HTTP, with a program of the bridge."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import e2e_support
from mcpconformance.clients import PROGRAM, Way

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
