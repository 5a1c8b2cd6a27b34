"""Cost of the system call filter and of the policy file: forks and calls with and without."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from statistics import median

import trio

from bench import Bench
from measure import Comparison, Findings, LeftOut, Pair, Target
from nsmd.agent_link.frames import ResultFrame
from nsmd.agent_link.link import AgentLink
from nsmd.environments.host_presets import find_environments
from nsmd.fdstore.store import NoStore
from nsmd.host.source_watcher import open_source_watcher
from nsmd.jail import BwrapLauncher, Launcher, find_bwrap
from nsmd.jail.arguments import TEMPLATE_PATH
from nsmd.jail.program_code import ProgramCode, source_of
from nsmd.jail.templates import TemplateLauncher
from nsmd.model.settings import DEFAULT_JAIL_UID, Settings
from nsmd.model.values import JailSizes, JailSpec, ReadOnlyBind

PEER = "the same without filter and policy file"
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
FORKS_A_ROUND = 5
CALLS_A_ROUND = 50
OPENS = "[open('/dev/null').close() for _ in range(100)]"
"""Some 600 system calls, each of which the filter looks at."""

LET_ALL_THROUGH = bytes((0x06, 0, 0, 0, 0, 0, 0xFF, 0x7F))
"""A filter that returns SECCOMP_RET_ALLOW (linux/seccomp.h) at once."""


class _Source(ProgramCode):
    """A program that is what it is for every Python."""

    def __init__(self, source: bytes) -> None:
        super().__init__("sandbox_template", TEMPLATE_PATH)
        self._source = source

    async def for_python(self, path: str, binds: Sequence[ReadOnlyBind] = ()) -> bytes:
        del path, binds
        return self._source


class _Unshown(BwrapLauncher):
    """Starts templates whose forks show no policy."""

    def __init__(self, bwrap_path: str) -> None:
        super().__init__(bwrap_path, DEFAULT_JAIL_UID)
        source = source_of("sandbox_template")
        unshown = source.replace(
            b"\ndef main(", b"\nshow_policy = lambda *_: None\n\n\ndef main(", 1
        )
        assert unshown != source, "the template's program has changed"
        self._template_code = _Source(unshown)


def measure(bench: Bench) -> Findings:
    """Forks, then calls."""
    bwrap = find_bwrap(SEARCH_PATH)
    environments = {each.name: each for each in find_environments(Settings(), SEARCH_PATH)}
    python = environments["python"]
    if bwrap is None or python.problem is not None:
        why = python.problem or "bubblewrap is missing: `make setup` installs it"
        yield LeftOut(what="the costs of filter and policy", why=why)
        return
    spec = JailSpec(environment=python, project=None, sizes=JailSizes())
    ours = BwrapLauncher(bwrap, DEFAULT_JAIL_UID)
    theirs = _Unshown(bwrap)
    if ours.system_calls is None:
        yield LeftOut(what="the cost of the filter", why="there is none for this processor")
        return
    forks, calls, opens = trio.run(partial(_pairs, ours, theirs, spec, bench.rounds))
    yield Comparison(
        name="a fork, until its agent is ready, with filter and policy",
        peer=PEER,
        pairs=forks,
        unit="ms",
        target=Target(bound="≤", value=1.25),
    )
    yield Comparison(
        name="a call in it, without the supervisor",
        peer=PEER,
        pairs=calls,
        unit="ms",
        target=Target(bound="≤", value=1.1),
    )
    yield Comparison(name="a call that opens 100 files", peer=PEER, pairs=opens, unit="ms")


async def _pairs(
    ours: BwrapLauncher, theirs: BwrapLauncher, spec: JailSpec, rounds: int
) -> tuple[tuple[Pair, ...], tuple[Pair, ...], tuple[Pair, ...]]:
    """Milliseconds of each, in turn; the first round is thrown away."""
    assert ours.system_calls is not None
    async with open_source_watcher() as watcher, trio.open_nursery() as nursery:
        kept = NoStore(), str
        with_rules = TemplateLauncher(ours, ours.system_calls, nursery, watcher, *kept)
        without = TemplateLauncher(theirs, LET_ALL_THROUGH, nursery, watcher, *kept)
        forks = await _alternate(
            partial(_fork_ms, with_rules, spec), partial(_fork_ms, without, spec), rounds=rounds
        )
        async with _open(with_rules, spec) as one, _open(without, spec) as other:
            calls, opens = [
                await _alternate(
                    partial(one.call_ms, code), partial(other.call_ms, code), rounds=rounds
                )
                for code in ("1", OPENS)
            ]
        assert not with_rules.reasons, "forks are what is measured"
        assert not without.reasons, "forks are what is measured"
        nursery.cancel_scope.cancel()
    return forks, calls, opens


async def _alternate(
    ours: Callable[[], Awaitable[float]], theirs: Callable[[], Awaitable[float]], *, rounds: int
) -> tuple[Pair, ...]:
    pairs: list[Pair] = []
    for number in range(rounds + 1):
        if number % 2:
            mine, other = await ours(), await theirs()
        else:
            other, mine = await theirs(), await ours()
        pairs.append((mine, other))
    return tuple(pairs[1:])


class _Session:
    """A fork whose agent is ready."""

    def __init__(self, link: AgentLink) -> None:
        self._link = link
        self._calls = 0

    async def call_ms(self, code: str) -> float:
        """The median of some calls."""
        taken: list[float] = []
        for _ in range(CALLS_A_ROUND):
            self._calls += 1
            begun_s = time.perf_counter()
            self._link.post(
                {
                    "type": "execute",
                    "id": str(self._calls),
                    "interpreter": "python",
                    "code": code,
                    "timeout_s": 30.0,
                    "grace_s": 2.0,
                }
            )
            while not isinstance(await self._link.receive(), ResultFrame):
                pass
            taken.append((time.perf_counter() - begun_s) * 1000)
        return median(taken)


@asynccontextmanager
async def _open(launcher: Launcher, spec: JailSpec) -> AsyncGenerator[_Session]:
    jail = await launcher.launch(spec)
    try:
        async with trio.open_nursery() as nursery:
            link = AgentLink(jail.socket, nursery)
            await link.handshake({})
            yield _Session(link)
            link.close()
    finally:
        jail.kill()
        with trio.CancelScope(shield=True):
            await jail.wait()
        jail.release()


async def _fork_ms(launcher: Launcher, spec: JailSpec) -> float:
    """The median of some forks, each until its agent is ready."""
    taken: list[float] = []
    for _ in range(FORKS_A_ROUND):
        begun_s = time.perf_counter()
        async with _open(launcher, spec):
            taken.append((time.perf_counter() - begun_s) * 1000)
    return median(taken)
