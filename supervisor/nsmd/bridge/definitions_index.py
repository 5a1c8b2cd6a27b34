"""All definitions of a directory, watched for changes."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from nsm import paths
from nsm.dataclass import dataclass, field
from nsmd.bridge.values import Problem, Program
from nsmd.host.paths import printable, trusted_owners
from nsmd.host.watching.source_watcher import SourceWatcher
from nsmd.host.watching.trail import Trail, WatchedPaths

log = logging.getLogger(__name__)

MAX_DEFINITIONS = 256
"""Largest number of definitions, the first by name. Each is a line that models read."""

SUFFIX = ".md"


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionsScan:
    """Result of one look at the directory.

    Attributes:
        programs: usable programs, sorted by name.
        problems: problems of the other files.
        places: paths on which all that depended.
    """

    programs: Mapping[str, Program] = field(default_factory=dict[str, Program])
    problems: tuple[Problem, ...] = ()
    places: WatchedPaths = field(default_factory=dict[str, frozenset[str]])


def read_directory(directory: str, home: str | None = None) -> DefinitionsScan:
    """Read the programs that a directory's files describe. Blocks.

    Args:
        directory: absolute; a missing one has no programs.
        home: home directory of the user, for `~`; None for that of the environment.
    """
    # Importing YAML's parser costs 40 ms, which only users with definitions should pay.
    from nsmd.bridge.definitions import read_definition, unique  # noqa: PLC0415

    trail = Trail(trusted_owners())
    try:
        names = trail.list(trail.follow(directory))
    except FileNotFoundError:
        return DefinitionsScan(places=trail.places)
    except OSError as error:
        problem = Problem(source=directory, reason=printable(str(error.strerror)))
        return DefinitionsScan(problems=(problem,), places=trail.places)
    # Editors keep their own files there, with names that begin with a dot.
    names = [name for name in names if name.endswith(SUFFIX) and not name.startswith(".")]
    programs, problems = unique(
        [
            read_definition(os.path.join(directory, name), trail, home or paths.home())
            for name in names[:MAX_DEFINITIONS]
        ]
    )
    if len(names) > MAX_DEFINITIONS:
        reason = (
            f"it has {len(names)} definitions; those after the first {MAX_DEFINITIONS} are not read"
        )
        problems.append(Problem(source=directory, reason=reason))
    return DefinitionsScan(
        programs={program.name: program for program in programs},
        problems=tuple(sorted(problems, key=lambda problem: problem.source)),
        places=trail.places,
    )


class DefinitionsIndex:
    """All definitions of a directory, reread when they change; made by its opener.

    Attributes:
        programs: usable programs, sorted by name.
        problems: problems of the other files.
    """

    def __init__(self, directory: str, watcher: SourceWatcher) -> None:
        self.programs: Mapping[str, Program] = {}
        self.problems: Sequence[Problem] = ()
        self._directory = directory
        self._watcher = watcher
        self._subscribers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<DefinitionsIndex {self._directory} of {len(self.programs)} programs>"

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call a function whenever programs or problems have changed. Returns a function that ends
        this.
        """
        entry = partial(changed)  # a new object each time, so that each ends its own
        self._subscribers.append(entry)

        def end() -> None:
            if entry in self._subscribers:
                self._subscribers.remove(entry)

        return end

    async def look(self) -> None:
        """Read the definitions again now, for at most 5 s."""
        await self._watcher.look(self)

    def take(self, found: DefinitionsScan, unwatched: str | None) -> None:
        """Use the result of a look."""
        problems = found.problems
        if unwatched is not None:
            reason = f"{unwatched}; it is looked at when somebody runs `nsm bridge ls`"
            problems = (*problems, Problem(source=self._directory, reason=reason))
        if (found.programs, problems) == (self.programs, self.problems):
            return
        for problem in problems:
            if problem not in self.problems:
                log.warning("%s", render(problem))
        self.programs, self.problems = found.programs, problems
        for changed in tuple(self._subscribers):
            changed()


def render(problem: Problem) -> str:
    """Format a problem as one line for people, like a compiler."""
    line = "" if problem.line is None else f":{problem.line}"
    return f"{printable(problem.source)}{line}: {problem.reason}"


@asynccontextmanager
async def open_definitions(
    directory: str, watcher: SourceWatcher
) -> AsyncGenerator[DefinitionsIndex]:
    """Open the definitions of a directory. They have been read when the block begins, unless that
    takes long.

    Args:
        directory: absolute; it may be missing.
        watcher: notices changes.
    """
    definitions = DefinitionsIndex(directory, watcher)

    def failed() -> DefinitionsScan:
        reason = "nsm failed to look at it; the supervisor's log has the details"
        return DefinitionsScan(problems=(Problem(source=directory, reason=reason),))

    watcher.keep(
        definitions,
        printable(directory),
        partial(read_directory, directory),
        definitions.take,
        failed,
    )
    try:
        await watcher.first_look(definitions)
        yield definitions
    finally:
        watcher.end(definitions)
