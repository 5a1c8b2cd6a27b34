"""The environments that there are at this moment, and for whom.

Pure: who finds or builds environments puts them here, under the source that they come from. What a
client sees is its *view*: of each name the environment of the source that ranks highest, where some
sources are for everyone and others for clients whose entry names them. Views are made when
something changes, so that a call only looks one up.
"""

from __future__ import annotations

import difflib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from nsm.wire import languages
from nsm.wire.errors import EnvironmentUnavailableError, UnknownEnvironmentError
from nsmd.host.paths import printable
from nsmd.model.flakes import shown
from nsmd.model.values import Client, Environment, EnvironmentProblem, Sources

log = logging.getLogger(__name__)

ALIASES = {"shell": "bash"}
"""Older names of environments; what bears one itself comes first."""

OTHER_NAMES: Mapping[str, str] = languages.SPOKEN | ALIASES
"""Names that models give languages, too. They are understood unless an environment bears the name,
and listed nowhere."""

MAX_REMOVED = 256
"""Environments that are remembered to have been there."""

_TOLD = 3
"""Problems of whole sources that an error names."""


class Rank(IntEnum):
    """Kinds of sources, the one that wins last."""

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
class Source:
    """Where environments come from.

    Attributes:
        of: what tells apart sources that are not for everyone: the value of the variable in a
            client's entry (of `NIX_SANDBOX_ENVS`, one reference).
    """

    rank: Rank
    of: str = ""

    @property
    def only_for(self) -> str | None:
        """For whom it is, for people; None for everyone."""
        match self.rank:
            case Rank.CLIENT_METADATA:
                return "clients with this NIX_SANDBOX_METADATA"
            case Rank.CLIENT_BUILT:
                return f"clients with {printable(shown(self.of))} in NIX_SANDBOX_ENVS"
            case Rank.CLIENT_DIRECTORY:
                return f"clients with NIX_SANDBOX_DIR={printable(self.of)}"
            case _:
                return None


class Shells(Protocol):
    """Environments that projects have themselves, beside everything in the catalog."""

    def environment(self, client: Client, /) -> Environment | None:
        """Return the shell of a client's project; quick."""
        ...

    def rows(self) -> Sequence[Environment]:
        """All that are known, each with its project in its source."""
        ...

    def is_current(self, environment: Environment) -> bool:
        """Return whether somebody may mean this environment now."""
        ...

    def subscribe(self, changed: Callable[[], None], /) -> object:
        """Have a function called after each change."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Environments that one client can use.

    Attributes:
        environments: unusable ones included, in the order in which they are shown.
        problems: why others are missing.
        names: the environments by every name that they answer to.
        hides: sources of others that would be there but for one of the same name, by that name,
            the one that ranks lowest first.
    """

    environments: tuple[Environment, ...] = ()
    problems: tuple[EnvironmentProblem, ...] = ()
    names: Mapping[str, Environment] = field(default_factory=dict[str, Environment])
    hides: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    def aliases(self, environment: Environment) -> list[str]:
        """Further names of one of its environments."""
        return [a for a in ALIASES if a != environment.name and self.names.get(a) is environment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An environment or a problem, for a list of all of them.

    Attributes:
        only_for: as in `Source`.
        aliases: further names of an environment.
        hides: as in `View`.
    """

    item: Environment | EnvironmentProblem
    only_for: str | None = None
    aliases: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """Last answer of a source."""

    environments: tuple[Environment, ...] = ()
    problems: tuple[EnvironmentProblem, ...] = ()


class Catalog:
    """Environments that exist now, and who may use each.

    Args:
        environments: of the host.
        shells: of projects.
    """

    def __init__(
        self, environments: Sequence[Environment] = (), shells: Shells | None = None
    ) -> None:
        self._said: dict[Source, _Said] = {}
        self._shells = shells
        self._views: dict[Sources, View] = {}
        self._everyones = View()
        self._removed: OrderedDict[tuple[Source, str], str] = OrderedDict()
        self._subscribers: dict[object, Callable[[], None]] = {}
        self.put(Source(rank=Rank.HOST), environments)
        if shells is not None:
            shells.subscribe(self._tell)

    def __repr__(self) -> str:
        return f"<Catalog of {len(self._everyones.environments)} environments>"

    # Who finds or builds environments.

    def put(
        self,
        source: Source,
        environments: Sequence[Environment],
        problems: Sequence[EnvironmentProblem] = (),
    ) -> None:
        """Replace what a source says; tells subscribers if that changes anything.

        Args:
            source: whose word it is.
            environments: usable or not, names unique.
            problems: what else there should be, and why it is not.
        """
        said = _Said(environments=tuple(environments), problems=tuple(problems))
        before = self._said.get(source, _Said())
        self._said[source] = said
        if said == before:
            return
        self._note(source, before, said)
        self._changed()

    def drop(self, source: Source) -> None:
        """Nobody is left whom a source is for."""
        said = self._said.pop(source, None)
        for key in [key for key in self._removed if key[0] == source]:
            del self._removed[key]
        if said is not None and said != _Said():
            self._changed()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Have a function called after each change; it must be quick and not raise.

        Returns:
            Ends that.
        """
        token = object()
        self._subscribers[token] = changed

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    # Who runs code.

    def view(self, client: Client) -> View:
        """Make the view of a client, without the environments of its own project."""
        own = client.sources
        if own is None:
            return self._everyones
        view = self._views.get(own)
        if view is None:
            sources = self._sources(own)
            if all(source.only_for is None for source in sources):
                return self._everyones  # as it is while nobody looks after the client's own
            view = self._views[own] = self._make(sources)
        return view

    def environments(self, client: Client) -> Sequence[Environment]:
        """All of a client's, unusable ones included, in the order in which they are shown."""
        view, shell = self.view(client), self._shell(client)
        if shell is None or shell.name in view.names:
            return view.environments
        return (*view.environments, shell)

    def find(self, client: Client, name: str) -> Environment:
        """The environment that a client means.

        Raises:
            EnvironmentUnavailableError: it cannot be used; the message says why.
            UnknownEnvironmentError: there is none; the message says which there are.
        """
        view = self.view(client)
        environment = view.names.get(name)
        if environment is None:
            environment = self._shell(client)
            if environment is None or environment.name != name:
                raise self._unknown(client, view, name)
        if environment.problem is not None:
            raise self._unavailable(client, environment.name, environment.problem)
        return environment

    def own_of(self, client: Client, environment: Environment) -> Sources | None:
        """Find the client's own source of an environment; None if everybody has it."""
        own = client.sources
        if own is None or self._everyones.names.get(environment.name) == environment:
            return None
        for source in reversed(own_sources(own)):
            if source in self._said and environment in self._said[source].environments:
                match source.rank:
                    case Rank.CLIENT_METADATA:
                        return Sources(metadata=source.of)
                    case Rank.CLIENT_BUILT:
                        return Sources(flakes=(source.of,))
                    case _:
                        return Sources(directory=source.of)
        return None

    def reachable(self) -> Callable[[Environment], bool]:
        """Tells whether a call of somebody may mean an environment, as things are now."""
        views = [self._everyones, *self._views.values()]
        known = {environment for view in views for environment in view.environments}
        shells = self._shells
        if shells is None:
            return lambda environment: environment in known
        # What a project's own is, depends on who asks.
        return lambda environment: environment in known or shells.is_current(environment)

    def listed(self) -> Iterator[Listed]:
        """Everything there is, for everyone first."""
        everyone = self._everyones
        for environment in everyone.environments:
            yield Listed(
                item=environment,
                aliases=tuple(everyone.aliases(environment)),
                hides=everyone.hides.get(environment.name, ()),
            )
        for problem in everyone.problems:
            yield Listed(item=problem)
        for source in sorted(self._said, key=lambda source: source.rank):
            if (only_for := source.only_for) is not None:
                said = self._said[source]
                for environment in said.environments:
                    hidden = everyone.names.get(environment.name)
                    missed = hidden is not None and _is_missed(hidden, environment)
                    hides = (hidden.source,) if hidden is not None and missed else ()
                    yield Listed(item=environment, only_for=only_for, hides=hides)
                for problem in said.problems:
                    yield Listed(item=problem, only_for=only_for)
        for row in self._shells.rows() if self._shells else ():
            yield Listed(item=row, only_for="its project")

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
        self._tell()

    def _tell(self) -> None:
        for subscriber in list(self._subscribers.values()):
            subscriber()

    def _shell(self, client: Client) -> Environment | None:
        return None if self._shells is None else self._shells.environment(client)

    def _sources(self, own: Sources | None) -> list[Source]:
        """The sources of a view, the one that wins last."""
        wanted = [s for s in self._said if s.only_for is None]
        if own is not None:
            wanted += own_sources(own)
        return sorted((s for s in wanted if s in self._said), key=lambda source: source.rank)

    def _make(self, sources: Sequence[Source]) -> View:
        found: dict[str, Environment] = {}
        problems: list[EnvironmentProblem] = []
        hides: dict[str, tuple[str, ...]] = {}
        for source in sources:
            said = self._said[source]
            for environment in said.environments:
                hidden = found.get(environment.name)
                if hidden is not None and _is_missed(hidden, environment):
                    before = hides.get(environment.name, ())
                    hides[environment.name] = (*before, hidden.source)
                found[environment.name] = environment
            problems += said.problems
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

    # Words.

    def _unknown(
        self, client: Client, view: View, name: str
    ) -> UnknownEnvironmentError | EnvironmentUnavailableError:
        for problem in view.problems:
            if problem.name == name:
                why = problem.explain() if problem.explain is not None else problem.why
                return self._unavailable(client, name, f"{problem.where}: {why}")
        known = self._usable(client)
        near = difflib.get_close_matches(name, [*known, *ALIASES], n=1)
        guess = f"Did you mean {near[0]!r}? " if near else ""
        hint = f"{guess}Available: {', '.join(known) or 'none'}."
        for problem in [p for p in view.problems if p.name is None][:_TOLD]:
            hint += f" {problem.where}: {problem.why}."
        message = f"No environment {name[:80]!r}."
        for source in self._sources(client.sources):
            if where := self._removed.get((source, name)):
                message = f"Environment {name[:80]!r} was removed: {where} has it no more."
        return UnknownEnvironmentError(message, hint=hint, data={"available": known})

    def _unavailable(self, client: Client, name: str, why: str) -> EnvironmentUnavailableError:
        known = self._usable(client)
        return EnvironmentUnavailableError(
            f"Environment {name!r} is unavailable: {why}",
            hint=f"Available: {', '.join(known) or 'none'}. `nsm env` and `nsm doctor` say more.",
            data={"available": known},
        )

    def _usable(self, client: Client) -> list[str]:
        return [e.name for e in self.environments(client) if e.problem is None]

    def _note(self, source: Source, before: _Said, said: _Said) -> None:
        """Log what changed, and remember what is gone."""
        old = {environment.name: environment for environment in before.environments}
        new = {environment.name: environment for environment in said.environments}
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
        for problem in said.problems:
            if problem not in before.problems:
                passes = problem.explain is not None
                level = logging.INFO if passes else logging.WARNING
                log.log(level, "environment %s: %s: %s", problem.name, problem.where, problem.why)


def own_sources(own: Sources) -> list[Source]:
    """The sources that a client's entry names, the one that wins last."""
    found: list[Source] = []
    if own.metadata is not None:
        found.append(Source(rank=Rank.CLIENT_METADATA, of=own.metadata))
    found += [Source(rank=Rank.CLIENT_BUILT, of=flake) for flake in own.flakes]
    if own.directory is not None:
        found.append(Source(rank=Rank.CLIENT_DIRECTORY, of=own.directory))
    return found


def _is_missed(hidden: Environment, winner: Environment) -> bool:
    """Return whether somebody may miss the hidden environment: it works, and differs from the
    winner."""
    return hidden.problem is None and hidden.artifact != winner.artifact
