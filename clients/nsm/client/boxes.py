"""Boxes, for programs: ``client.boxes`` of either client.

The box is made by whoever asks for it (`nsmbox`); the supervisor serves sockets for its programs,
for as long as the process lives that asked. That process becomes the box, by exec(2).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.wire.answers import read
from nsm.wire.boxes import BoxPlace, BoxRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from nsm.client.asynchronous import AsyncClient
    from nsm.client.blocking import Client


class Boxes:
    """Operations on boxes. Blocks."""

    def __init__(self, client: Client) -> None:
        self._client = client

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
    ) -> BoxPlace:
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
        return read(
            BoxPlace,
            self._client.call(
                "box_open",
                _arguments(
                    directory,
                    profile,
                    digest,
                    network,
                    allow,
                    shows_project=shows_project,
                    programs=programs,
                    secrets=secrets,
                    writable=writable,
                    limits=limits,
                ),
            ),
        )

    def list(self) -> list[BoxRow]:
        """Live boxes, the oldest first."""
        return _rows(self._client.call("boxes"))


class AsyncBoxes:
    """The same, on trio."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def open(
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
    ) -> BoxPlace:
        """Make the sockets of a box, as `Boxes.open`."""
        return read(
            BoxPlace,
            await self._client.call(
                "box_open",
                _arguments(
                    directory,
                    profile,
                    digest,
                    network,
                    allow,
                    shows_project=shows_project,
                    programs=programs,
                    secrets=secrets,
                    writable=writable,
                    limits=limits,
                ),
            ),
        )

    async def list(self) -> list[BoxRow]:
        """List the boxes, as `Boxes.list`."""
        return _rows(await self._client.call("boxes"))


def _arguments(
    directory: str,
    profile: str,
    digest: str,
    network: str,
    allow: Sequence[str],
    *,
    shows_project: bool,
    programs: Sequence[str],
    secrets: Sequence[str],
    writable: Sequence[str],
    limits: Mapping[str, int] | None,
) -> dict[str, Any]:
    try:
        directory.encode()
    except UnicodeEncodeError:
        # There are such names, and none of them in messages: its sessions do without.
        directory = directory.encode(errors="backslashreplace").decode()
        shows_project = False
    return {
        "directory": directory,
        "profile": profile,
        "digest": digest,
        "network": {"mode": network, "allow": list(allow)},
        "shows_project": shows_project,
        "programs": list(programs),
        # Bytes, as the kernel has them: in text there would be names that none can be.
        "writable": [os.fsencode(path) for path in writable] if programs else [],
        **({"secrets": list(secrets)} if secrets else {}),
        **({"limits": dict(limits)} if limits is not None else {}),
    }


def _rows(wire: Any) -> list[BoxRow]:
    return read(list[BoxRow], wire, "boxes")
