"""Cost of 1, 10, 100 and 1,000 sessions that have run code and keep a variable.

At the end each is asked for its variable. The supervisor's memory is its resident set, CPU time
four times three seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import trio

import nsm
from bench import PASS_NAME, Bench, connect, run_once, run_pass, settle, supervisor, supervisor_pid
from machine import available_mb, cpu_of_trees_s, cpu_s, resident_mb
from measure import (
    BUDGET,
    Comparison,
    Curve,
    Findings,
    LeftOut,
    Pair,
    Target,
    against_budget,
    timed,
)
from nsm.wire.errors import SessionLimitError
from parts.commands import BARE_NAME, PS_NAME, ps, run_bare
from parts.memory import kernel_mb, sessions_mb
from peers.kernels import KernelsMissingError

LEVELS = (1, 10, 100, 1000)
STARTS_AT_ONCE = 16
EXECS = 60
FRESH = 15
LISTS = 7
IDLE_WINDOWS = 4
IDLE_WINDOW_S = 3.0

MEMORY_BUDGET_MB = 150
LIST_BUDGET_MS = 300

SPARE_MEMORY = 0.7
"""Share of the available memory to use."""


@dataclass(slots=True, kw_only=True)
class Level:
    """Costs at one number of sessions.

    Attributes:
        execs_ms, fresh_ms, lists_ms, passes_ms, bare_ms: times of a call, of a one-shot run, of
            `nsm ps`, of `python -c pass`, of a Python that has what a client needs.
        supervisor_mb: its resident memory.
        sessions_mb: of all sessions together (PSS); None where we may not look.
    """

    sessions: int
    execs_ms: list[float] = field(default_factory=list[float])
    fresh_ms: list[float] = field(default_factory=list[float])
    lists_ms: list[float] = field(default_factory=list[float])
    passes_ms: list[float] = field(default_factory=list[float])
    bare_ms: list[float] = field(default_factory=list[float])
    supervisor_mb: float = 0.0
    sessions_mb: float | None = None


def measure(bench: Bench) -> Findings:
    """All levels with one supervisor that has nothing else to do."""
    levels: list[Level] = []
    have = 0
    with supervisor() as variables, connect(variables) as client:
        for number in LEVELS:
            if number > bench.most_sessions:
                yield LeftOut(what=f"{number} sessions", why="not asked for (--sessions)")
                break
            have = trio.run(create, variables, have, number)
            if have < number:
                yield LeftOut(what=f"{number} sessions", why=f"{have} fit here")
                break
            levels.append(look(client, variables, number))
        yield from rows(client, levels)
        check_variables(client, have)
    yield from curves(bench, levels)


async def create(variables: Mapping[str, str], first: int, end: int) -> int:
    """Make sessions that each run code and keep a variable, as many as fit.

    Returns:
        How many there are now, `first` included.
    """
    limit = trio.CapacityLimiter(STARTS_AT_ONCE)
    least_mb = (1 - SPARE_MEMORY) * available_mb()
    made = 0

    async def one(client: nsm.AsyncClient, number: int) -> None:
        nonlocal made
        async with limit:
            if available_mb() < least_mb:
                return
            with suppress(SessionLimitError):  # it has no descriptors for more
                result = await client.run(f"kept = {number}", env="python", session=name(number))
                assert result.exit_code == 0, result
                made += 1

    socket_path = variables["NSM_SOCKET"]
    async with (
        nsm.AsyncClient(socket_path=socket_path, autostart=False) as client,
        trio.open_nursery() as nursery,
    ):
        for number in range(first, end):
            nursery.start_soon(one, client, number)
    return first + made


def name(number: int | str) -> str:
    """A session's."""
    return f"kept-{number}"


def check_variables(client: nsm.Client, sessions: int) -> None:
    """All sessions are there, and those that are asked have what they kept."""
    names = names_of(client, sessions)
    for session in names[:: max(1, sessions // 20)]:
        check_variable(client, session)


def check_variable(client: nsm.Client, session: str) -> None:
    """A session has what it kept."""
    number = session.removeprefix(name(""))
    run_once(client, f"assert kept == {number}", session=session)


def names_of(client: nsm.Client, sessions: int) -> list[str]:
    """The names of the sessions, of which so many have to be there."""
    names = [row.name for row in client.sessions() if row.name]
    assert len(names) == sessions, "sessions were lost"
    return names


def look(client: nsm.Client, variables: Mapping[str, str], sessions: int) -> Level:
    """Measure everything with the sessions that there are."""
    level = Level(sessions=sessions)
    settle(client)
    level.supervisor_mb = resident_mb(supervisor_pid(client))
    with suppress(PermissionError):
        level.sessions_mb = sessions_mb(client)
    environment = {**os.environ, **variables}
    for number in range(EXECS):
        target = name(number % sessions)
        level.execs_ms.append(timed(partial(run_once, client, session=target)))
    for _ in range(FRESH):
        settle(client)
        level.fresh_ms.append(timed(lambda: run_once(client)))
    for _ in range(LISTS):
        level.lists_ms.append(ps(environment))
        level.passes_ms.append(run_pass())
        level.bare_ms.append(run_bare())
    return level


def rows(client: nsm.Client, levels: list[Level]) -> Findings:
    """The rows of the table for the most sessions, which are alive now."""
    first, last = levels[0], levels[-1]
    pid, words = supervisor_pid(client), f"{last.sessions:,} live sessions"
    idle, idle_sessions = idle_cpu(client)
    yield against_budget(
        f"{words}: the supervisor's memory",
        [last.supervisor_mb, resident_mb(pid)],
        MEMORY_BUDGET_MB,
        "MB",
    )
    yield Comparison(
        name=f"{words}: the supervisor's CPU time while nobody calls",
        peer="one CPU",
        pairs=idle,
        unit="s",
        target=Target(bound="≤", value=0.01),
    )
    yield Comparison(
        name=f"{words}: CPU time of the sessions while nobody calls",
        peer="one CPU",
        pairs=idle_sessions,
        unit="s",
    )
    yield against_budget(f"{words}: {PS_NAME}", last.lists_ms, LIST_BUDGET_MS, "ms")
    yield Comparison(
        name=BARE_NAME,
        peer=BUDGET,
        pairs=tuple((took, LIST_BUDGET_MS) for took in last.bare_ms),
        unit="ms",
        floor=True,
    )
    yield Comparison(
        name=f"{words}: {PS_NAME}",
        peer=PASS_NAME,
        pairs=tuple(zip(last.lists_ms, last.passes_ms, strict=True)),
        unit="ms",
    )
    for what, mine, theirs in (
        ("a call in one of them", last.execs_ms, first.execs_ms),
        ("a one-shot run beside them", last.fresh_ms, first.fresh_ms),
    ):
        yield Comparison(
            name=f"{words}: {what}",
            peer="the same with 1 session",
            pairs=tuple(zip(sorted(mine), sorted(theirs), strict=True)),
            unit="ms",
        )


def idle_cpu(client: nsm.Client) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
    """CPU seconds of the supervisor, and of all sessions together, by seconds of real time."""
    pid = supervisor_pid(client)
    pids = [row.pid for row in client.sessions()]
    settle(client)
    windows: list[Pair] = []
    sessions_began_s, began_s = cpu_of_trees_s(pids), time.perf_counter()
    for _ in range(IDLE_WINDOWS):
        used_s, from_s = cpu_s(pid), time.perf_counter()
        time.sleep(IDLE_WINDOW_S)
        windows.append((cpu_s(pid) - used_s, time.perf_counter() - from_s))
    lasted_s = time.perf_counter() - began_s
    return tuple(windows), ((cpu_of_trees_s(pids) - sessions_began_s, lasted_s),)


def curves(bench: Bench, levels: list[Level]) -> Findings:
    """Everything against the number of sessions."""
    first = levels[0]
    costs: dict[str, Callable[[Level], float]] = {
        "a call in a live session": lambda level: median(level.execs_ms),
        "a one-shot run": lambda level: median(level.fresh_ms),
        "nsm ps": lambda level: median(level.lists_ms),
        "the supervisor's memory": lambda level: level.supervisor_mb,
    }
    for label, cost in costs.items():
        points = tuple((level.sessions, cost(level) / cost(first)) for level in levels)
        yield Curve(plot="scale", name=label, points=points)
    try:
        bench.kernels.at_least(1)
    except KernelsMissingError:
        return
    unit_mb = kernel_mb(bench.kernels)
    with_supervisor = tuple((level.sessions, level.supervisor_mb / unit_mb) for level in levels)
    yield Curve(plot="memory", name="the supervisor", points=with_supervisor)
    together = tuple(
        (level.sessions, level.sessions_mb / unit_mb)
        for level in levels
        if level.sessions_mb is not None
    )
    if together:
        yield Curve(plot="memory", name="Python sessions", points=together)
