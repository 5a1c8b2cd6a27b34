"""The environments that exist now, and the clients that can use them.

Pure: parts that find or build environments put them here, under their source. A client sees its
*view*: for each name, the environment of the source with the highest rank. Some sources are for
everyone, others for clients whose entry names them. Views are made when something changes, so that
a call only looks one up.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from nsm.dataclass import dataclass, field, replace
from nsm.wire import code as wire_code
from nsm.wire.errors import EnvironmentUnavailableError, UnknownEnvironmentError, did_you_mean
from nsmd.environments.on_demand import EnvironmentPendingError
from nsmd.host.paths import printable
from nsmd.model.packages import shown_reference
from nsmd.model.values import (
    ClientIdentity,
    Environment,
    EnvironmentProblem,
    Sources,
)

if TYPE_CHECKING:
    import trio

log = logging.getLogger(__name__)

ALIASES = {"shell": "bash"}
"""Older names of environments; an environment that has the name itself comes first."""

OTHER_NAMES: Mapping[str, str] = wire_code.SPOKEN | ALIASES
"""Other names that models use for wire_code. They work unless an environment has the name, and no
list shows them.
"""

MAX_REMOVED = 256
"""Largest number of removed environments to remember."""

_TOLD = 3
"""Largest number of problems of whole sources in an error."""


class Rank(IntEnum):
    """Kinds of sources; the last one wins."""

    HOST = 0
    """Presets and `[environments.NAME]` of config.toml."""
    CONFIGURED = 1
    """`[environments.NAME] flake` of config.toml."""
    METADATA = 2
    """`NIX_SANDBOX_METADATA` of the supervisor's own environment."""
    BUILT = 3
    """`nsm env add`, and `NIX_SANDBOX_ENVS` of the supervisor's own environment."""
    DIRECTORY = 4
    """The sandbox directory."""
    CLIENT_METADATA = 5
    CLIENT_BUILT = 6
    CLIENT_DIRECTORY = 7
    """`NIX_SANDBOX_METADATA`, `NIX_SANDBOX_ENVS` and `NIX_SANDBOX_DIR` of a client's entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSource:
    """Source of environments.

    Attributes:
        of: distinguishes sources that are not for everyone: the value of the variable in a client's
            entry (for `NIX_SANDBOX_ENVS`, one reference).
    """

    rank: Rank
    of: str = ""

    @property
    def only_for(self) -> str | None:
        """Description of its clients, for people; None for everyone."""
        match self.rank:
            case Rank.CLIENT_METADATA:
                return "clients with this NIX_SANDBOX_METADATA"
            case Rank.CLIENT_BUILT:
                return f"clients with {printable(shown_reference(self.of))} in NIX_SANDBOX_ENVS"
            case Rank.CLIENT_DIRECTORY:
                return f"clients with NIX_SANDBOX_DIR={printable(self.of)}"
            case _:
                return None


class ProjectSource:
    """Environments of one kind that belong to projects, besides everything in the catalog.

    Attributes:
        inherit: names of variables that clients pass on to these environments.
        changed: called after each change; the catalog sets it.
    """

    inherit: Sequence[str] = ()

    def __init__(self) -> None:
        self.changed: Callable[[], None] = _nothing

    def environments(self, client: ClientIdentity) -> Sequence[Environment]:
        """Return those of a client's project; quick."""
        raise NotImplementedError

    def rows(self) -> Sequence[Environment]:
        """All known ones, each with its project as its source."""
        raise NotImplementedError

    def is_current(self, environment: Environment) -> bool:
        """Return whether somebody may mean this environment now."""
        raise NotImplementedError

    def settled(self, client: ClientIdentity, name: str) -> trio.Event | None:
        """Event after which a pending environment is ready or has a problem; None if nothing is
        under way.
        """
        raise NotImplementedError

    def expect(self, client: ClientIdentity) -> None:
        """Prepare for a client that has come."""

    def preferred(self, _client: ClientIdentity, _language: str) -> str | None:
        """Name of the project's environment for a language; None if it has none that works."""
        return None

    def notes(self, _client: ClientIdentity, _environment: Environment) -> tuple[str, ...]:
        """Notes for a result of code that a client runs in an environment."""
        return ()

    def missing(self, _client: ClientIdentity, _name: str) -> EnvironmentUnavailableError | None:
        """Error that says why a client has no environment of that name; None if it is not of this
        kind.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Environments that one client can use.

    Attributes:
        environments: all environments in display order, unusable ones included.
        hides: by name, the sources of environments hidden by another one of that name, the lowest
            rank first.
    """

    environments: tuple[Environment, ...] = ()
    problems: tuple[EnvironmentProblem, ...] = ()
    names: Mapping[str, Environment] = field(default_factory=dict[str, Environment])
    hides: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def aliases(self, environment: Environment) -> list[str]:
        """Further names of an environment."""
        return [a for a in ALIASES if a != environment.name and self.names.get(a) is environment]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """An environment or a problem, for a list of all of them.

    Attributes:
        only_for: as in `EnvironmentSource`.
        hides: as in `View`.
    """

    item: Environment | EnvironmentProblem
    only_for: str | None = None
    aliases: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """Environments and problems of one source."""

    environments: tuple[Environment, ...] = ()
    problems: tuple[EnvironmentProblem, ...] = ()


class Catalog:
    """Environments that exist now, and the clients that may use them.

    Args:
        projects: sources of environments that belong to projects; the first one wins.
    """

    def __init__(
        self,
        environments: Sequence[Environment] = (),
        *projects: ProjectSource,
        equip: Callable[[Environment], Environment] = lambda environment: environment,
    ) -> None:
        self._equip = equip
        self._without_devices: dict[EnvironmentSource, _Content] = {}
        self._contents: dict[EnvironmentSource, _Content] = {}
        self._projects = projects
        self._views: dict[Sources, View] = {}
        self._everyones = View()
        self._removed: OrderedDict[tuple[EnvironmentSource, str], str] = OrderedDict()
        self._subscribers: dict[object, Callable[[], None]] = {}
        self.put(EnvironmentSource(rank=Rank.HOST), environments)
        for project in projects:
            project.changed = self._call_subscribers

    def __repr__(self) -> str:
        return f"<Catalog of {len(self._everyones.environments)} environments>"

    # For parts that find or build environments.

    def put(
        self,
        source: EnvironmentSource,
        environments: Sequence[Environment],
        problems: Sequence[EnvironmentProblem] = (),
    ) -> None:
        """Replace the environments of a source; subscribers are called if anything changes."""
        content = _Content(environments=tuple(environments), problems=tuple(problems))
        self._without_devices[source] = content
        self._equip_all(source, content)

    def equip_again(self) -> None:
        """Add devices to all environments again, since some have come, gone or changed."""
        for source, content in self._without_devices.items():
            self._equip_all(source, content)

    def _equip_all(self, source: EnvironmentSource, content: _Content) -> None:
        content = replace(content, environments=tuple(map(self._equip, content.environments)))
        before = self._contents.get(source, _Content())
        self._contents[source] = content
        if content == before:
            return
        self._log_changes(source, before, content)
        self._changed()

    def drop(self, source: EnvironmentSource) -> None:
        """Drop a source that no client has any more."""
        content = self._contents.pop(source, _Content())
        self._without_devices.pop(source, None)
        for key in [key for key in self._removed if key[0] == source]:
            del self._removed[key]
        if content != _Content():
            self._changed()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call a function after each change; it must be quick and not raise.

        Returns:
            A function that ends this.
        """
        token = object()
        self._subscribers[token] = changed

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    # For parts that run code.

    def view(self, client: ClientIdentity) -> View:
        """Make the view of a client, without the environments of its own project."""
        own = client.sources
        if own is None:
            return self._everyones
        view = self._views.get(own)
        if view is None:
            sources = self._sources(own)
            if all(source.only_for is None for source in sources):
                return self._everyones  # used until the client's own sources are watched
            view = self._views[own] = self._make(sources)
        return view

    def environments(self, client: ClientIdentity) -> Sequence[Environment]:
        """All environments of a client in display order, unusable ones included."""
        view, own = self.view(client), self.of_project(client)
        return (*view.environments, *own.values()) if own else view.environments

    def find(self, client: ClientIdentity, name: str) -> Environment:
        """Find the environment that a client means, which must be usable now.

        Raises:
            EnvironmentPendingError: it is being built.
            EnvironmentUnavailableError: it cannot be used; the message says why.
            UnknownEnvironmentError: there is none; the message lists them.
        """
        view = self.view(client)
        environment = view.names.get(name)
        if environment is None:
            environment = self.of_project(client).get(name)
            if environment is None:
                raise self._unknown(client, view, name)
        if environment.problem is not None:
            raise self._unavailable(client, environment.name, environment.problem)
        if environment.pending is not None:
            settled = self._settled(client, name)
            raise EnvironmentPendingError(environment.name, environment.pending, settled)
        return environment

    def find_at_hand(self, client: ClientIdentity, name: str) -> Environment | None:
        """Find the environment for whose sessions spares may be kept for a client; None if it is
        not known to be exactly what the client's next session has, variables included.
        """
        environment = self.view(client).names.get(name) or self.of_project(client).get(name)
        if (
            environment is None
            or environment.problem is not None
            or environment.pending is not None
            or not environment.keeps_state
        ):
            return None
        for project in self._projects:
            unknown = project.inherit and not client.inherited
            if unknown and environment in project.environments(client):
                return None
        return environment

    @property
    def inherit(self) -> tuple[str, ...]:
        """Names of variables that clients pass on to environments of their project."""
        return tuple(name for project in self._projects for name in project.inherit)

    def expect(self, client: ClientIdentity) -> None:
        """Prepare for a client that has come, whose project may have environments of its own."""
        for project in self._projects:
            project.expect(client)

    def preferred(self, client: ClientIdentity, language: str) -> str | None:
        """Name of the environment for a language that a client's project has itself; None if it
        has none.
        """
        for project in self._projects:
            name = project.preferred(client, language)
            if name is not None and name in self.of_project(client):
                return name
        return None

    def notes(self, client: ClientIdentity, environment: Environment) -> tuple[str, ...]:
        """Notes for a result of code that a client runs in an environment."""
        if client.project is None:
            return ()
        return tuple(note for each in self._projects for note in each.notes(client, environment))

    def own_of(self, client: ClientIdentity, environment: Environment) -> Sources | None:
        """Find the client's own source of an environment; None if everybody has it."""
        own = client.sources
        if own is None or self._everyones.names.get(environment.name) == environment:
            return None
        for source in reversed(own_sources(own)):
            if source in self._contents and environment in self._contents[source].environments:
                match source.rank:
                    case Rank.CLIENT_METADATA:
                        return Sources(metadata=source.of)
                    case Rank.CLIENT_BUILT:
                        return Sources(flakes=(source.of,))
                    case _:
                        return Sources(directory=source.of)
        return None

    def reachable(self) -> Callable[[Environment], bool]:
        """Return a function that says whether some client may use an environment now."""
        views = [self._everyones, *self._views.values()]
        known = {environment for view in views for environment in view.environments}
        # A project's own environment depends on the client.
        return lambda environment: (
            environment in known or any(own.is_current(environment) for own in self._projects)
        )

    def listed(self) -> Iterator[CatalogEntry]:
        """Everything in the catalog; sources for everyone first."""
        everyone = self._everyones
        for environment in everyone.environments:
            yield CatalogEntry(
                item=environment,
                aliases=tuple(everyone.aliases(environment)),
                hides=everyone.hides.get(environment.name, ()),
            )
        for problem in everyone.problems:
            yield CatalogEntry(item=problem)
        for source in sorted(self._contents, key=lambda source: source.rank):
            if (only_for := source.only_for) is not None:
                for environment in self._contents[source].environments:
                    hidden = everyone.names.get(environment.name)
                    missed = hidden is not None and _is_missed(hidden, environment)
                    hides = (hidden.source,) if hidden is not None and missed else ()
                    yield CatalogEntry(item=environment, only_for=only_for, hides=hides)
                for problem in self._contents[source].problems:
                    yield CatalogEntry(item=problem, only_for=only_for)
        for project in self._projects:
            for row in project.rows():
                yield CatalogEntry(item=row, only_for="its project")

    # Views.

    def _changed(self) -> None:
        hidden = self._everyones.hides
        self._everyones = self._make(self._sources(None))
        for name, hides in self._everyones.hides.items():
            if hides != hidden.get(name):
                winner = self._everyones.names[name].source
                log.info("environment %s of %s hides that of %s", name, winner, ", ".join(hides))
        sources = {own: self._sources(own) for own in self._views}
        self._views = {
            own: self._make(its)
            for own, its in sources.items()
            if any(source.only_for is not None for source in its)
        }
        self._call_subscribers()

    def _call_subscribers(self) -> None:
        for subscriber in list(self._subscribers.values()):
            subscriber()

    def of_project(self, client: ClientIdentity) -> dict[str, Environment]:
        """Environments of a client's project by name, without those that others of that name
        hide.
        """
        found: dict[str, Environment] = {}
        for project in self._projects:
            for environment in project.environments(client):
                if environment.name not in self.view(client).names:
                    found.setdefault(environment.name, environment)
        return found

    def _settled(self, client: ClientIdentity, name: str) -> trio.Event | None:
        """Event after which a project's pending environment is settled; None if nobody knows."""
        events = (project.settled(client, name) for project in self._projects)
        return next((event for event in events if event is not None), None)

    def _sources(self, own: Sources | None) -> list[EnvironmentSource]:
        """Sources of a view; the last one wins."""
        wanted = [s for s in self._contents if s.only_for is None]
        if own is not None:
            wanted += own_sources(own)
        return sorted((s for s in wanted if s in self._contents), key=lambda source: source.rank)

    def _make(self, sources: Sequence[EnvironmentSource]) -> View:
        found: dict[str, Environment] = {}
        problems: list[EnvironmentProblem] = []
        hides: dict[str, tuple[str, ...]] = {}
        for source in sources:
            for environment in self._contents[source].environments:
                hidden = found.get(environment.name)
                if hidden is not None and _is_missed(hidden, environment):
                    before = hides.get(environment.name, ())
                    hides[environment.name] = (*before, hidden.source)
                found[environment.name] = environment
            problems += self._contents[source].problems
        names = dict(found)
        for alias, name in OTHER_NAMES.items():
            if name in found:
                names.setdefault(alias, found[name])
        return View(
            environments=tuple(found.values()),
            problems=tuple(problems),
            names=names,
            hides=hides,
        )

    # Messages.

    def _unknown(
        self, client: ClientIdentity, view: View, name: str
    ) -> UnknownEnvironmentError | EnvironmentUnavailableError:
        for problem in view.problems:
            if problem.name == name:
                why = problem.explain() if problem.explain is not None else problem.why
                return self._unavailable(client, name, f"{problem.where}: {why}")
        known = self._usable(client)
        guess = did_you_mean(name, [*known, *ALIASES])
        hint = f"{guess}Available: {', '.join(known) or 'none'}."
        for problem in [p for p in view.problems if p.name is None][:_TOLD]:
            hint += f" {problem.where}: {problem.why}."
        message = f"No environment {name[:80]!r}."
        for source in self._sources(client.sources):
            if where := self._removed.get((source, name)):
                message = f"Environment {name[:80]!r} was removed: {where} has it no more."
        for project in self._projects:
            if (error := project.missing(client, name)) is not None:
                return error
        return UnknownEnvironmentError(message, hint=hint, data={"available": known})

    def _unavailable(
        self, client: ClientIdentity, name: str, why: str
    ) -> EnvironmentUnavailableError:
        known = self._usable(client)
        return EnvironmentUnavailableError(
            f"Environment {name!r} is unavailable: {why}",
            hint=f"Available: {', '.join(known) or 'none'}. `nsm env` and `nsm doctor` say more.",
            data={"available": known},
        )

    def _usable(self, client: ClientIdentity) -> list[str]:
        return [e.name for e in self.environments(client) if e.problem is None]

    def _log_changes(self, source: EnvironmentSource, before: _Content, now: _Content) -> None:
        """Log changes, and remember removed environments."""
        old = {environment.name: environment for environment in before.environments}
        new = {environment.name: environment for environment in now.environments}
        for name in old.keys() - new.keys():
            log.info("environment %s of %s is gone", name, old[name].source)
            self._removed[source, name] = old[name].source
            self._removed.move_to_end((source, name))
            if len(self._removed) > MAX_REMOVED:
                self._removed.popitem(last=False)
        for name, environment in new.items():
            if source.rank is not Rank.HOST and environment != old.get(name):
                word = "changed" if name in old else "new"
                log.info("environment %s of %s is %s", name, environment.source, word)
        for problem in now.problems:
            if problem not in before.problems:
                passes = problem.explain is not None
                level = logging.INFO if passes else logging.WARNING
                log.log(level, "environment %s: %s: %s", problem.name, problem.where, problem.why)


def each_name_once(
    environments: Iterable[Environment],
) -> tuple[tuple[Environment, ...], list[EnvironmentProblem]]:
    """Keep the first environment of each name; the others are problems."""
    found: dict[str, Environment] = {}
    problems: list[EnvironmentProblem] = []
    for environment in environments:
        first = found.setdefault(environment.name, environment)
        if first is not environment:
            why = f"it is called {first.name!r}, as {first.source} is, which comes first"
            where = environment.source
            problems.append(EnvironmentProblem(name=first.name, where=where, why=why))
    return tuple(found.values()), problems


def own_sources(own: Sources) -> list[EnvironmentSource]:
    """Sources that a client's entry names; the last one wins."""
    found: list[EnvironmentSource] = []
    if own.metadata is not None:
        found.append(EnvironmentSource(rank=Rank.CLIENT_METADATA, of=own.metadata))
    found += [EnvironmentSource(rank=Rank.CLIENT_BUILT, of=flake) for flake in own.flakes]
    if own.directory is not None:
        found.append(EnvironmentSource(rank=Rank.CLIENT_DIRECTORY, of=own.directory))
    return found


def _is_missed(hidden: Environment, winner: Environment) -> bool:
    """Return whether somebody may miss the hidden environment: it works, and differs from the
    winner.
    """
    return hidden.problem is None and hidden.artifact != winner.artifact


def _nothing() -> None:
    """Default for `changed`."""
