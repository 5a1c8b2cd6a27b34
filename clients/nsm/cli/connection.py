"""The supervisor for verbs: a client of it, the sessions that people name, and its own program."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

from nsm import paths
from nsm.cli import terminal
from nsm.cli.options import EXIT_OK, Done
from nsm.cli.render import formats
from nsm.client.blocking import Client
from nsm.wire.errors import (
    HostUnreachableError,
    NotRunningError,
    NsmError,
    SupervisorStartError,
    UnknownSessionError,
)
from nsm.wire.messages import read
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    import argparse


def running(
    options: argparse.Namespace | None = None, nothing: str = "null", code: int = EXIT_OK
) -> Client:
    """A client of the supervisor that runs. Where none does, the verb ends (`Done`) with a note.

    Args:
        options: options of a verb that has `--json`; None for other verbs.
        nothing: the verb's JSON where no supervisor runs; `code`: its exit code then.
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
        raise Done(code) from None


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
    rows = client.sessions()
    if not rows:
        return True
    running = sum(row.state == "running" for row in rows)
    busy = f", {running} of them running code" if running else ""
    if terminal.agreed(f"End {formats.count(len(rows), 'session')}{busy}?"):
        return True
    terminal.note("nothing was ended")
    return False


class TargetSession(NamedTuple):
    """The session that a target means. `elsewhere`: its project is another one, and its name alone
    led to it."""

    id: str
    name: str | None
    scope: str
    project: str | None
    elsewhere: bool

    @property
    def place(self) -> str:
        """Project of the session, for people."""
        return "no project" if self.project is None else formats.visible(self.project)


def client_of(session: str, *, host: str | None = None) -> Client:
    """A client for a verb that does something to a session, and starts no supervisor. The user is
    told if the session is another project's."""
    client = Client(autostart=False, host=host)
    try:
        tell(client, session)
    except BaseException:
        client.close()
        raise
    return client


def find(client: Client, target: str) -> TargetSession | None:
    """The live session that a target means; None where there is none."""
    try:
        return read(TargetSession, client.call("find", {"target": target}))
    except UnknownSessionError:
        return None


def tell(client: Client, target: str) -> None:
    """Tell the user if a target means another project's session; for verbs that do no harm."""
    found = find(client, target)
    if found is not None:
        tell_found(found)


def tell_found(found: TargetSession) -> None:
    """Tell the user whose session that is, if it is another project's."""
    if found.elsewhere:
        terminal.note(
            f"{found.name} is a session of {found.place}; this project has none of that name"
        )


def agreed(client: Client, target: str, question: str, *, may_ask: bool, yes: bool) -> str | None:
    """Id or name of a session that is to be changed; None if a person says no.

    If it is another project's and nobody may be asked, `yes` has to say that it is meant.
    `question` follows a sentence that says whose session it is."""
    found = find(client, target)
    if found is None or not found.elsewhere:
        return target if found is None else found.id
    if yes:
        tell_found(found)
        return found.id
    if not may_ask:
        raise OtherProjectError(
            f"{found.name} is a session of {found.place}, not of this project; nothing was done",
            hint=f"Name it {formats.visible(found.scope)}/{found.name}, or add --yes.",
        )
    whose = f"{found.name} ({found.id}) is a session of {found.place}, not of this project."
    return found.id if terminal.agreed(f"{whose} {question}") else None


class OtherProjectError(NsmError):
    """A name means only another project's session."""


def need_installed() -> None:
    """
    Raises:
        PathError: the supervisor is not installed here, so that nothing of it can be here.
    """
    from importlib.util import find_spec  # noqa: PLC0415  # few verbs ask

    if paths.supervisor_command()[0] == sys.executable and find_spec("nsmd") is None:
        raise paths.PathError(
            "the supervisor is not installed here. In a box it never is: ask outside of it."
        )


def become_supervisor(*options: str) -> NoReturn:
    """Become `nsm-supervisor` with options by which it answers, and serves nobody."""
    sys.stdout.flush()
    command = paths.supervisor_command()
    need_installed()
    try:
        os.execv(command[0], [*command, *options])  # noqa: S606
    except OSError as error:
        raise paths.PathError(
            f"the supervisor's program {command[0]!r} can't be started: {error.strerror}. "
            "Set NSM_SUPERVISOR to its path, or unset it."
        ) from error
