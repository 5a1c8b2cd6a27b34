"""Boxes, for programs: ``client.boxes`` of either client.

The box is made by whoever asks for it (`nsmbox`); the supervisor serves sockets for its programs,
for as long as the process lives that asked. That process becomes the box, by exec(2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client.steps import AsyncPart, BlockingPart, Calls, ask, method
from nsm.wire.code import NetworkRequest
from nsm.wire.host import RequestedBoxLimits, box_open, boxes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsm.client.steps import Steps
    from nsm.wire.host import BoxPlace, BoxRow


class BoxMethods(Calls):
    """Operations on boxes."""

    @method
    def open(
        self,
        directory: str,
        *,
        profile: str,
        digest: str,
        network: str,
        allow: Sequence[str] = (),
        shows_project: bool = True,
        programs: Sequence[str] = (),
        secrets: Sequence[str] = (),
        writable: Sequence[str] = (),
        limits: Mapping[str, int] | None = None,
    ) -> Steps[BoxPlace]:
        """Have sockets made for a box that this process becomes.

        Whoever connects to them may run code in the box's own scope, and no more: its new sessions
        see the directory as their project, and reach no more than the box does.

        Args:
            directory: the agent's working directory, absolute.
            profile: for people: 1 to 64 printable characters.
            digest: 64 hex digits that tell what is possible in the box: those with the same have
                the same sessions.
            network: network of the box: ``off``, ``full``, or ``allow``.
            allow: with ``allow``, patterns of hosts.
            shows_project: its sessions may see the directory; False if the box hides parts of it.
            programs: names of the bridge's programs that its programs may start on the host.
            secrets: names of the secrets that it uses without seeing them.
            writable: absolute paths of the host that can be changed in the box: nothing that lies
                there is started for it.
            limits: `memory_mb`, `files_mb`, `processes` and `cpu_weight` of all its processes
                together; None for no such limits.

        Raises:
            OverloadedError: there are too many.
            UnknownProgramError: the bridge has not all of these programs.
            NsmError: there can be none.
        """
        try:
            directory.encode()
        except UnicodeEncodeError:
            # There are such names, and none of them in messages: its sessions do without.
            directory = directory.encode(errors="backslashreplace").decode()
            shows_project = False
        call = box_open(
            directory,
            profile,
            digest,
            NetworkRequest(network, tuple(allow)),
            shows_project=shows_project,
            programs=tuple(programs),
            secrets=tuple(secrets),
            writable=tuple(writable) if programs else (),
            limits=None if limits is None else RequestedBoxLimits(**limits),
        )
        return (yield from ask(call))

    @method
    def list(self) -> Steps[list[BoxRow]]:
        """Live boxes, the oldest first."""
        return (yield from ask(boxes()))


class Boxes(BoxMethods, BlockingPart):
    """``nsm.Client.boxes``."""


class AsyncBoxes(BoxMethods, AsyncPart):
    """``nsm.AsyncClient.boxes``."""
