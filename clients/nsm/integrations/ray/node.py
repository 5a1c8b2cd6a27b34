# pyright: basic, reportMissingImports=false
"""Actor of one node: it has the node's supervisor, and passes on what others ask of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import ray
from ray.util import metrics

from nsm import AsyncClient, Client, NsmError
from nsm.integrations.ray import environments, guard
from nsm.saves import Saves
from nsm.startup import start
from nsm.wire.errors import NotRunningError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from nsm import PackageArguments, RunResult
    from nsm.integrations.ray.environments import Shipment

READ_BYTES = 64 * 1024
"""Bytes that a call brings at most. Ray sends answers below 100 KB without its object store."""

SPARE_SESSIONS = 64
"""Sessions beyond those that Ray places: spares, forks, and those that are about to end."""

MAX_SAVE_MB = 10 * 1024
"""Most that a save may unpack to, as of those in nsm's own directory."""

COUNT_EVERY_S = 5.0
"""Time between two looks at the number of live sessions, for the dashboard. Ray collects its
metrics every 10 s."""


class NodeActor:
    """A node's supervisor.

    Args:
        node_id: of Ray.
        capacity: sessions that Ray places on the node.
        config: tables of the supervisor's `config.toml`.
        shipments: environments that another node has built.
    """

    def __init__(
        self,
        node_id: str,
        capacity: int,
        config: Mapping[str, Any],
        shipments: Sequence[Shipment],
    ) -> None:
        self._capacity = capacity
        self._config = config
        self._shipments = shipments
        self._starting = asyncio.Lock()
        self._facts: dict[str, Any] | None = None
        self._tunnels: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
        self._tunnels_made = 0
        self._ending = False
        tags = ("node",)
        self._sessions = metrics.Gauge(
            "nsm_sessions_live", "Live sessions of the node, with spares.", tag_keys=tags
        )
        self._executions = metrics.Counter(
            "nsm_executions", "Programs that pools have run.", tag_keys=(*tags, "outcome")
        )
        self._seconds = metrics.Histogram(
            "nsm_execution_seconds",
            "Time of a program on its node, with its jail.",
            boundaries=[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30],
            tag_keys=tags,
        )
        for metric in (self._sessions, self._executions, self._seconds):
            metric.set_default_tags({"node": node_id[:12]})

    @ray.method(max_task_retries=-1)
    async def ready(self) -> dict[str, Any]:
        """Start the supervisor, if that has not been done; facts about it.

        A caller that cannot reach the actor waits until it answers or Ray says that it has ended.

        Raises:
            NsmError: the supervisor cannot be started.
        """
        async with self._starting:
            if self._facts is None:
                await asyncio.to_thread(self._start)
                self._client = AsyncClient(
                    socket_path=self._socket, name="ray", scope="ray", project=None
                )
                await self._client.__aenter__()
                pid = self._client.server.pid
                self._facts = {"pid": pid, "socket": self._socket, "process": os.getpid()}
                self._counting = asyncio.create_task(self._count_sessions())
            return self._facts

    def _start(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="nsm-ray-")
        self._socket = os.path.join(self._directory, guard.SOCKET)
        reader, self._guard = os.pipe()  # the guard waits while the second end is open
        subprocess.run(
            [sys.executable, "-P", guard.__file__, self._directory],
            stdin=reader,
            cwd="/",
            check=True,
        )
        os.close(reader)
        # Of this process and of the supervisors that it starts. HOME stays: pip's configuration
        # and the store of environments are the user's.
        os.environ["NSM_SOCKET"] = self._socket
        os.environ["XDG_CONFIG_HOME"] = os.path.join(self._directory, "config")
        os.environ["XDG_STATE_HOME"] = os.path.join(self._directory, "state")
        environments.write_config(self._config, max_sessions=self._capacity + SPARE_SESSIONS)
        for shipment in self._shipments:
            environments.unpack(shipment)
        self._shipments = ()
        start.connect(self._socket).close()
        if configured := self._config.get("environments"):
            with self._blocking_client() as client:
                environments.check(client, configured)

    async def _count_sessions(self) -> None:
        while True:
            try:
                status = await self._client.status()
                self._sessions.set(status.sessions)
            except NsmError:  # a supervisor that comes back is asked again
                pass
            await asyncio.sleep(COUNT_EVERY_S)

    async def run(self, programs: Sequence[str], settings: dict[str, Any]) -> list[Any]:
        """Run programs one after the other, each in a jail of its own.

        Returns:
            For each a `RunResult`, or the `NsmError` because of which it has none.
        """
        return [await self._run_one(code, settings) for code in programs]

    async def _run_one(self, code: str, settings: dict[str, Any]) -> RunResult | NsmError:
        began_s = time.perf_counter()
        try:
            result = await self._client.run(code, **settings)
        except NsmError as error:
            self._executions.inc(tags={"outcome": error.code})
            return error
        outcome = "ok" if result.exit_code == 0 else "timeout" if result.timed_out else "failed"
        self._executions.inc(tags={"outcome": outcome})
        self._seconds.observe(time.perf_counter() - began_s)
        return result

    # A connection to the supervisor's socket, byte for byte. Descriptors do not pass.

    async def open_tunnel(self) -> int:
        """Connect to the supervisor, which is started again if it has ended.

        Raises:
            NotRunningError: it cannot be started, or the pool is closed.
        """
        if self._ending:
            raise NotRunningError("the pool is closed", hint="Make another one.")
        connection = await asyncio.to_thread(start.connect, self._socket)
        connection.setblocking(False)
        self._tunnels_made += 1
        number = self._tunnels_made
        self._tunnels[number] = await asyncio.open_unix_connection(sock=connection)
        return number

    async def send(self, tunnel: int, data: bytes) -> None:
        """Pass bytes on to the supervisor. The caller waits before it sends more."""
        writer = self._tunnels[tunnel][1]
        writer.write(data)
        await writer.drain()

    async def receive(self, tunnel: int) -> bytes:
        """Wait for bytes of the supervisor; empty at the end."""
        return await self._tunnels[tunnel][0].read(READ_BYTES)

    async def close_tunnel(self, tunnel: int) -> None:
        """Close a connection."""
        _, writer = self._tunnels.pop(tunnel)
        writer.close()

    # Saves pass descriptors, so the node makes them itself.

    async def save(self, session: str, path: str) -> None:
        """Save a session in a file, which other nodes see if its directory is shared."""

        def save() -> None:
            with self._blocking_client() as client:
                Saves(client).save(session, path)

        await asyncio.to_thread(save)

    async def restore(self, path: str, name: str, env: str) -> tuple[str, str]:
        """Make a session of a save; returns its id and name."""

        def restore() -> tuple[str, str]:
            with self._blocking_client() as client:
                restored = Saves(client).restore(path, name, env=env, max_mb=MAX_SAVE_MB)
                return restored.id, restored.name

        return await asyncio.to_thread(restore)

    def _blocking_client(self) -> Client:
        return Client(socket_path=self._socket, name="ray", scope="ray", project=None)

    async def build(self, wanted: Mapping[str, PackageArguments], *, ship: bool) -> list[Shipment]:
        """Make environments from packages, and pack them for other nodes if that is wanted."""

        def build() -> list[Shipment]:
            with self._blocking_client() as client:
                return environments.build(client, wanted, ship=ship)

        return await asyncio.to_thread(build)

    async def built(self, shipments: Sequence[Shipment]) -> None:
        """Return once `build`, whose result is given as a reference, has succeeded."""

    async def end(self) -> None:
        """End the supervisor with all its sessions."""
        # Else whoever asks here next would start another one.
        self._ending = True
        self._counting.cancel()
        await self._client.aclose()
        await asyncio.to_thread(guard.end, self._directory)
        os.close(self._guard)
