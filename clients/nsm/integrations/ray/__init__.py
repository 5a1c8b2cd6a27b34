"""nsm on the nodes of a Ray cluster. docs/how-to/remote-hosts.md shows how it is used.

pool.py           `Pool`: what programs use, and its sandboxes
cluster.py        the nodes of a pool, with their actors
leases.py         sessions that Ray has placed
node.py           the actor of a node, which has its supervisor
forwarding.py     sockets here that lead to supervisors of other nodes
environments.py   configuration and environments of a node's supervisor
guard.py          ends a supervisor whose actor has ended
calls.py          calls of actors and of the cluster's head, from asyncio in a thread of its own

Ray's scheduler places sessions. A task or actor for each would be a process of 100 MB, where a
session takes 4 MB. All connections to a node pass through calls of its actor, so no node opens a
port. One supervisor belongs to one pool, whose configuration it has, and ends with it.
"""

from __future__ import annotations

from nsm.integrations.ray.calls import HeadLostError
from nsm.integrations.ray.cluster import NodeLostError
from nsm.integrations.ray.pool import PoolSandbox, PoolSharedSandbox
from nsm.integrations.ray.pool import RayPool as Pool

__all__ = ["HeadLostError", "NodeLostError", "Pool", "PoolSandbox", "PoolSharedSandbox"]
