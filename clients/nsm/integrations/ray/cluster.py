# pyright: basic, reportMissingImports=false
"""Nodes of a Ray cluster that a pool uses. Used in the pool's loop only."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import ray
from ray.exceptions import ActorDiedError, ActorUnschedulableError, RayError
from ray.util import metrics
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nsm.dataclass import dataclass
from nsm.integrations.ray.calls import ask_head, asked
from nsm.integrations.ray.forwarding import ForwardedSocket
from nsm.integrations.ray.leases import RESOURCE, Leases
from nsm.integrations.ray.node import NodeActor
from nsm.wire.errors import NotRunningError, NsmError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from nsm import PackageArguments

CALLS_OF_A_SESSION = 8
"""Largest number of calls of the actor that one session has under way: each of its connections
waits for the supervisor in a call of its own. Ray's own limit would be 1000 for a node."""

LEAST_CALLS = 1000


class NodeLostError(NsmError):
    """A node has gone, or its supervisor cannot be reached."""

    code = "node-lost"


@dataclass(slots=True, eq=False)
class PoolNode:
    """A node that the pool uses."""

    node_id: str
    actor: Any
    socket: ForwardedSocket
    facts: dict[str, Any]


class PoolNodes:
    """The nodes with their actors, and the sessions that Ray has placed on them."""

    def __init__(
        self,
        directory: str,
        config: Mapping[str, Any],
        environments: Mapping[str, PackageArguments],
    ) -> None:
        self.leases = Leases()
        self._directory = directory
        self._config = dict(config)
        self._environments = dict(environments)
        self._shipments: Any = []
        self._nodes: dict[str, asyncio.Task[PoolNode]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._lost_nodes = metrics.Counter("nsm_nodes_lost", "Nodes that have gone.")

    def __len__(self) -> int:
        return len(self._nodes)

    async def begin(self) -> None:
        """Start a supervisor on each node. The first one builds environments for all.

        Raises:
            NotRunningError: no node has the resource.
            NsmError: a supervisor cannot be started, or an environment cannot be made.
        """
        nodes = deque(node["NodeID"] for node in await ask_head(usable_nodes))
        while self._environments and not self._shipments:
            await self._build(nodes.popleft())
        await asyncio.gather(*map(self._begin_on, nodes))

    async def _begin_on(self, node_id: str) -> PoolNode | None:
        """Start a supervisor; None if the node has gone meanwhile."""
        try:
            return await self.node(node_id)
        except NodeLostError:
            if node_id in {node["NodeID"] for node in await ask_head(usable_nodes)}:
                raise
            return None

    async def _build(self, node_id: str) -> None:
        """Have a node build the environments, and keep them for the others."""
        node = await self._begin_on(node_id)
        if node is not None:
            built = node.actor.build.remote(self._environments, ship=True)
            await asked(node.actor.built.remote(built))
            self._shipments = built

    async def end(self) -> None:
        """End all supervisors, and wait for that."""
        self._closed = True
        await self.leases.close()
        for task in self._asking.values():
            task.cancel()
        found = await asyncio.gather(*self._nodes.values(), return_exceptions=True)
        await asyncio.gather(*(_end(node) for node in found if isinstance(node, PoolNode)))

    async def facts(self) -> dict[str, dict[str, Any]]:
        """Facts about the supervisors, by node."""
        found = await asyncio.gather(*self._nodes.values(), return_exceptions=True)
        return {it.node_id: it.facts for it in found if isinstance(it, PoolNode)}

    async def node(self, node_id: str) -> PoolNode:
        """A node, where a supervisor is started first if there is none.

        Raises:
            NodeLostError: it has gone meanwhile, or its actor cannot be started.
            NsmError: its supervisor cannot be started.
        """
        task = self._nodes.get(node_id)
        if task is None:
            task = self._nodes[node_id] = asyncio.create_task(self._start(node_id))
        try:
            return await asyncio.shield(task)
        except (ActorDiedError, ActorUnschedulableError) as error:
            self.lose(node_id)
            raise NodeLostError(
                f"the node {node_id[:12]} has no supervisor: {error}",
                hint="Run `nsm doctor` there.",
            ) from error
        except NsmError:
            self._nodes.pop(node_id, None)
            raise

    def doubt(self, node_id: str) -> None:
        """Place nothing more on a node that cannot be reached until Ray knows whether it has gone.

        Ray takes some 20 seconds for that.
        """
        if node_id in self._nodes and self.leases.suspend(node_id):
            self._asking[node_id] = asyncio.create_task(self._find_out(node_id))

    def lose(self, node_id: str) -> None:
        """Forget a node that has gone, and tell those who have sessions there. Idempotent."""
        task = self._nodes.pop(node_id, None)
        if task is None or self._closed:
            return
        self._lost_nodes.inc()
        self.leases.lose_node(node_id)
        if task.done() and not task.cancelled() and not task.exception():
            task.result().socket.lose()

    async def _find_out(self, node_id: str) -> None:
        try:
            node = await self.node(node_id)
            await asked(node.actor.ready.remote())
        except (RayError, NsmError):
            self.lose(node_id)
        finally:
            self.leases.resume(node_id)
            del self._asking[node_id]

    async def _start(self, node_id: str) -> PoolNode:
        nodes = await ask_head(ray.nodes)
        capacity = next((sessions_of(node) for node in nodes if node["NodeID"] == node_id), 0)
        actor = (
            ray.remote(NodeActor)
            .options(
                num_cpus=0,
                max_concurrency=max(LEAST_CALLS, CALLS_OF_A_SESSION * capacity),
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(node_id, capacity, self._config, self._shipments)
        )
        try:
            facts = await asked(actor.ready.remote())
            if self._shipments:
                await asked(actor.build.remote(self._environments, ship=False))
        except NsmError:
            await ask_head(ray.kill, actor)
            raise
        path = os.path.join(self._directory, f"{node_id[:16]}.sock")
        with suppress(FileNotFoundError):
            os.unlink(path)  # of an actor that has ended on a node that has not
        socket = ForwardedSocket(actor, node_id, path, partial(self.lose, node_id))
        await socket.listen()
        return PoolNode(node_id, actor, socket, facts)


async def _end(node: PoolNode) -> None:
    await node.socket.close()
    with suppress(RayError, NsmError):
        await asked(node.actor.end.remote())
    with suppress(RayError, NsmError):
        await ask_head(ray.kill, node.actor)


def usable_nodes() -> list[dict[str, Any]]:
    """List the nodes that have the resource."""
    nodes = [node for node in ray.nodes() if sessions_of(node)]
    if not nodes:
        raise NotRunningError(
            f"no node of the Ray cluster has the resource {RESOURCE}",
            hint=f"Start nodes with `ray start --resources='{{\"{RESOURCE}\": 100}}'`.",
        )
    return nodes


def sessions_of(node: dict[str, Any]) -> int:
    """Sessions that Ray may place on a node; none once it has gone."""
    return int(node["Resources"].get(RESOURCE, 0)) if node["Alive"] else 0
