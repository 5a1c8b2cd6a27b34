"""Version of the protocol with the supervisor, and what of it this agent can."""

from __future__ import annotations

AGENT_VERSION = "0.2.0"

PROTOCOL = 1

CAPABILITIES = (
    "sequence",
    "execute.timeout",
    "execute.result",
    "execute.one_shot",
    "execute.reset",
    "execute.stdin",
    "execute.argv",
    "execute.undo",
    "result.notes",
    "result.imports",
    "stream",
    "stream.late",
    "interrupt",
    "status",
    "limits",
    "files",
    "files.direct",
    "files.watch",
    "check",
    "complete",
    "setup",
    "listen",
    "ports",
    "notes",
    "jobs",
    "fork",
)
