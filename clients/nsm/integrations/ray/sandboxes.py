"""Sandboxes on nodes of a Ray cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm import Client, Sandbox, SandboxSettings, SharedSandbox
from nsm.wire.errors import BadRequestError

if TYPE_CHECKING:
    from nsm.integrations.ray.leases import Slot
    from nsm.integrations.ray.pool import RayPool


def labels_of(settings: SandboxSettings) -> dict[str, str]:
    """Labels of a sandbox: whose it is, and its own."""
    return {"owner": "ray", "pid": str(os.getpid()), **(settings.get("labels") or {})}


class PoolSandbox(Sandbox):
    """A session on some node, until it is closed. `Pool.sandbox` makes it.

    It is for one thread at a time. The methods are those of `nsm.client.sandbox.Sandbox`.

    Raises:
        SessionEndedError: from each method, once the node has gone.
    """

    def __init__(
        self, pool: RayPool, slot: Slot, save: str | None, settings: SandboxSettings
    ) -> None:
        if save is not None and not os.path.isabs(save):
            raise BadRequestError(
                f"the path {save!r} is relative, and nodes have other working directories",
                hint="Name an absolute path in a directory that all nodes share.",
            )
        self._pool = pool
        self._slot = slot
        self._save = save
        settings = {"project": None, **settings, "labels": labels_of(settings)}
        client = self._connect(slot)
        try:
            super().__init__(client, settings)
        except BaseException:
            client.close()
            raise

    def _connect(self, slot: Slot) -> Client:
        path = self._pool.socket(slot)
        return Client(socket_path=path, autostart=False, name="ray", scope="ray", project=None)

    @property
    def node_id(self) -> str:
        """Ray's id of its node."""
        return self._slot.node_id

    def close(self) -> None:
        """End the session, and give its place back."""
        if not self._pool.closed:
            super().close()
        self._client.close()
        self._pool.release(self._slot)

    def save(self) -> None:
        """Save the session in the file that `Pool.sandbox` was given, in place of an older save.

        Raises:
            SaveError: it cannot be saved; the older save stays.
            NodeLostError: the node has gone.
        """
        self._pool.ask(self._slot, "save", self.id, self._saved_in())

    def restore(self) -> None:
        """Make the session again of its save, on some node. What ran after the save is lost.

        The sandbox is then that session. The old one ends, if it is still there.

        Raises:
            SaveError: there is no save, or it cannot be used.
        """
        path, old = self._saved_in(), self._slot
        super().close()
        self._client.close()
        slot = self._pool.take()
        self._pool.release(old)
        try:
            restored = self._pool.ask(slot, "restore", path, self.name, self.env)
            self._client = self._connect(slot)
        except BaseException:
            self._pool.release(slot)
            raise
        self._slot = slot
        self.id, self.name = restored
        self.files = self._client.files(self.id)

    def _saved_in(self) -> str:
        if self._save is None:
            raise BadRequestError(
                "this sandbox has no file for saves", hint="Make it by `pool.sandbox(save=PATH)`."
            )
        return self._save


class PoolSharedSandbox(SharedSandbox):
    """A session on some node, for any thread and any asyncio task. `Pool.asandbox` makes it."""

    def __init__(self, pool: RayPool, slot: Slot, path: str, settings: SandboxSettings) -> None:
        super().__init__(owner="ray", socket_path=path, **settings)
        self._pool = pool
        self._slot = slot

    def close(self) -> None:
        """End the session, and give its place back."""
        super().close()
        self._pool.release(self._slot)

    async def aclose(self) -> None:
        """End the session, as `close`, without blocking asyncio's loop."""
        await super().aclose()
        self._pool.release(self._slot)
