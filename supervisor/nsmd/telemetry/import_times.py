"""Modules that sessions import slowly, by environment: what might be worth preloading.

Code in a session can forge these times. So names, numbers and counts are bounded, a name must be
that of a module that its environment has, and all that ever comes of it is a suggestion to a
person.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated

import trio

from nsm.dataclass import dataclass
from nsm.wire.decode import at_most
from nsm.wire.environments import SlowImport
from nsmd.environments import saved_records
from nsmd.jail.templates.spec import can_preload
from nsmd.model.events import EventKind, Events, SupervisorEvent
from nsmd.model.names import is_module_name
from nsmd.model.values import Environment, RunOutcome
from nsmd.sessions.execution import Execution

log = logging.getLogger(__name__)

SESSIONS = 20
"""Sessions of an environment that are remembered: the last ones that ran code."""

MAX_ENVIRONMENTS = 64
MAX_MODULES = 16
"""Remembered environments, and modules of each session."""

LEAST_SESSIONS = 3
LEAST_SHARE = 0.25
"""A module is suggested if so many sessions imported it, and this share of those remembered."""

MAX_SUGGESTIONS = 3

LONGEST_S = 3600.0


_Times = Mapping[str, float]
_Key = tuple[str, str, tuple[str, ...]]
_History = dict[str, dict[str, float]]
"""The last sessions of an environment: the modules of each, by its id, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """Imports of one environment."""

    name: str
    source: str
    preload: tuple[str, ...] = ()
    sessions: Annotated[tuple[dict[str, float], ...], at_most(SESSIONS, "sessions")] = ()


class ImportTimes:
    """Slow imports of the last sessions of each environment."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._histories: OrderedDict[_Key, _History] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ImportTimes of {len(self._histories)} environments>"

    def add_execution(self, event: SupervisorEvent) -> None:
        """Note the imports of an execution that has ended (a `Listener` of events)."""
        execution = event.subject
        assert isinstance(execution, Execution), "that is what finishes"
        answer, session = execution.answer, execution.session
        if not isinstance(answer, RunOutcome):
            return
        imports = answer.outcome.imports
        # A session that is forgotten does not come back as one that imports nothing.
        if (imports or session.runs.count <= 1) and can_preload(session.spec.environment):
            self.add(session.spec.environment, session.id, imports)

    def add(self, environment: Environment, session: str, imports: _Times) -> None:
        """Note the slow imports of an execution."""
        key = _key(environment)
        history = self._histories.get(key)
        if history is None:
            history = self._histories[key] = {}
            if len(self._histories) > MAX_ENVIRONMENTS:
                self._histories.popitem(last=False)
        else:
            self._histories.move_to_end(key)
        modules = history.setdefault(session, {})
        if len(history) > SESSIONS:
            del history[next(iter(history))]
        for module, seconds in imports.items():
            if len(modules) < MAX_MODULES and _is_there(environment, module):
                modules.setdefault(module, min(seconds, LONGEST_S))

    def suggestions(self, environment: Environment) -> list[SlowImport]:
        """Find modules of an environment that are worth preloading, the slowest first."""
        history = self._histories.get(_key(environment))
        if history is None or not can_preload(environment):
            return []
        from statistics import median  # noqa: PLC0415  # imports much

        of = len(history)
        times: dict[str, list[float]] = {}
        for modules in history.values():
            for module, seconds in modules.items():
                times.setdefault(module, []).append(seconds)
        found = [
            SlowImport(module=module, seconds=median(each), sessions=len(each), of=of)
            for module, each in times.items()
            if len(each) >= max(LEAST_SESSIONS, of * LEAST_SHARE)
            and module not in environment.preload
        ]
        found.sort(key=lambda each: each.seconds * each.sessions, reverse=True)
        return found[:MAX_SUGGESTIONS]

    # The file.

    def load(self) -> None:
        """Read what an earlier supervisor has saved. Blocks."""
        rows = saved_records.load(self._path, _Saved, "environments", cure="new sessions are noted")
        for row in rows[-MAX_ENVIRONMENTS:]:
            sessions = {f"earlier {number}": each for number, each in enumerate(row.sessions)}
            self._histories[row.name, row.source, row.preload] = sessions

    def save(self) -> None:
        """Write the file. Blocks."""
        rows = [
            _Saved(
                name=name,
                source=source,
                preload=preload,
                sessions=tuple(history.values()),
            )
            for (name, source, preload), history in self._histories.items()
        ]
        try:
            saved_records.save(self._path, "environments", rows)
        except OSError as error:
            log.warning("times of imports will not be remembered: %s", error)


@asynccontextmanager
async def open_import_times(path: str, events: Events) -> AsyncGenerator[ImportTimes]:
    """Note the imports of all executions while the block lasts, and write them to a file then."""
    times = ImportTimes(path)
    await trio.to_thread.run_sync(times.load)
    kinds: tuple[EventKind, ...] = ("execution_finished",)
    unsubscribe = events.subscribe(times.add_execution, kinds)
    try:
        yield times
    finally:
        unsubscribe()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(times.save)


def _key(environment: Environment) -> _Key:
    # Once other modules are preloaded, other imports are slow.
    return environment.name, environment.source, environment.preload


def _is_there(environment: Environment, module: str) -> bool:
    top = module.partition(".")[0]
    known = not environment.packages or environment.has_module(top)
    return known and is_module_name(module)
