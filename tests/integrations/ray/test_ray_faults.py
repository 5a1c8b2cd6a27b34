"""A pool whose node or head goes, and one whose user presses Ctrl-C."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nsm
from agent_process import becomes_true
from e2e_support import descendants
from nsm.wire.errors import SessionEndedError
from processes import collect
from ray_world import PATIENCE_S, SESSIONS, World, sandbox_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsm.integrations.ray import Pool

ENDLESS = "import time; time.sleep(1000)"


def sessions_of(facts: dict[str, Any]) -> list[nsm.SessionRow]:
    """Sessions of a node's supervisor that are somebody's."""
    with nsm.Client(socket_path=facts["socket"], autostart=False) as client:
        return client.sessions()


def running(pool: Pool) -> int:
    """Number of sessions of all nodes in which code runs."""
    rows = [row for facts in pool.nodes().values() for row in sessions_of(facts)]
    return len([row for row in rows if row.state == "running"])


# A node


def test_a_node_with_many_sessions_is_killed(world: World, pool: Pool) -> None:
    """Each call ends with a clear error, and no process stays."""
    with world.further_node() as node, ThreadPoolExecutor(SESSIONS) as threads:
        boxes = [sandbox_on(pool, node)]
        while len(boxes) < SESSIONS:
            boxes.append(sandbox_on(pool, node))
        calls = [threads.submit(box.run, ENDLESS) for box in boxes]
        facts = pool.nodes()[node.node_id]
        becomes_true(
            lambda: len([r for r in sessions_of(facts) if r.state == "running"]) == SESSIONS,
            "all run",
        )
        processes = descendants(facts["pid"])
        assert len(processes) > SESSIONS
        world.kill(node)
        for call in calls:
            with pytest.raises(SessionEndedError, match="has gone") as caught:
                call.result(PATIENCE_S)
            assert caught.value.data == {"node": node.node_id, "lost": True}
            assert caught.value.hint == "Make another sandbox, or restore a save of this one."
        for pid in (facts["pid"], *processes):
            collect(pid)
        for box in boxes:
            box.close()
        assert pool.run("print(42)").stdout == "42\n"


# Ctrl-C


def interrupt_once(count: int, pool: Pool) -> threading.Thread:
    """Press Ctrl-C when code runs in so many sessions."""

    def interrupt() -> None:
        becomes_true(lambda: running(pool) >= count, "code runs")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_ctrl_c_in_run_and_map(pool: Pool) -> None:
    """The code ends, no session stays, and the pool goes on."""
    calls: list[Callable[[], object]] = [
        lambda: pool.run(ENDLESS),
        lambda: list(pool.map([ENDLESS] * 8, group=2)),
    ]
    for call in calls:
        pressing = interrupt_once(1, pool)
        with pytest.raises(KeyboardInterrupt):
            call()
        pressing.join()
        becomes_true(lambda: not any(map(sessions_of, pool.nodes().values())), "no session")
        assert pool.run("print(42)").stdout == "42\n"


def test_ctrl_c_in_a_sandbox(pool: Pool) -> None:
    """The code is interrupted as in a session of this machine, and its variables stay."""
    with pool.sandbox() as sandbox:
        sandbox.run("x = 42")
        pressing = interrupt_once(1, pool)
        told = sandbox.run(f"x += 1\n{ENDLESS}")
        pressing.join()
        assert (told.interrupted, told.timed_out) == (True, False)
        after = sandbox.run("print(x)")
        assert after.stdout == "43\n", (told, after)


# The head


HEADLESS = """
import sys
import ray
from ray.cluster_utils import Cluster
from nsm.integrations.ray import HeadLostError, Pool, head
from processes import collect
from ray_world import LOOPBACK, OBJECT_STORE_BYTES

head.ANSWER_S = 3
common = {"node_ip_address": LOOPBACK, "object_store_memory": OBJECT_STORE_BYTES}
ours = {"gcs_rpc_server_reconnect_timeout_s": 30}
cluster = Cluster(
    initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": ours, **common}
)
cluster.add_node(num_cpus=1, resources={"nsm_sessions": 2}, **common)
ray.init(address=cluster.address, _node_ip_address=LOOPBACK, log_to_driver=False)
pool = Pool()
box = pool.sandbox()
box.run("x = 42")
((node_id, facts),) = pool.nodes().items()
print(facts["pid"], flush=True)
cluster.head_node.kill_gcs_server()
print(box.run("print(x)").stdout, end="", flush=True)
for call in (pool.sandbox, lambda: pool.run("1"), lambda: list(pool.map(["1"]))):
    try:
        call()
    except HeadLostError as error:
        print(error.code, flush=True)
print(box.run("print(x + 1)").stdout, end="", flush=True)
if sys.argv[1] == "close":
    pool.close()
    print("closed", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["close", "none"])
def test_the_head_goes(end: str) -> None:
    """Sessions go on, what needs the head says so, and nothing stays of the pool."""
    place = [str(Path(__file__).parents[2] / "support")]
    command = [sys.executable, "-c", HEADLESS, end]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        pid = int(process.stdout.readline())
        said = [process.stdout.readline() for _ in range(5 + (end == "close"))]
        assert said[:5] == ["42\n", *["head-lost\n"] * 3, "43\n"], said
        if end == "close":
            collect(pid)
            assert said[5] == "closed\n"
        # Ray ends the program, and says why.
        assert "Failed to connect to GCS" in process.stderr.read()
        collect(pid)
