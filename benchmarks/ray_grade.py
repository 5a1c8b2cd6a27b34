# pyright: basic, reportMissingImports=false
"""Grade many programs on simulated nodes of a Ray cluster, one of which is killed in the middle.

make test-integrations ARGS='ray --collect-only'      # makes its virtual environment
build/integrations/ray/bin/python benchmarks/ray_grade.py --programs 10000 --nodes 4
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import ray
from ray.cluster_utils import Cluster

from machine import Counters, machine
from nsm import NsmError
from nsm.integrations.ray import Pool
from report import number

LOOPBACK = "127.0.0.2"
"""Ray replaces 127.0.0.1 by the address of the machine."""

SESSIONS = 200


@contextmanager
def simulated(nodes: int) -> Iterator[Cluster]:
    """Run a cluster of so many nodes, with stores of their own, and connect to it."""
    here = {"node_ip_address": LOOPBACK, "object_store_memory": 80 * 2**20}
    with tempfile.TemporaryDirectory(prefix="nsm-") as stores:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **here})
        try:
            for each in range(nodes):
                add_node(cluster, f"{stores}/{each}")
            ray.init(address=cluster.address, _node_ip_address=LOOPBACK, log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


def add_node(cluster: Cluster, store: str) -> None:
    """Add a node with a store of environments of its own."""
    cluster.add_node(
        num_cpus=1,
        resources={"nsm_sessions": SESSIONS},
        env_vars={"XDG_DATA_HOME": store},
        node_ip_address=LOOPBACK,
        object_store_memory=80 * 2**20,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Grade, and say what was counted; 1 if an answer is missing, wrong or twice there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=10_000, metavar="N")
    parser.add_argument("--nodes", type=int, default=4, metavar="N")
    options = parser.parse_args(argv)
    print(machine())
    with Counters() as counters, simulated(options.nodes) as cluster, Pool() as pool:
        codes = (
            f"def add(a, b):\n    return a + b\nassert add({n}, 1) == {n + 1}\nprint({n})"
            for n in range(options.programs)
        )
        answers: list[str] = []
        before_s, began_s = counters.usage().cpu_s + time.process_time(), time.perf_counter()
        for result in pool.map(codes, timeout_s=60, return_errors=True):
            answers.append(str(result) if isinstance(result, NsmError) else result.stdout.strip())
            if len(answers) == options.programs * 3 // 10:
                victim = next(iter(cluster.worker_nodes))
                print(f"after {len(answers)} answers: node {victim.node_id[:12]} is killed")
                cluster.remove_node(victim, allow_graceful=False)
        lasted_s = time.perf_counter() - began_s
        used_s = counters.usage().cpu_s + time.process_time() - before_s
    right = answers == [str(n) for n in range(options.programs)]
    print(
        f"{len(answers)} answers, {'all right and in order' if right else 'NOT all right'}, "
        f"in {number(lasted_s)} s: {number(len(answers) / lasted_s)} a second; "
        f"processor time {number(1000 * used_s / len(answers))} ms each, on {os.cpu_count()} cores"
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
