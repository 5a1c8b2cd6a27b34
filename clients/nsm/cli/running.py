"""The supervisor for verbs that start none."""

from __future__ import annotations

from nsm.cli import terminal
from nsm.client import Client
from nsm.start import DID_NOT_START
from nsm.wire.errors import NotRunningError


def connect() -> Client | None:
    """A client of the supervisor that runs; None, and a note about it, where none does."""
    try:
        return Client(autostart=False)
    except NotRunningError as error:
        terminal.note("no supervisor is running")
        if error.message.startswith(DID_NOT_START):  # tried, as sessions are kept for one
            terminal.note(f"sessions of an earlier one are kept, but {error.message}")
            terminal.note(error.hint)
        return None
