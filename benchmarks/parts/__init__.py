"""Parts of the measurement: one module for each part of the table, in its order.

- `shim`: `nsm-mcp`, its start, its memory, and calls through it
- `control_socket`: calls in a live session by the control socket
- `jobs`: short programs in a live session
- `fresh`: calls that have a jail of their own
- `trajectories`: many actions in each of many sandboxes
- `costs`: processor time and page faults of such a call
- `programs`: programs in fresh interpreters of a session
- `evals`: small programs with a test each, through `map`, adapters, one-shots and cold jails
- `rules`: what the filter of system calls and the policy add to a fork and to a call
- `memory`: what one more session takes
- `forks`: copies of a running session
- `images`: sessions of a container image, and what a second image takes
- `clients`: how much many clients get done together
- `commands`: `nsm ps`, and the supervisor's start
- `files`: a gigabyte in and out of a session, and small files
- `undo`: what an undo takes, and what it costs calls
- `saves`: sessions saved and restored, beside a pickle
- `secrets`: requests into which nsm puts a secret
- `ports`: bytes and connections through open ports of sessions
- `box`: how long a box takes to start
- `restart`: how long a restart of the supervisor interrupts its clients
- `sessions`: what it costs to have a thousand sessions
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import cast

from bench import Bench
from measure import Findings

Part = Callable[[Bench], Findings]

PARTS: Mapping[str, str] = {
    "shim": "parts.shim",
    "exec": "parts.control_socket",
    "jobs": "parts.jobs",
    "fresh": "parts.fresh",
    "trajectories": "parts.trajectories",
    "costs": "parts.costs",
    "programs": "parts.programs",
    "evals": "parts.evals",
    "rules": "parts.rules",
    "memory": "parts.memory",
    "forks": "parts.forks",
    "images": "parts.images",
    "clients": "parts.clients",
    "commands": "parts.commands",
    "files": "parts.files",
    "undo": "parts.undo",
    "saves": "parts.saves",
    "secrets": "parts.secrets",
    "ports": "parts.ports",
    "box": "parts.box",
    "restart": "parts.restart",
    "sessions": "parts.sessions",
}
"""Modules by the names that `--only` takes."""


def part(name: str) -> Part:
    """A part, imported when it is wanted: the MCP SDK alone takes longer than some parts."""
    return cast("Part", importlib.import_module(PARTS[name]).measure)
