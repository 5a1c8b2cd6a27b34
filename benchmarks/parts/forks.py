"""Forks of a running session, beside fresh one-shots, each other, and one session."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import nsm
from bench import Bench, connect, settle
from measure import Comparison, Findings, LeftOut, Pair, Target
from nsm.wire.errors import ForkRefusedError
from parts.memory import sessions_mb
from private_supervisor import private_supervisor

NAME = "fork of a live Python session with 20 MB, to its first answer"
ONE_SHOT = "a fresh one-shot"
BIG_NAME = "fork of a session with 1 GB in {}, to its first answer"
BIG_PEER = "the same with 20 MB"
MANY_NAME = "50 forks of one session, to their first answers"
MANY_PEER = "50 times one fork"
MEMORY_NAME = "a session with 500 MB and 20 idle forks of it, memory (PSS)"
MEMORY_PEER = "that session alone"

SMALL_MB, BIG_MB, MEMORY_MB = 20, 1000, 500
PAUSE_S = 0.1
"""Time for what ends, and for the next helper to be ready, which takes some 10 ms."""
MOST_OF_ONE = 12
"""Forks of one session, one after another: the kernel refuses the 17th."""
AT_ONCE = (16, 16, 16, 2)
IDLE = (16, 4)
CONFIG = "[defaults]\nmemory_mb = 3000\n"

DATA = """
import mmap
data = {made}
for place in range(0, len(data), 4096): data[place] = 1
x = 1
"""
SMALL_PAGES = "bytearray({mb} << 20)"
HUGE_PAGES = "mmap.mmap(-1, {mb} << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)"
ADVICE = "; data.madvise(mmap.MADV_HUGEPAGE)"


def measure(bench: Bench) -> Findings:
    """In turns, but for the memory."""
    with private_supervisor("nsm-bench-", CONFIG) as variables, connect(variables) as client:
        try:
            with original(client, SMALL_MB) as name:
                fork(client, name)
        except ForkRefusedError as error:
            yield LeftOut(what=NAME, why=error.message)
            return
        rounds = bench.some_rounds(0.5)
        pairs = tuple(beside_one_shot(client, rounds))
        yield Comparison(
            name=NAME, peer=ONE_SHOT, pairs=pairs, unit="ms", target=Target(bound="≤", value=5)
        )
        few = min(bench.some_rounds(0.2), MOST_OF_ONE)
        for kind, made in (
            ("small pages", SMALL_PAGES),
            ("huge pages, as numpy asks for them", HUGE_PAGES + ADVICE),
        ):
            with original(client, BIG_MB, made) as big, original(client, SMALL_MB) as small:
                yield Comparison(
                    name=BIG_NAME.format(kind),
                    peer=BIG_PEER,
                    pairs=tuple((fork(client, big), fork(client, small)) for _ in range(few)),
                    unit="ms",
                    target=Target(bound="≤", value=3),
                )
        yield Comparison(
            name=MANY_NAME,
            peer=MANY_PEER,
            pairs=tuple(many(client) for _ in range(bench.some_rounds(0.1, least=2))),
            unit="ms",
            target=Target(bound="≤", value=0.6),
        )
        yield from memory(client)


@contextmanager
def original(client: nsm.Client, mb: int, made: str = SMALL_PAGES) -> Generator[str]:
    """A session with data, which is forked once before it is measured; returns its name."""
    name = f"original-{mb}"
    code = DATA.format(made=made.format(mb=mb))
    result = client.run(code, env="python", session=name)
    assert result.exit_code == 0, result.stderr
    (first,) = client.fork(name).forks
    ask(client, first.name)
    client.kill(first.name)
    rest(client)
    yield name
    client.kill(name)


def fork(client: nsm.Client, name: str) -> float:
    """Fork a session and ask the fork; milliseconds until the answer.

    The fork ends with the session: its end would go on while the next one is measured.
    """
    began_s = time.perf_counter()
    (made,) = client.fork(name).forks
    ask(client, made.name)
    taken_ms = (time.perf_counter() - began_s) * 1000
    rest(client)
    return taken_ms


def rest(client: nsm.Client) -> None:
    """Wait until nothing of the last measurement goes on."""
    settle(client)
    time.sleep(PAUSE_S)


def ask(client: nsm.Client, session: str | None, code: str = "print(x)") -> None:
    result = client.run(code, env="python", session=session)
    assert result.stdout == "1\n", result.stderr


def beside_one_shot(client: nsm.Client, rounds: int) -> Iterator[Pair]:
    """Forks and one-shots in turns."""
    while rounds > 0:
        with original(client, SMALL_MB) as name:
            for _ in range(min(rounds, MOST_OF_ONE)):
                forked_ms = fork(client, name)
                began_s = time.perf_counter()
                ask(client, None, "print(1)")
                yield forked_ms, (time.perf_counter() - began_s) * 1000
                rest(client)
        rounds -= MOST_OF_ONE


def many(client: nsm.Client) -> Pair:
    """Fork a session many times, up to 16 at once, and one by one a few times."""
    with original(client, SMALL_MB) as name:
        one_ms = sorted(fork(client, name) for _ in range(5))[2]
        made: list[str] = []
        began_s = time.perf_counter()
        for count in AT_ONCE:
            names = [each.name for each in client.fork(name, count=count).forks]
            for each in names:
                ask(client, each)
            made += names
        taken_ms = (time.perf_counter() - began_s) * 1000
        client.kill(made)
        return taken_ms, one_ms * sum(AT_ONCE)


def memory(client: nsm.Client) -> Findings:
    """The memory of a session, and of it with idle forks."""
    with original(client, MEMORY_MB) as name:
        settle(client)
        try:
            alone_mb = sessions_mb(client, [name])
            made = [each.name for count in IDLE for each in client.fork(name, count=count).forks]
            settle(client)
            all_mb = sessions_mb(client, [name, *made])
        except PermissionError:
            yield LeftOut(what=MEMORY_NAME, why="we may not look into the agents of jails")
            return
        yield Comparison(
            name=MEMORY_NAME,
            peer=MEMORY_PEER,
            pairs=((all_mb, alone_mb),),
            unit="MB",
            target=Target(bound="≤", value=1.1),
        )
