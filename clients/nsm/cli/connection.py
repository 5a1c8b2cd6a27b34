"""The supervisor for verbs that start none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.cli import terminal
from nsm.cli.render import formats
from nsm.client.blocking import Client
from nsm.wire.errors import (
    HostUnreachableError,
    NotRunningError,
    NsmError,
    SupervisorStartError,
)

if TYPE_CHECKING:
    import argparse


def connect(options: argparse.Namespace | None = None, nothing: str = "null") -> Client | None:
    """A client of the supervisor that runs; None, and a note about it, where none does.

    Args:
        options: options of a verb that has `--json`; None for other verbs.
        nothing: the verb's JSON where no supervisor runs.
    """
    try:
        return Client(autostart=False)
    except HostUnreachableError:
        raise
    except NotRunningError as error:
        terminal.note("no supervisor is running")
        if options is not None and options.json:
            terminal.out(nothing)
        if isinstance(error, SupervisorStartError):  # tried, as sessions are kept for one
            terminal.note(f"sessions of an earlier one are kept, but {error.message}")
            terminal.note(error.hint)
        return None


def note_hidden(client: Client) -> bool:
    """Note why the supervisor may not know of all sessions; return whether that is so."""
    try:
        hidden = client.status().survival.hidden
    except NsmError:  # a box learns of its own sessions only
        return False
    if hidden:
        terminal.note(formats.visible(f"there may be more sessions: {hidden}"))
    return bool(hidden)


def agreed_to_end(client: Client) -> bool:
    """Ask whether all sessions are to be ended, if there are any."""
    from nsm.cli.confirm import agreed  # noqa: PLC0415  # most verbs ask nothing

    rows = client.sessions()
    if not rows:
        return True
    running = sum(row.state == "running" for row in rows)
    busy = f", {running} of them running code" if running else ""
    if agreed(f"End {formats.count(len(rows), 'session')}{busy}?"):
        return True
    terminal.note("nothing was ended")
    return False
