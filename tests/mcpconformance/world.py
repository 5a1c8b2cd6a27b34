"""The server under test: a supervisor that serves MCP over HTTP, with a program of the bridge."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
class World:
    """A supervisor of its own.

    Attributes:
        http: its endpoint.
        stdio: how its shim is started.
    """

    http: Way
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
            http=Way(url=said["url"], token=token),
            stdio=Way(
                command=(sys.executable, "-P", "-m", "nsm.shim"),
                variables={**running.variables, "NSM_AUTOSTART": "0"},
            ),
        )
