"""Spares for clients that have just connected, for the environments that they will probably use."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping

import trio

from nsm.dataclass import dataclass, field
from nsm.wire.errors import BadProjectError
from nsmd.environments.catalog import Catalog
from nsmd.model.values import ClientIdentity, Environment, JailSpec, ProjectMount

log = logging.getLogger(__name__)

FIRST_GUESS: Mapping[str, float] = {"python": 0.5, "bash": 0.5}
"""Chance of each environment to be used in a project that no client came with before."""

NEWEST = 0.3
"""Weight of the last visit: one use makes an environment likely; after two visits without it, it is
no longer likely.
"""

LIKELY = 0.3
"""Share of visits from which on an environment is kept ready."""

VISIT_S = 60.0
"""A client that comes again within that time makes the same visit: it attaches, then lists the
tools.
"""

MAX_VISITORS = 256
"""The least recent one is forgotten."""


class Prewarm:
    """Spares for clients that have just connected.

    Args:
        spec: makes the specification of a session.
        expect: tells the pool of a kind that will be wanted.
    """

    def __init__(
        self,
        catalog: Catalog,
        spec: Callable[[Environment, ProjectMount | None], JailSpec],
        expect: Callable[[JailSpec], None],
    ) -> None:
        self._catalog = catalog
        self._spec = spec
        self._expect = expect
        self._history = UsageHistory()

    def expect(self, client: ClientIdentity) -> None:
        """Prepare for an MCP client of a project, as far as that is known yet."""
        self._catalog.expect(client)
        for env in self._history.project_came(client.project):
            self._warm(env, client)

    def greet(self, program: str, scope: str) -> None:
        """Prepare for a program on the control socket: what it used the last times."""
        for env, mount in self._history.program_came(program, scope):
            self._warm(env, ClientIdentity(name=program, scope=scope, project=mount))

    def used(self, client: ClientIdentity, env: str) -> None:
        """Note that a client has taken a session."""
        self._history.used(client, env)

    def _warm(self, env: str, client: ClientIdentity) -> None:
        environment = self._catalog.find_at_hand(client, env)
        if environment is None:
            return
        try:
            self._expect(self._spec(environment, client.project))
        except BadProjectError:
            log.debug("the project of a client that has come is gone")


@dataclass(slots=True)
class _Habit:
    """One environment of a project or program: its share of visits, and what is not yet counted in
    it.
    """

    share: float
    project: ProjectMount | None = None
    used: bool = False


@dataclass(slots=True)
class _Visitor:
    came_s: float = -math.inf
    history: dict[str, _Habit] = field(default_factory=dict[str, _Habit])


class UsageHistory:
    """Usage history of clients, to predict what a new client will use.

    It covers each project (with any client) and each program of the control socket. For each of
    their environments it keeps the share of visits in which the environment was used; the last
    visits count most. It is bounded, and lost with the supervisor.
    """

    def __init__(self) -> None:
        self._visitors: OrderedDict[str, _Visitor] = OrderedDict()

    def project_came(self, project: ProjectMount | None) -> list[str]:
        """A client of a project connected. Returns the environments that it will probably use."""
        return [env for env, _ in self._came(_of_project(project), FIRST_GUESS)]

    def program_came(self, program: str, scope: str) -> list[tuple[str, ProjectMount | None]]:
        """A program connected. Returns the environments that it will probably use, each with its
        last project there.

        A program that never used any gets none: most programs only query.
        """
        return self._came(_of_program(program, scope), {})

    def used(self, client: ClientIdentity, env: str) -> None:
        """A client has taken a session."""
        for visitor in (_of_project(client.project), _of_program(client.name, client.scope)):
            history = self._visitor(visitor).history
            habit = history.get(env)
            if habit is None:
                habit = history[env] = _Habit(0.0)
            habit.used, habit.project = True, client.project

    def _came(
        self, visitor: str, guesses: Mapping[str, float]
    ) -> list[tuple[str, ProjectMount | None]]:
        known, now = self._visitor(visitor), trio.current_time()
        if math.isinf(known.came_s):
            for env, share in guesses.items():
                habit = known.history.setdefault(env, _Habit(0.0))
                habit.share = max(habit.share, share)
        elif now - known.came_s > VISIT_S:
            for habit in known.history.values():
                habit.share += NEWEST * (habit.used - habit.share)
                habit.used = False
        known.came_s = now
        return [
            (env, habit.project) for env, habit in known.history.items() if habit.share >= LIKELY
        ]

    def _visitor(self, name: str) -> _Visitor:
        known = self._visitors.get(name)
        if known is None:
            known = self._visitors[name] = _Visitor()
            if len(self._visitors) > MAX_VISITORS:
                self._visitors.popitem(last=False)
        else:
            self._visitors.move_to_end(name)
        return known


def _of_project(project: ProjectMount | None) -> str:
    return f"project {project.path}" if project else "no project"


def _of_program(program: str, scope: str) -> str:
    return f"program {program} in {scope}"
