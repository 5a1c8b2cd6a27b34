"""A Ray cluster with two nodes that stay, and a pool on it.

Ray is imported by the fixtures, so that runs without it can leave these tests out.
"""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from packageindex import index_server

if TYPE_CHECKING:
    from collections.abc import Generator

    from nsm.integrations.ray import Pool
    from ray_world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    import ray
    from ray.cluster_utils import Cluster

    from ray_world import LOOPBACK, OBJECT_STORE_BYTES, QUICK_VERDICT, World

    head = {
        "num_cpus": 0,
        "node_ip_address": LOOPBACK,
        "_system_config": QUICK_VERDICT,
        "object_store_memory": OBJECT_STORE_BYTES,
    }
    with index_server(None) as index:
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, _node_ip_address=LOOPBACK, log_to_driver=False)
        yield World(cluster, tmp_path_factory.mktemp("stores"), index)
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="session")
def nodes(world: World) -> list[Any]:
    """Two nodes that stay."""
    return [world.add_node() for _ in range(2)]


@pytest.fixture(scope="module")
def pool(nodes: list[Any]) -> Generator[Pool]:
    from nsm.integrations.ray import Pool

    with Pool() as it:
        yield it
