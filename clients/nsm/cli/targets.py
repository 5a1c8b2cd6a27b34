"""Sessions that people name, where the name may lead to another project's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nsm.cli import terminal
from nsm.cli.render import formats
from nsm.wire.errors import NsmError, UnknownSessionError
from nsm.wire.messages import read

if TYPE_CHECKING:
    from nsm.client.blocking import Client


class TargetSession(NamedTuple):
    """The session that a target means.

    Attributes:
        elsewhere: its project is another one, and its name alone led to it.
    """

    id: str
    name: str | None
    scope: str
    project: str | None
    elsewhere: bool

    @property
    def place(self) -> str:
        """Its project, for people."""
        return "no project" if self.project is None else formats.visible(self.project)


def find(client: Client, target: str) -> TargetSession | None:
    """The live session that a target means.

    Returns:
        None where there is none.

    Raises:
        AmbiguousSessionError: several are meant.
    """
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

    Args:
        question: asks whether to do it; it follows a sentence that says whose session it is.
        may_ask: there is somebody to ask.
        yes: whatever that session is, it is meant.

    Raises:
        AmbiguousSessionError: several are meant.
        OtherProjectError: it is another project's, and nobody says that it is meant.
    """
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
    from nsm.cli import confirm  # noqa: PLC0415  # few commands ask

    whose = f"{found.name} ({found.id}) is a session of {found.place}, not of this project."
    return found.id if confirm.agreed(f"{whose} {question}") else None


class OtherProjectError(NsmError):
    """A name means only another project's session."""
