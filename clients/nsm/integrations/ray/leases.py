# pyright: basic, reportMissingImports=false
"""Sessions that Ray has placed on nodes: leases, and the slots in them.

A lease is a placement group with one bundle of the resource `nsm_sessions`. Ray's scheduler chooses
its node, and no process is started for it. A slot is the place of one session in a lease. Asking
Ray once for each session would be slow, as it places some tens of groups in a second. So leases
grow with the pool: each asks for as many sessions as a node has of it on average, so that the first
ones are small and go to different nodes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import ray
from ray.exceptions import RayError
from ray.util import placement_group, placement_group_table, remove_placement_group

from nsm.dataclass import dataclass
from nsm.integrations.ray.calls import HeadLostError, ask_head

if TYPE_CHECKING:
    from typing import Any

RESOURCE = "nsm_sessions"

MAX_LEASE = 256
"""Largest number of sessions in a lease. Ray cannot give those that stay free to others while some
of the same lease are used."""

PLACED_S = 1.0
"""Time for Ray to place a lease of several sessions; after that, the pool asks for half as many."""

KEPT_S = 5.0
"""Time that a pool keeps an unused lease, for the next call of a program that makes one call after
another."""

RETURNED_S = 5.0
"""Time for Ray to take all leases back when a pool is closed."""


@dataclass(slots=True, eq=False)
class Lease:
    """Sessions that Ray has placed on a node."""

    group: Any
    node_id: str
    size: int
    free: int
    returned: bool = False


@dataclass(slots=True, eq=False)
class Slot:
    """The place of one session."""

    lease: Lease
    released: bool = False

    @property
    def node_id(self) -> str:
        """Node of the session."""
        return self.lease.node_id


class Leases:
    """All leases of a pool. Used in the pool's loop only."""

    def __init__(self) -> None:
        self._leases: set[Lease] = set()
        self.waiting: deque[asyncio.Future[Slot]] = deque()
        self._asking: asyncio.Task[None] | None = None
        self._gone: set[str] = set()
        self._suspended: set[str] = set()
        self._closed = False
        self._returns: set[asyncio.Task[None]] = set()

    @property
    def used(self) -> int:
        """Slots that somebody has."""
        return sum(lease.size - lease.free for lease in self._leases)

    async def take(self) -> Slot:
        """Wait for a slot, as long as it takes. Whoever waits longest is served first."""
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self._serve()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and not future.exception():
                self.release(future.result())
            elif future in self.waiting:
                self.waiting.remove(future)
            raise

    def release(self, slot: Slot) -> None:
        """Give a slot back. Idempotent."""
        if slot.released:
            return
        slot.released = True
        lease = slot.lease
        lease.free += 1
        self._serve()
        self._return_later(lease)

    def lose_node(self, node_id: str) -> None:
        """Forget the leases of a node that has gone: Ray would place them elsewhere."""
        self._gone.add(node_id)
        for lease in [lease for lease in self._leases if lease.node_id == node_id]:
            self._return(lease)
        self._serve()

    def suspend(self, node_id: str) -> bool:
        """Hand out no slot of a node for a while; False if that is so already."""
        if node_id in self._suspended:
            return False
        self._suspended.add(node_id)
        return True

    def resume(self, node_id: str) -> None:
        """Hand out slots of a node again."""
        self._suspended.discard(node_id)
        self._serve()

    async def close(self) -> None:
        """Return all leases, and cancel what waits for one."""
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking], timeout=RETURNED_S)
        for lease in list(self._leases):
            self._return(lease)
        while self.waiting:
            self.waiting.popleft().cancel()
        if self._returns:
            await asyncio.wait(self._returns, timeout=RETURNED_S)

    def _return_later(self, lease: Lease) -> None:
        """Return a lease that nobody uses, if that is still so after a while."""

        def return_unused() -> None:
            if lease.free == lease.size:
                self._return(lease)

        if lease.free == lease.size:
            asyncio.get_running_loop().call_later(KEPT_S, return_unused)

    def _return(self, lease: Lease) -> None:
        self._leases.discard(lease)
        if not lease.returned:
            lease.returned = True
            self._remove(lease.group)

    def _remove(self, group: Any) -> None:
        """Have Ray take a group back; nobody waits for that, unless the pool is closed."""
        task = asyncio.create_task(_remove_group(group))
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    def _serve(self) -> None:
        """Hand out free slots, of the least used leases first, and ask Ray for more if need be."""
        while self.waiting:
            if self.waiting[0].done():
                self.waiting.popleft()
                continue
            usable = (it for it in self._leases if it.node_id not in self._suspended)
            lease = max(usable, key=lambda lease: lease.free / lease.size, default=None)
            if lease is None or lease.free == 0:
                break
            lease.free -= 1
            self.waiting.popleft().set_result(Slot(lease))
        if self.waiting and not self._closed and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(self._asked)

    def _asked(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if error := task.exception():
            while self.waiting:
                future = self.waiting.popleft()
                if not future.done():
                    future.set_exception(error)
            return
        self._serve()

    async def _ask(self) -> None:
        """Have Ray place one more lease."""
        nodes = max(1, len({lease.node_id for lease in self._leases}))
        total = sum(lease.size for lease in self._leases)
        size = max(1, min(MAX_LEASE, len(self.waiting), total // nodes))
        while True:
            bundles = [{RESOURCE: size}]
            group = await ask_head(placement_group, bundles, late=remove_placement_group)
            try:
                # `ready` would start a process on the node.
                placed = await ask_head(group.wait, PLACED_S)
                while not placed and size == 1 and self.waiting:
                    placed = await ask_head(group.wait, PLACED_S)
                if placed:
                    table = await ask_head(placement_group_table, group)
                    (node_id,) = table["bundles_to_node_id"].values()
                    gone = node_id in self._gone and not await ask_head(_is_alive, node_id)
                    break
            except BaseException:
                self._remove(group)
                raise
            self._remove(group)
            if not self.waiting:
                return
            size = max(1, size // 2)
        lease = Lease(group, node_id, size, size)
        if gone:
            self._return(lease)
            return
        self._leases.add(lease)
        self._serve()
        self._return_later(lease)


async def _remove_group(group: Any) -> None:
    with suppress(RayError, HeadLostError):
        await ask_head(remove_placement_group, group)


def _is_alive(node_id: str) -> bool:
    return any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes())
