"""`RayPool`: sessions on all nodes of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import weakref
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.util import metrics
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nsm.client.operations import RunSettings, check_names
from nsm.dataclass import dataclass
from nsm.integrations.ray.calls import asked
from nsm.integrations.ray.forwarding import ForwardedSocket, Loop
from nsm.integrations.ray.leases import RESOURCE, Leases
from nsm.integrations.ray.node import NodeActor
from nsm.integrations.ray.sandboxes import PoolSandbox, PoolSharedSandbox
from nsm.wire.errors import NotRunningError, NsmError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from typing import Any, Literal, Self, Unpack, overload

    from nsm.client.builds import PackageArguments
    from nsm.client.sandbox import SandboxSettings
    from nsm.integrations.ray.environments import Shipment
    from nsm.integrations.ray.leases import Slot
    from nsm.wire.results import RunResult

CALLS_OF_A_SESSION = 8
"""Calls of the actor that a session may have under way: connections wait for their supervisor in
one each. Ray's own limit would be 1000 for a node."""

AHEAD = 2
"""Groups of programs that `map` has under way or finished, for each that may run at once."""


class NodeLostError(NsmError):
    """The node went each time that this program ran. Its result is unknown."""

    code = "node-lost"


@dataclass(slots=True, eq=False)
class PoolNode:
    """A node that the pool uses.

    Attributes:
        actor: handle of its `NodeActor`.
        socket: leads to its supervisor.
        facts: of `NodeActor.ready`.
    """

    node_id: str
    actor: Any
    socket: ForwardedSocket
    facts: dict[str, Any]


class RayPool:
    """Sessions on all nodes of a Ray cluster that have the resource ``nsm_sessions``.

    On each there is one actor with a supervisor of this pool's own, which ends with the pool.
    Ray's scheduler places each session. All methods may be called from any thread.

    Example::

        ray.init(address="auto")
        with Pool() as pool:
            for result in pool.map(["print(6 * 7)"] * 1000, timeout_s=5):
                assert result.stdout == "42\\n"
    """

    def __init__(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        environments: Mapping[str, PackageArguments] | None = None,
        retries: int = 3,
    ) -> None:
        """Start supervisors on the nodes that there are. Later ones join when Ray places a session
        there.

        Args:
            config: tables of the supervisors' `config.toml`. That of the nodes' user is not read.
            environments: environments from packages, as in `nsm.Client.builds.add_packages`. One
                node builds them, the others get them from it.
            retries: how often a program is run once more because its node has gone.

        Raises:
            NotRunningError: there is no cluster, or no node has the resource.
            NsmError: a supervisor cannot be started, or an environment cannot be made.
        """
        if not ray.is_initialized():
            raise NotRunningError(
                "this process is not connected to a Ray cluster",
                hint='Call `ray.init(address="auto")` first.',
            )
        self._config = dict(config or {})
        self._environments = dict(environments or {})
        self._retries = retries
        self._nodes: dict[str, asyncio.Task[PoolNode]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._shipments: Any = ray.put([])
        self._closed = False
        self._retried = metrics.Counter("nsm_retries", "Programs run again as their node has gone.")
        self._lost_nodes = metrics.Counter("nsm_nodes_lost", "Nodes that have gone.")
        self._in_use = metrics.Gauge("nsm_slots_used", "Sessions in use.")
        self._waiting = metrics.Gauge("nsm_slots_waiting", "Calls that wait for a session.")
        self._directory = tempfile.mkdtemp(prefix="nsm-ray-pool-")
        self._removal = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._loop = Loop()
        self._leases: Leases = self._loop.wait(_made(Leases))
        try:
            self._loop.wait(self._begin())
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._nodes)} nodes"
        return f"<nsm.integrations.ray.Pool {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all sessions, and the supervisors. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.wait(self._end())
        self._loop.close()
        self._removal()

    # Code

    def run(self, code: str, *, env: str = "python", **settings: Unpack[RunSettings]) -> RunResult:
        """Run code in a jail of its own on some node, as `nsm.Client.run` without a session.

        It waits until Ray has a place. If the node goes meanwhile, the code runs again elsewhere:
        what it has changed outside of its jail, it may change twice.

        Raises:
            NodeLostError: the node went each time.
            NsmError: the code could not be run. Code that fails is no error.
        """
        return self._loop.wait(self._run_one(code, self._settings(env, settings)))

    async def arun(
        self, code: str, *, env: str = "python", **settings: Unpack[RunSettings]
    ) -> RunResult:
        """Run code as `run`, awaited under asyncio. Cancelling interrupts the code."""
        work = self._run_one(code, self._settings(env, settings))
        return await asyncio.wrap_future(self._loop.start(work))

    if TYPE_CHECKING:

        @overload
        def map(
            self,
            codes: Iterable[str],
            *,
            env: str = "python",
            at_once: int | None = None,
            group: int = 4,
            return_errors: Literal[False] = False,
            **settings: Unpack[RunSettings],
        ) -> Iterator[RunResult]: ...
        @overload
        def map(
            self,
            codes: Iterable[str],
            *,
            env: str = "python",
            at_once: int | None = None,
            group: int = 4,
            return_errors: Literal[True],
            **settings: Unpack[RunSettings],
        ) -> Iterator[RunResult | NsmError]: ...

    def map(
        self,
        codes: Iterable[str],
        *,
        env: str = "python",
        at_once: int | None = None,
        group: int = 4,
        return_errors: bool = False,
        **settings: Unpack[RunSettings],
    ) -> Iterator[RunResult | NsmError]:
        """Run many programs, each in a jail of its own; results come in the programs' order.

        Programs are taken from `codes` as others end and as results are taken, so both may be
        endless.

        Args:
            at_once: how many run at the same time in the whole cluster; None for twice the
                processors of its nodes.
            group: how many are sent to a node together, where they run one after the other.
            return_errors: give an error in place of a result that cannot be had, and go on.
            env, settings: as for `run`.

        Raises:
            NsmError: one could not be run; see `return_errors`.
        """
        together = self._settings(env, settings)
        limit = asyncio.Semaphore(at_once or self._processors() * 2)
        under_way: deque[Future[list[RunResult | NsmError]]] = deque()
        codes = iter(codes)
        most = AHEAD * (at_once or self._processors() * 2)
        try:
            while True:
                while len(under_way) < most and (programs := list(islice(codes, group))):
                    work = self._run_group(programs, together, limit)
                    under_way.append(self._loop.start(work))
                if not under_way:
                    return
                for result in _waited(under_way):
                    if isinstance(result, NsmError) and not return_errors:
                        raise result
                    yield result
        finally:
            for future in under_way:
                future.cancel()

    # Sandboxes

    def sandbox(
        self, *, save: str | None = None, **settings: Unpack[SandboxSettings]
    ) -> PoolSandbox:
        """Make a session on some node, which ends with the block, as `nsm.Client.sandbox`.

        It waits until Ray has a place. Once the node has gone, its methods raise
        `SessionEndedError`.

        Args:
            save: absolute path of a file in a directory that all nodes share, in which
                `PoolSandbox.save` saves the session. `PoolSandbox.restore` makes it again of that.
            settings: as of `nsm.Client.sandbox`. `project` is a directory of the node; by default
                there is none.
        """
        slot = self._loop.wait(self._leases.take())
        try:
            return PoolSandbox(self, slot, save, settings)
        except BaseException:
            self.release(slot)
            raise

    async def asandbox(self, **settings: Unpack[SandboxSettings]) -> PoolSharedSandbox:
        """Make a session on some node for any thread and asyncio, as `nsm.SharedSandbox`.

        Use it as ``async with await pool.asandbox() as sandbox:``.
        """
        slot = await asyncio.wrap_future(self._loop.start(self._leases.take()))
        try:
            place = self._loop.start(self.node(slot))
            node = await asyncio.wrap_future(place)
            return await PoolSharedSandbox(self, slot, node.socket.path, settings).aopen()
        except BaseException:
            self.release(slot)
            raise

    # Of sandboxes and tests

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Facts about the supervisors, by node: `pid`, and `socket` on the node."""

        async def facts() -> dict[str, dict[str, Any]]:
            found = await asyncio.gather(*self._nodes.values(), return_exceptions=True)
            return {it.node_id: it.facts for it in found if isinstance(it, PoolNode)}

        return self._loop.wait(facts())

    def socket(self, slot: Slot) -> str:
        """Path of the socket on this machine that leads to a session's supervisor."""
        return self._loop.wait(self.node(slot)).socket.path

    def ask(self, slot: Slot, method: str, *arguments: Any) -> Any:
        """Call a method of the actor of a session's node."""

        async def ask() -> Any:
            node = await self.node(slot)
            try:
                return await asked(getattr(node.actor, method).remote(*arguments))
            except (ActorDiedError, ActorUnavailableError):
                self._lose(slot.node_id)
                raise NodeLostError(
                    f"the node {slot.node_id[:12]} of the Ray cluster has gone",
                    hint="Restore the sandbox, or make another one.",
                ) from None

        return self._loop.wait(ask())

    def take(self) -> Slot:
        """Wait for the place of one more session."""
        return self._loop.wait(self._leases.take())

    def release(self, slot: Slot) -> None:
        """Give the place of a session back. Idempotent, and nothing once the pool is closed."""
        if not self._closed:
            self._loop.loop.call_soon_threadsafe(self._leases.release, slot)

    async def node(self, slot: Slot) -> PoolNode:
        """The node of a session, where a supervisor is started first if there is none."""
        return await self._node(slot.node_id)

    async def _node(self, node_id: str) -> PoolNode:
        task = self._nodes.get(node_id)
        if task is None:
            task = self._nodes[node_id] = asyncio.create_task(self._start_node(node_id))
        try:
            return await asyncio.shield(task)
        except ActorDiedError as error:
            self._lose(node_id)
            raise NodeLostError(
                f"the node {node_id[:12]} has no supervisor: {error}",
                hint="Run `nsm doctor` there.",
            ) from error
        except NsmError:
            self._nodes.pop(node_id, None)
            raise

    def _doubt(self, node_id: str) -> None:
        """Place nothing more on a node that cannot be reached until Ray knows what it has.

        Ray takes some 20 seconds to say that a node has gone.
        """
        if node_id in self._nodes and self._leases.suspend(node_id):
            self._asking[node_id] = asyncio.create_task(self._find_out(node_id))

    async def _find_out(self, node_id: str) -> None:
        try:
            node = await self._node(node_id)
            await asked(node.actor.ready.remote())
        except (RayError, NsmError):
            self._lose(node_id)
        finally:
            self._leases.resume(node_id)
            del self._asking[node_id]

    def _lose(self, node_id: str) -> None:
        task = self._nodes.pop(node_id, None)
        if task is None or self._closed:
            return
        self._lost_nodes.inc()
        self._leases.lose_node(node_id)
        if task.done() and not task.cancelled() and not task.exception():
            task.result().socket.lose()

    @staticmethod
    def _settings(env: str, settings: RunSettings) -> dict[str, Any]:
        check_names(settings, RunSettings)
        return {"env": env, **settings}

    def _processors(self) -> int:
        nodes = [node for node in ray.nodes() if _sessions_of(node)]
        return max(1, int(sum(node["Resources"].get("CPU", 1) for node in nodes)))

    async def _run_one(self, code: str, settings: dict[str, Any]) -> RunResult:
        (result,) = await self._run_group([code], settings, asyncio.Semaphore())
        if isinstance(result, NsmError):
            raise result
        return result

    async def _run_group(
        self, programs: Sequence[str], settings: dict[str, Any], limit: asyncio.Semaphore
    ) -> list[RunResult | NsmError]:
        """Run programs one after the other on one node, and on another one if it goes."""
        for attempt in range(self._retries + 1):
            async with limit:
                slot = await self._leases.take()
                self._tell_use()
                try:
                    node = await self.node(slot)
                    return await asked(node.actor.run.remote(programs, settings))
                except ActorUnavailableError:
                    self._doubt(slot.node_id)
                except ActorDiedError:
                    self._lose(slot.node_id)
                finally:
                    self._leases.release(slot)
                    self._tell_use()
            self._retried.inc(len(programs))
            # One of them may be what ends nodes: the others are not to suffer from it.
            if attempt and len(programs) > 1:
                alone = (self._run_group([each], settings, limit) for each in programs)
                return [result for one in await asyncio.gather(*alone) for result in one]
        return [
            NodeLostError(
                f"the node went each of {self._retries + 1} times that this program ran",
                hint="Look at Ray's dashboard for the reason, such as a lack of memory.",
            )
            for _ in programs
        ]

    def _tell_use(self) -> None:
        self._in_use.set(self._leases.used)
        self._waiting.set(len(self._leases.waiting))

    async def _begin(self) -> None:
        nodes = [node for node in ray.nodes() if _sessions_of(node)]
        if not nodes:
            raise NotRunningError(
                f"no node of the Ray cluster has the resource {RESOURCE}",
                hint=f"Start nodes with `ray start --resources='{{\"{RESOURCE}\": 100}}'`.",
            )
        first, *others = (node["NodeID"] for node in nodes)
        if self._environments:
            built = await self._node(first)
            wanted = built.actor.build.remote(self._environments, ship=True)
            self._shipments = ray.put(await asked(wanted))
            others = [*others]
        else:
            others = [first, *others]
        await asyncio.gather(*map(self._node, others))

    async def _start_node(self, node_id: str) -> PoolNode:
        (capacity,) = (_sessions_of(node) for node in ray.nodes() if node["NodeID"] == node_id)
        shipments: list[Shipment] = ray.get(self._shipments)
        actor = (
            ray.remote(NodeActor)
            .options(
                num_cpus=0,
                max_concurrency=CALLS_OF_A_SESSION * max(capacity, 128),
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            .remote(node_id, capacity, self._config, shipments)
        )
        facts = await asked(actor.ready.remote())
        if shipments:
            await asked(actor.build.remote(self._environments, ship=False))
        path = os.path.join(self._directory, f"{node_id[:16]}.sock")
        with suppress(FileNotFoundError):
            os.unlink(path)  # of an actor that has ended on a node that has not
        socket = ForwardedSocket(actor, node_id, path, partial(self._lose, node_id))
        await socket.listen()
        return PoolNode(node_id, actor, socket, facts)

    async def _end(self) -> None:
        self._leases.close()
        for task in self._asking.values():
            task.cancel()
        found = await asyncio.gather(*self._nodes.values(), return_exceptions=True)
        nodes = [node for node in found if isinstance(node, PoolNode)]
        await asyncio.gather(*(self._end_node(node) for node in nodes))

    @staticmethod
    async def _end_node(node: PoolNode) -> None:
        await node.socket.close()
        with suppress(RayError, NsmError):
            await asked(node.actor.end.remote())
        ray.kill(node.actor)


async def _made(kind: type[Leases]) -> Leases:
    return kind()


def _waited(
    under_way: deque[Future[list[RunResult | NsmError]]],
) -> list[RunResult | NsmError]:
    """Results of the oldest group, which stays in the queue until it has ended."""
    results = under_way[0].result()
    under_way.popleft()
    return results


def _sessions_of(node: dict[str, Any]) -> int:
    return int(node["Resources"].get(RESOURCE, 0)) if node["Alive"] else 0
