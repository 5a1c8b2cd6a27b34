"""The supervisor for verbs that start none."""

from __future__ import annotations

from nsm.cli import terminal
from nsm.client import Client
from nsm.wire.errors import NotRunningError


def connect() -> Client | None:
    """A client of the supervisor that runs; None, and a note about it, where none does."""
    try:
        return Client(autostart=False)
    except NotRunningError:
        terminal.note("no supervisor is running")
        return None
