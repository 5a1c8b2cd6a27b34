# pyright: basic, reportMissingImports=false
"""`RayPool`, which programs import as `Pool`: sessions on all nodes of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import weakref
from collections import deque
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.util import metrics

from nsm import Client, RunSettings, Sandbox, SandboxSettings, SharedSandbox
from nsm.integrations.ray.calls import Loop, ask_head, asked
from nsm.integrations.ray.cluster import NodeLostError, PoolNodes, usable_nodes
from nsm.wire.errors import BadRequestError, NotRunningError, NsmError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from typing import Any, Literal, NoReturn, Self, Unpack, overload

    from nsm import PackageArguments, RunResult
    from nsm.integrations.ray.cluster import PoolNode
    from nsm.integrations.ray.leases import Slot

AHEAD = 2
"""Groups of programs that `map` has under way or finished, for each that may run at once."""


class RayPool:
    """Sessions on all nodes of a Ray cluster that have the resource ``nsm_sessions``.

    On each there is one actor with a supervisor of this pool's own, which ends with the pool.
    Ray's scheduler places each session. All methods may be called from any thread.

    Example::

        ray.init(address="auto")
        with Pool() as pool:
            for result in pool.map(["print(6 * 7)"] * 1000, timeout_s=5):
                assert result.stdout == "42\\n"

    Attributes:
        closed: it was closed, and all its sessions have ended.
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
        self._retries = retries
        self.closed = False
        self._retried = metrics.Counter("nsm_retries", "Programs run again as their node has gone.")
        self._in_use = metrics.Gauge("nsm_slots_used", "Sessions in use.")
        self._waiting = metrics.Gauge("nsm_slots_waiting", "Calls that wait for a session.")
        directory = tempfile.mkdtemp(prefix="nsm-ray-pool-")
        self._removal = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self._loop = Loop()
        self._nodes = PoolNodes(directory, config or {}, environments or {})
        try:
            self._loop.wait(self._nodes.begin())
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._nodes)} nodes"
        return f"<nsm.integrations.ray.Pool {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Pool belongs to the process that made it; make another one in the task")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all sessions, and the supervisors. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.wait(self._nodes.end())
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
        return await self._loop.awaited(self._run_one(code, self._settings(env, settings)))

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
        at_once = at_once or self._loop.wait(ask_head(_twice_the_processors))
        limit = asyncio.Semaphore(at_once)
        under_way: deque[Future[Sequence[RunResult | NsmError]]] = deque()
        codes = iter(codes)
        most = AHEAD * at_once
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
        with self._released_on_error(self.take()) as slot:
            return PoolSandbox(self, slot, save, settings)

    async def asandbox(self, **settings: Unpack[SandboxSettings]) -> PoolSharedSandbox:
        """Make a session on some node for any thread and asyncio, as `nsm.SharedSandbox`.

        Use it as ``async with await pool.asandbox() as sandbox:``.
        """
        with self._released_on_error(await self._loop.awaited(self._nodes.leases.take())) as slot:
            node = await self._loop.awaited(self.node(slot))
            return await PoolSharedSandbox(self, slot, node.socket.path, settings).aopen()

    # Of sandboxes and tests

    def nodes(self) -> dict[str, dict[str, Any]]:
        """Facts about the supervisors, by node: `pid`, and `socket` on the node."""

        return self._loop.wait(self._nodes.facts())

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
                self._nodes.lose(slot.node_id)
                raise _gone(slot) from None

        return self._loop.wait(ask())

    def take(self) -> Slot:
        """Wait for the place of one more session."""
        return self._loop.wait(self._nodes.leases.take())

    def release(self, slot: Slot) -> None:
        """Give the place of a session back. Idempotent, and nothing once the pool is closed."""
        if not self.closed:
            self._loop.loop.call_soon_threadsafe(self._nodes.leases.release, slot)

    @contextmanager
    def _released_on_error(self, slot: Slot) -> Iterator[Slot]:
        """Give a session's place back if the block raises."""
        try:
            yield slot
        except BaseException:
            self.release(slot)
            raise

    async def node(self, slot: Slot) -> PoolNode:
        """The node of a session, where a supervisor is started first if there is none."""
        return await self._nodes.node(slot.node_id)

    @staticmethod
    def _settings(env: str, settings: RunSettings) -> dict[str, Any]:
        if unknown := sorted(settings.keys() - RunSettings.__annotations__):
            raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
        return {"env": env, **settings}

    async def _run_one(self, code: str, settings: dict[str, Any]) -> RunResult:
        (result,) = await self._run_group([code], settings, asyncio.Semaphore())
        if isinstance(result, NsmError):
            raise result
        return result

    async def _run_group(
        self, programs: Sequence[str], settings: dict[str, Any], limit: asyncio.Semaphore
    ) -> Sequence[RunResult | NsmError]:
        """Run programs one after the other on one node, and on another one if it goes."""
        for attempt in range(self._retries + 1):
            if attempt:
                self._retried.inc(len(programs))
            if attempt == 1 and len(programs) > 1:
                # One of them may be what ends nodes: the others are not to suffer from it.
                alone = (self._run_group([each], settings, limit) for each in programs)
                return [result for one in await asyncio.gather(*alone) for result in one]
            try:
                return await self._run_once(programs, settings, limit)
            except NodeLostError:
                pass
            except NsmError as error:  # the node's supervisor cannot be started
                return [error] * len(programs)
        lost = NodeLostError(
            f"the node went each of {self._retries + 1} times that this program ran",
            hint="Look at Ray's dashboard for the reason, such as a lack of memory.",
        )
        return [lost] * len(programs)

    async def _run_once(
        self, programs: Sequence[str], settings: dict[str, Any], limit: asyncio.Semaphore
    ) -> Sequence[RunResult | NsmError]:
        async with limit:
            slot = await self._nodes.leases.take()
            self._tell_use()
            try:
                node = await self.node(slot)
                return await asked(node.actor.run.remote(programs, settings))
            except ActorUnavailableError:
                self._nodes.doubt(slot.node_id)
                raise _gone(slot) from None
            except ActorDiedError:
                self._nodes.lose(slot.node_id)
                raise _gone(slot) from None
            finally:
                self._nodes.leases.release(slot)
                self._tell_use()

    def _tell_use(self) -> None:
        self._in_use.set(self._nodes.leases.used)
        self._waiting.set(len(self._nodes.leases.waiting))


def _gone(slot: Slot) -> NodeLostError:
    return NodeLostError(
        f"the node {slot.node_id[:12]} of the Ray cluster has gone",
        hint="Restore the sandbox, or make another one.",
    )


def _waited(
    under_way: deque[Future[Sequence[RunResult | NsmError]]],
) -> Sequence[RunResult | NsmError]:
    """Results of the oldest group, which stays in the queue until it has ended."""
    results = under_way[0].result()
    under_way.popleft()
    return results


def _twice_the_processors() -> int:
    return max(1, int(2 * sum(node["Resources"].get("CPU", 1) for node in usable_nodes())))


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
