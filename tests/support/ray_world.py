"""A Ray cluster of several nodes on this machine, for tests."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from ray.cluster_utils import Cluster

    from nsm.integrations.ray import Pool, PoolSandbox
    from packageindex import IndexServer

LOOPBACK = "127.0.0.2"
"""Ray replaces 127.0.0.1 by the address of the machine."""

SESSIONS = 20
PATIENCE_S = 60
OBJECT_STORE_BYTES = 80 * 2**20
QUICK_VERDICT = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}


class World:
    """A cluster whose nodes have stores of their own, as machines have, and an index of packages.

    Its head has no sessions.
    """

    def __init__(self, cluster: Cluster, directory: Path, index: IndexServer) -> None:
        self.cluster = cluster
        self.directory = directory
        self.index = index

    def add_node(self) -> Any:
        number = len(list(self.directory.iterdir()))
        store = self.directory / f"node-{number}"
        store.mkdir()
        variables = {
            "XDG_DATA_HOME": str(store),
            "PIP_INDEX_URL": self.index.url("/simple", host="127.0.0.1"),
        }
        return self.cluster.add_node(
            num_cpus=1,
            resources={"nsm_sessions": SESSIONS},
            object_store_memory=OBJECT_STORE_BYTES,
            node_ip_address=LOOPBACK,
            env_vars=variables,
        )

    def kill(self, node: Any) -> None:
        self.cluster.remove_node(node, allow_graceful=False)

    @contextmanager
    def further_node(self) -> Generator[Any]:
        """A node that may be killed in the block."""
        node = self.add_node()
        yield node
        if node in self.cluster.worker_nodes:
            self.kill(node)


def sandbox_on(pool: Pool, node: Any, **settings: Any) -> PoolSandbox:
    """A sandbox on that node: others are closed."""
    others: list[PoolSandbox] = []
    for _ in range(3 * SESSIONS):
        sandbox = pool.sandbox(**settings)
        if sandbox.node_id == node.node_id:
            for other in others:
                other.close()
            return sandbox
        others.append(sandbox)
    raise AssertionError("Ray placed no sandbox there")
