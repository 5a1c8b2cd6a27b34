"""Sessions in which probes run: one of each kind, shared by all probes that leave it as it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from artifact_files import environment_of
from isolation.background import Background
from isolation.probe import Group, Kind, Probe, agent_program, program_of, verdict_of
from isolation.stage import Stage
from isolation.weaken import Weakness
from isolation.weakjails import WeakLauncher, forking
from nsmd.jail import BwrapLauncher, Launcher
from nsmd.jail.templates import TemplateLauncher, open_templates
from nsmd.model.settings import DEFAULT_JAIL_UID
from nsmd.model.values import Environment, Interpreter
from realjail import (
    BWRAP,
    LiveSession,
    is_fork,
    jail_spec,
    launched,
    open_cold,
    open_directory,
    read_all,
    talking_to,
)


class Room(Protocol):
    """A launcher of sessions of one kind.

    Attributes:
        key: equal for rooms whose sessions are the same.
        kind: what its sessions are.
        stage: what its sessions are near to.
        store: where its jails show what Nix has built; empty for nowhere.
    """

    @property
    def key(self) -> Hashable: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def stage(self) -> Stage: ...

    @property
    def store(self) -> str: ...

    def problem(self, interpreter: Interpreter) -> str | None:
        """Explain why there are no sessions of that interpreter."""
        ...

    def environment(self, interpreter: Interpreter) -> Environment:
        """Return the environment of a session of that interpreter."""
        ...

    def launcher(self) -> AbstractAsyncContextManager[Launcher]:
        """Start a launcher for ordinary sessions."""
        ...

    def in_place_of_agent(
        self, program: str
    ) -> AbstractAsyncContextManager[tuple[Launcher, Environment]]:
        """Start a launcher for sessions with a program in the agent's place."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRoom:
    """Sessions in jails that nsm makes.

    Attributes:
        weakness: of its jails, or of its templates'; None for none.
        cold: makes the launcher of jails, with a program in the agent's place or None.
    """

    kind: Kind
    stage: Stage
    known: Mapping[str, Environment]
    weakness: Weakness | None = None
    cold: Callable[[bytes | None], BwrapLauncher] = lambda agent: BwrapLauncher(
        BWRAP, DEFAULT_JAIL_UID, agent_source=agent
    )
    store: str = ""

    @property
    def key(self) -> Hashable:
        return self.kind, id(self.weakness), self.stage

    def problem(self, interpreter: Interpreter) -> str | None:
        return self.known[interpreter].problem

    def environment(self, interpreter: Interpreter) -> Environment:
        return self.known[interpreter]

    def launcher(self) -> AbstractAsyncContextManager[Launcher]:
        return self._launcher(None)

    @asynccontextmanager
    async def in_place_of_agent(self, program: str) -> AsyncGenerator[tuple[Launcher, Environment]]:
        async with self._launcher(program.encode()) as launcher:
            yield launcher, self.known["python"]

    @asynccontextmanager
    async def _launcher(self, agent: bytes | None) -> AsyncGenerator[Launcher]:
        if self.weakness is None:
            cold = self.cold(agent)
        else:
            cold = WeakLauncher(self.weakness, self.stage, agent)
        if self.kind == "cold":
            yield cold
        else:
            async with forking(cold) as launcher:
                yield launcher


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRoom:
    """Sessions of artifacts, whose own programs make their jails.

    Attributes:
        artifacts: by interpreter.
    """

    kind: Kind
    stage: Stage
    artifacts: Mapping[Interpreter, Path]
    store: str

    @property
    def key(self) -> Hashable:
        return self.kind, self.store, self.stage

    def problem(self, interpreter: Interpreter) -> str | None:
        return None if interpreter in self.artifacts else f"an artifact of {interpreter}"

    def environment(self, interpreter: Interpreter) -> Environment:
        return environment_of(self.artifacts[interpreter])

    @asynccontextmanager
    async def launcher(self) -> AsyncGenerator[Launcher]:
        async with (
            open_cold() as cold,
            open_templates(cold, enabled=self.kind == "forked") as launcher,
        ):
            yield launcher

    @asynccontextmanager
    async def in_place_of_agent(self, program: str) -> AsyncGenerator[tuple[Launcher, Environment]]:
        """Start a launcher of an artifact like Python's, with another agent."""
        # Its programs name the directory that they show.
        with open_directory() as folder:
            artifact = folder / "probe"
            original = self.artifacts["python"]
            shutil.copytree(original, artifact)
            for wrapper in (artifact / "bin").iterdir():
                wrapper.write_text(wrapper.read_text().replace(str(original), str(artifact)))
            (artifact / "lib" / "agent").write_text(program)
            async with self.launcher() as launcher:
                yield launcher, environment_of(artifact)


async def verdict_in(room: Room, background: Background, probe: Probe) -> str:
    """Run a probe in a session of the room that others have used, unless it spoils sessions.

    Returns:
        As `verdict_of`.
    """
    launcher = await background.kept("launcher", room.key, room.launcher)
    opened = partial(_opened, launcher, room, probe.interpreter)
    program = program_of(probe, room.stage, room.store)
    if probe.spoils:
        async with opened() as session:
            outcome = await session.run(program)
    else:
        place = f"session of {probe.interpreter}"
        session = await background.kept(place, room.key, opened)
        try:
            outcome = await session.run(program)
        except BaseException:
            await background.drop(place)
            raise
    return verdict_of(outcome.stdout, outcome.stderr)


@asynccontextmanager
async def _opened(
    launcher: Launcher, room: Room, interpreter: Interpreter
) -> AsyncGenerator[LiveSession]:
    environment = room.environment(interpreter)
    async with launched(launcher, jail_spec(environment, room.stage.project)) as jail:
        if isinstance(launcher, TemplateLauncher):
            assert is_fork(jail), launcher.reasons
        async with talking_to(jail, environment.interpreter) as session:
            yield session


async def verdict_as_agent(
    room: Room, background: Background, probe: Probe, together: Sequence[Probe]
) -> str:
    """The same for one in the agent's place.

    Args:
        together: all those of the room, which run in one jail; the probe among them.
    """
    told = await background.kept("agent", room.key, partial(_told_by_agents, room, together))
    return verdict_of(told[probe.name])


@asynccontextmanager
async def _told_by_agents(room: Room, probes: Sequence[Probe]) -> AsyncGenerator[Mapping[str, str]]:
    program = agent_program(probes, room.kind, room.stage, room.store)
    async with (
        room.in_place_of_agent(program) as (launcher, environment),
        launched(launcher, jail_spec(environment, room.stage.project)) as jail,
    ):
        if isinstance(launcher, TemplateLauncher):
            assert is_fork(jail), launcher.reasons
        output = await read_all(jail)
        assert output.startswith("{"), (output, jail.stderr_text())
        yield json.loads(output)


class Prober:
    """Runs probes for tests: skips where there is nothing to attack."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def verdict(self, room: Room, probe: Probe, together: Sequence[Probe]) -> str:
        """Run one probe.

        Args:
            together: of these, those in the agent's place have one jail.

        Returns:
            As `verdict_of`; `NOT HERE: ` also where the stage or the interpreter is missing.
        """
        if not getattr(room.stage, probe.needs):
            return f"NOT HERE: {probe.needs} on the host"
        problem = room.problem(probe.interpreter)
        if problem is not None:
            return f"NOT HERE: {problem}"
        if probe.place == "code":
            return self._background.run(verdict_in, room, self._background, probe)
        agents = [other for other in together if other.place == "agent"]
        return self._background.run(verdict_as_agent, room, self._background, probe, agents)

    def expect(self, expected: str, room: Room, probe: Probe, together: Sequence[Probe]) -> None:
        """Assert how its verdict begins, or skip the test."""
        verdict = self.verdict(room, probe, together)
        if verdict.startswith("NOT HERE: "):
            pytest.skip("not here: " + verdict.removeprefix("NOT HERE: "))
        assert verdict.startswith(expected), verdict

    def all_hold(self, room: Room, probes: Sequence[Probe], group: Group) -> None:
        """Assert that none of those that are of a group succeeds."""
        verdicts = {p.name: self.verdict(room, p, probes) for p in probes if p.group == group}
        broken = {name: words for name, words in verdicts.items() if words.startswith("BROKEN: ")}
        assert not broken
        assert "HELD" in verdicts.values()
