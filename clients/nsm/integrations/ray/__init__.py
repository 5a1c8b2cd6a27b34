"""nsm on the nodes of a Ray cluster. docs/how-to/ray.md shows how it is used.

pool.py           `Pool`: what programs use
sandboxes.py      sandboxes of a pool
cluster.py        the nodes of a pool, with their actors
leases.py         sessions that Ray has placed
head.py           calls that the cluster's head answers
node.py           the actor of a node, which has its supervisor
forwarding.py     sockets here that lead to supervisors of other nodes
environments.py   configuration and environments of a node's supervisor
guard.py          ends a supervisor whose actor has ended
calls.py          calls of actors from asyncio
"""

from __future__ import annotations

from nsm.integrations.ray.cluster import NodeLostError
from nsm.integrations.ray.head import HeadLostError
from nsm.integrations.ray.pool import RayPool as Pool
from nsm.integrations.ray.sandboxes import PoolSandbox, PoolSharedSandbox

__all__ = ["HeadLostError", "NodeLostError", "Pool", "PoolSandbox", "PoolSharedSandbox"]
