# pyright: basic, reportMissingImports=false
"""Cost against the number of nodes of a Ray cluster, simulated on this machine.

Each node has a raylet, an actor and a supervisor of its own. Processor time is counted for all that
this starts (perf_event_open(2)), and for each kind of process that lives throughout. It needs Ray:

    make test-integrations ARGS='ray --collect-only'      # makes its virtual environment
    build/integrations/ray/bin/python benchmarks/ray_scale.py --nodes 1 2 4 8
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from machine import GONE, Counters, cpu_s, machine, resident_mb, tree
from measure import percentile
from nsm.integrations.ray import Pool
from ray_grade import add_node, simulated
from report import aligned, number

PROGRAMS_OF_A_NODE = 100
CALLS = 100
KEPT_SESSIONS = 40
IDLE_S = 5.0

KINDS = {
    "gcs_server": "Ray's head",
    "raylet/raylet": "raylets",
    "agent": "Ray's agents",
    "NodeActor": "actors",
    "nsmd": "supervisors",
}
"""Kinds of processes by a part of their command lines, of which the first counts."""


@dataclass(slots=True, kw_only=True)
class Costs:
    """Costs with one number of nodes.

    Attributes:
        program_ms: processor time of a one-shot, of all processes.
        call_ms: the same of a call in a live session, through Ray.
        of_program, of_call: of these, by kind of process.
        idle: processor time in a second while nobody calls, by kind, in milliseconds.
        rate: one-shots a second.
        latency_ms: median time of a call in a live session.
        memory_mb: resident, by kind.
    """

    nodes: int
    program_ms: float = 0.0
    call_ms: float = 0.0
    of_program: dict[str, float] = field(default_factory=dict[str, float])
    of_call: dict[str, float] = field(default_factory=dict[str, float])
    idle: dict[str, float] = field(default_factory=dict[str, float])
    rate: float = 0.0
    latency_ms: float = 0.0
    memory_mb: dict[str, float] = field(default_factory=dict[str, float])


def serve_mcp(socket_path: str) -> None:
    """Have a supervisor load what MCP clients need, which it would do in the measurement."""
    ping = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'
    environment = {**os.environ, "NSM_SOCKET": socket_path}
    shim = [os.path.join(os.path.dirname(sys.executable), "nsm-mcp")]
    done = subprocess.run(shim, input=ping, env=environment, capture_output=True, check=True)
    assert b'"id"' in done.stdout, done


def kinds(pool: Pool) -> dict[int, str]:
    """Kinds of the processes that live throughout, by process id."""
    supervisors = [facts["pid"] for facts in pool.nodes().values()]
    found = dict.fromkeys(supervisors, "supervisors") | {os.getpid(): "the program itself"}
    for pid in tree([os.getpid()]):
        if pid not in found:
            with suppress(*GONE):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                words = (kind for word, kind in KINDS.items() if word in command)
                found[pid] = next(words, "others of Ray")
    return found


def used_by(processes: dict[int, str]) -> dict[str, float]:
    """Processor time so far, seconds by kind."""
    used: defaultdict[str, float] = defaultdict(float)
    for pid, kind in processes.items():
        used[kind] += cpu_s(pid)
    return used


def spent(
    pool: Pool, counters: Counters, work: Callable[[], object], times: int
) -> tuple[float, dict[str, float]]:
    """Processor time of one of so many pieces of work: of everything, and by kind; milliseconds."""
    processes = kinds(pool)
    before, everything = used_by(processes), counters.usage().cpu_s + time.process_time()
    work()
    total_s = counters.usage().cpu_s + time.process_time() - everything
    after = used_by(processes)
    return 1000 * total_s / times, {
        kind: 1000 * (after[kind] - before[kind]) / times for kind in sorted(after)
    }


def measure(pool: Pool, counters: Counters, nodes: int) -> Costs:
    """Measure one number of nodes."""
    costs = Costs(nodes=nodes)
    for facts in pool.nodes().values():
        serve_mcp(facts["socket"])
    list(pool.map(["pass"] * (10 * nodes), timeout_s=60))
    programs = ["print(1 + 1)"] * (PROGRAMS_OF_A_NODE * nodes)
    began_s = time.perf_counter()
    costs.program_ms, costs.of_program = spent(
        pool, counters, lambda: list(pool.map(programs, timeout_s=60)), len(programs)
    )
    costs.rate = len(programs) / (time.perf_counter() - began_s)
    with ExitStack() as stack:
        sandboxes = [stack.enter_context(pool.sandbox()) for _ in range(nodes)]
        for sandbox in sandboxes:
            sandbox.run("x = 0")
        taken: list[float] = []

        def call() -> None:
            for number_of_call in range(CALLS * nodes):
                began_s = time.perf_counter()
                sandboxes[number_of_call % nodes].run("x += 1")
                taken.append((time.perf_counter() - began_s) * 1000)

        costs.call_ms, costs.of_call = spent(pool, counters, call, CALLS * nodes)
        costs.latency_ms = percentile(taken, 50)
    _, costs.idle = spent(pool, counters, lambda: time.sleep(IDLE_S), round(IDLE_S))
    memory: defaultdict[str, float] = defaultdict(float)
    for pid, kind in kinds(pool).items():
        with suppress(*GONE):
            memory[kind] += resident_mb(pid)
    costs.memory_mb = dict(memory)
    return costs


def of_a_session(pool: Pool) -> list[list[str]]:
    """Measure a further session: descriptors and memory of the processes that live throughout."""
    (facts,) = pool.nodes().values()

    def descriptors(pid: int) -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    watched = {"the supervisor": facts["pid"], "the actor": facts["process"]}
    watched["the program itself"] = os.getpid()
    with ExitStack() as stack:
        stack.enter_context(pool.sandbox()).run("x = 1")
        before = {name: (descriptors(pid), resident_mb(pid)) for name, pid in watched.items()}
        for _ in range(KEPT_SESSIONS):
            stack.enter_context(pool.sandbox()).run("x = 1")
        rows = [["one more session takes of", "descriptors", "KB"]]
        for name, pid in watched.items():
            more, grown = descriptors(pid) - before[name][0], resident_mb(pid) - before[name][1]
            kilobytes = number(max(0.0, 1000 * grown / KEPT_SESSIONS))
            rows.append([name, number(more / KEPT_SESSIONS), kilobytes])
    return rows


def tables(costs: Sequence[Costs]) -> Iterable[list[list[str]]]:
    """All costs, a column for each number of nodes."""
    header = [str(each.nodes) for each in costs]
    yield [
        ["nodes", *header],
        ["one-shots a second", *(number(each.rate) for each in costs)],
        ["one-shot, processor time, ms", *(number(each.program_ms) for each in costs)],
        ["call, processor time, ms", *(number(each.call_ms) for each in costs)],
        ["call, median time, ms", *(number(each.latency_ms) for each in costs)],
    ]
    by_kind: dict[str, Callable[[Costs], dict[str, float]]] = {
        "one-shot, ms of": lambda each: each.of_program,
        "call, ms of": lambda each: each.of_call,
        "idle, ms in a second of": lambda each: each.idle,
        "resident, MB of": lambda each: each.memory_mb,
    }
    for title, values in by_kind.items():
        names = sorted({name for each in costs for name in values(each)})
        yield [
            [title, *header],
            *([name, *(number(values(each).get(name, 0.0)) for each in costs)] for name in names),
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure with each number of nodes; nodes are added to one cluster."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    options = parser.parse_args(argv)
    taken: list[Costs] = []
    rows: list[list[str]] = []
    with (
        Counters() as counters,
        tempfile.TemporaryDirectory(prefix="nsm-") as stores,
        simulated(0) as cluster,
    ):
        for wanted in sorted(options.nodes):
            while len(cluster.worker_nodes) < wanted:
                add_node(cluster, f"{stores}/{len(cluster.worker_nodes)}")
            print(f"ray_scale: {wanted} nodes", file=sys.stderr)
            with Pool() as pool:
                taken.append(measure(pool, counters, wanted))
                if wanted == 1:
                    rows = of_a_session(pool)
    print(machine())
    for table in [*tables(taken), *([rows] if rows else [])]:
        print(f"\n{aligned(table)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
