"""Environments that Nix builds, for programs: ``client.builds`` of either client.

Example::

    import nsm

    with nsm.Client() as client:
        row = client.builds.add("github:me/envs#data-science")
        if row.state == "ready":
            print(client.run("import pandas", env=row.name).exit_code)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from nsm.wire.answers import read
from nsm.wire.builds import BuiltRow, RemoveReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from nsm.client.asynchronous import AsyncClient
    from nsm.client.blocking import Client
    from nsm.wire.messages import Event

    OnProgress: TypeAlias = Callable[[BuiltRow], object]
    OnText: TypeAlias = Callable[[str], object]


class Builds:
    """Operations on environments that Nix builds. Blocks.

    A build belongs to the supervisor: it goes on when the call that asked for it ends early, by
    Ctrl-C (the row that is returned then is still ``building``) or with the connection.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def add(
        self,
        reference: str,
        *,
        name: str | None = None,
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> BuiltRow:
        """Have an environment built, and kept from then on.

        Args:
            reference: to a flake that yields a sandbox (`lib.mkSandbox`), with an absolute path
                where it has one: ``github:OWNER/REPO#NAME``.
            name: for it; None for its own.
            wait: until it is built, or has failed.
            on_progress: called while it is.

        Returns:
            Facts about it; `state` says whether it can be used.

        Raises:
            BadRequestError: the reference or the name cannot be meant.
            OverloadedError: too many builds wait.
        """
        wire = self._client.call(
            "env_add",
            _add_arguments(reference, name, wait=wait),
            on_event=_rows_to(on_progress),
            interruptible=wait,
        )
        return read(BuiltRow, wire, "environment")

    def update(
        self,
        targets: Iterable[str] = (),
        *,
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> list[BuiltRow]:
        """Have environments built again, from newer sources if there are some.

        Args:
            targets: names or references; none for all.
            wait, on_progress: as for `add`.
        """
        wire = self._client.call(
            "env_update",
            {"targets": list(targets), "wait": wait},
            on_event=_rows_to(on_progress),
            interruptible=wait,
        )
        return _rows(wire)

    def list_all(self) -> list[BuiltRow]:
        """All that are built, by name."""
        return _rows(self._client.call("env_list"))

    def remove(self, targets: Iterable[str]) -> RemoveReport:
        """Remove environments and cancel their builds. Their sessions continue."""
        return read(RemoveReport, self._client.call("env_remove", {"targets": list(targets)}))

    def log(self, target: str, on_text: OnText, *, follow: bool = False) -> BuiltRow:
        """Read the log of an environment's last build.

        Args:
            on_text: called with each piece.
            follow: until the build has ended, or Ctrl-C.
        """
        wire = self._client.call(
            "env_log",
            {"target": target, "follow": follow},
            on_event=_text_to(on_text),
            interruptible=follow,
        )
        return read(BuiltRow, wire, "environment")


class AsyncBuilds:
    """The same on trio; `Builds` describes the methods. Cancelling a call leaves its build."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def add(
        self,
        reference: str,
        *,
        name: str | None = None,
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> BuiltRow:
        """Add and build an environment, as `Builds.add`."""
        wire = await self._client.call(
            "env_add", _add_arguments(reference, name, wait=wait), on_event=_rows_to(on_progress)
        )
        return read(BuiltRow, wire, "environment")

    async def update(
        self,
        targets: Iterable[str] = (),
        *,
        wait: bool = True,
        on_progress: OnProgress | None = None,
    ) -> list[BuiltRow]:
        """Build environments again, as `Builds.update`."""
        arguments = {"targets": list(targets), "wait": wait}
        return _rows(
            await self._client.call("env_update", arguments, on_event=_rows_to(on_progress))
        )

    async def list_all(self) -> list[BuiltRow]:
        """List the environments, as `Builds.list_all`."""
        return _rows(await self._client.call("env_list"))

    async def remove(self, targets: Iterable[str]) -> RemoveReport:
        """Remove environments, as `Builds.remove`."""
        wire = await self._client.call("env_remove", {"targets": list(targets)})
        return read(RemoveReport, wire)

    async def log(self, target: str, on_text: OnText, *, follow: bool = False) -> BuiltRow:
        """Read the log of a build, as `Builds.log`."""
        arguments = {"target": target, "follow": follow}
        wire = await self._client.call("env_log", arguments, on_event=_text_to(on_text))
        return read(BuiltRow, wire, "environment")


def _add_arguments(reference: str, name: str | None, *, wait: bool) -> dict[str, Any]:
    arguments: dict[str, Any] = {"reference": reference, "wait": wait}
    return arguments if name is None else {**arguments, "name": name}


def _rows(wire: dict[str, Any]) -> list[BuiltRow]:
    return read(list[BuiltRow], wire, "environments")


def _rows_to(on_progress: OnProgress | None) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if on_progress is not None and event.event == "progress":
            on_progress(read(BuiltRow, event.data, "environment"))

    return on_event


def _text_to(on_text: OnText) -> Callable[[Event], None]:
    def on_event(event: Event) -> None:
        if event.event == "log":
            on_text(read(str, event.data, "text"))

    return on_event
