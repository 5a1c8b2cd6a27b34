"""The artifacts in directories and metadata that variables name, for everyone or for one client:
each an environment, or a problem.

No content is fatal or blocks, and nothing is run. All functions but those of `ArtifactDiscovery`
read files: call them in a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

from nsm.below import read_file
from nsm.dataclass import dataclass, field, replace
from nsmd.environments.artifacts import metadata
from nsmd.environments.artifacts.metadata import Metadata, MetadataError, ProgramPaths
from nsmd.environments.catalog import (
    Catalog,
    EnvironmentSource,
    Rank,
    each_name_once,
    own_sources,
)
from nsmd.host.paths import DistrustError, NoWay, Trail, WatchedPaths, printable
from nsmd.host.source_watcher import SourceWatcher
from nsmd.jail.interpreters import reserved_mb
from nsmd.model.names import ENVIRONMENT_NAME
from nsmd.model.settings import Defaults
from nsmd.model.values import (
    Artifact,
    ClientIdentity,
    Environment,
    EnvironmentProblem,
    Sources,
)

METADATA_VARIABLE = "NIX_SANDBOX_METADATA"
DIRECTORY_VARIABLE = "NIX_SANDBOX_DIR"
FLAKES_VARIABLE = "NIX_SANDBOX_ENVS"

MAX_FLAKES = 64
"""Largest number of flakes to read from one variable. Fewer are built
(`nsmd.environments.builds.builder`); for the others, a problem says that they are too many.
"""

MAX_ARTIFACTS = 256
"""Largest number of artifacts of one directory, the first by name. Each is a line that models read;
a user who names /nix/store by mistake should notice.
"""

MAX_METADATA_BYTES = 256 * 1024

_METADATA, _RUN, _SESSION_RUN, _TEMPLATE_RUN = (
    "metadata.json",
    "bin/run",
    "bin/session-run",
    "bin/template-run",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Result of one look at a source of environments.

    Attributes:
        environments: environments in display order, with unique names.
        problems: artifacts that cannot be used, with reasons.
    """

    environments: tuple[Environment, ...] = ()
    problems: tuple[EnvironmentProblem, ...] = ()
    places: WatchedPaths = field(default_factory=dict[str, frozenset[str]])


class ArtifactError(Exception):
    """An artifact cannot be used; the message is a clause that says why."""


def scan_directory(
    directory: str,
    defaults: Defaults,
    owners: Collection[int],
    *,
    expected: bool,
    no_way: NoWay = lambda _: None,
) -> Scan:
    """Scan a directory for artifacts: its subdirectories, and symbolic links to directories.

    Args:
        directory: absolute; may be missing.
        defaults: limits of environments that set none.
        no_way: returns why the jails' user cannot reach a file; None if it can.
        expected: somebody named it, so that its absence is a problem.
    """
    trail = Trail(owners, no_way)
    try:
        names = trail.list(trail.follow(directory))
    except FileNotFoundError:
        why = "there is no such directory (yet)"
        missing = EnvironmentProblem(name=None, where=printable(directory), why=why)
        return Scan(problems=(missing,) if expected else (), places=trail.places)
    except OSError as error:
        problem = EnvironmentProblem(name=None, where=printable(directory), why=_why(error))
        return Scan(problems=(problem,), places=trail.places)
    # Programs that copy artifacts there use such names until they are complete.
    names = [name for name in names if not name.startswith(".")]
    environments: list[Environment] = []
    problems: list[EnvironmentProblem] = []
    if len(names) > MAX_ARTIFACTS:
        why = f"it has {len(names)} entries; those after the first {MAX_ARTIFACTS} are left out"
        problems.append(EnvironmentProblem(name=None, where=printable(directory), why=why))
    for name in names[:MAX_ARTIFACTS]:
        path = os.path.join(directory, name)
        guess = name if ENVIRONMENT_NAME.fullmatch(name) else None
        try:
            if _is_file(trail, path):
                continue  # a README, for example
            environments.append(_read_artifact(path, defaults, trail, printable(path)))
        except ArtifactError as error:
            problem = EnvironmentProblem(name=guess, where=printable(path), why=str(error))
            problems.append(problem)
    return _scan(environments, problems, trail)


def scan_metadata(
    text: str,
    defaults: Defaults,
    owners: Collection[int],
    *,
    no_way: NoWay = lambda _: None,
) -> Scan:
    """Read the environments in the value of `NIX_SANDBOX_METADATA`.

    Args:
        defaults, owners, no_way: as in `scan_directory`.
    """
    trail = Trail(owners, no_way)
    environments: list[Environment] = []
    problems: list[EnvironmentProblem] = []
    try:
        entries = metadata.parse_variable(text).environments
    except MetadataError as error:
        problem = EnvironmentProblem(name=None, where=METADATA_VARIABLE, why=str(error))
        return Scan(problems=(problem,))
    for name, value in entries.items():
        try:
            environments.append(_entry(name, value, defaults, trail))
        except ArtifactError as error:
            guess = name if ENVIRONMENT_NAME.fullmatch(name) else None
            where = METADATA_VARIABLE if guess else f"{METADATA_VARIABLE}: {name!r:.80}"
            problems.append(EnvironmentProblem(name=guess, where=where, why=str(error)))
    return _scan(environments, problems, trail)


def _scan(
    environments: Sequence[Environment], problems: Sequence[EnvironmentProblem], trail: Trail
) -> Scan:
    named, hidden = each_name_once(environments)
    return Scan(environments=named, problems=(*problems, *hidden), places=trail.places)


def _entry(name: str, value: object, defaults: Defaults, trail: Trail) -> Environment:
    """Make the environment of one entry of `NIX_SANDBOX_METADATA`."""
    try:
        entry = metadata.parse_entry(name, value, defaults)
    except MetadataError as error:
        raise ArtifactError(str(error)) from None
    if isinstance(entry, str):
        try:
            environment = _read_artifact(entry, defaults, trail, METADATA_VARIABLE)
        except ArtifactError as error:
            raise ArtifactError(f"{printable(entry)}: {error}") from None
        return replace(environment, name=name)
    described, programs = entry
    artifact = _artifact(described, programs, trail, required=True)
    return _environment(described, artifact, METADATA_VARIABLE)


def read_artifact(
    path: str,
    defaults: Defaults,
    owners: Collection[int],
    *,
    source: str | None = None,
    no_way: NoWay = lambda _: None,
) -> Environment:
    """Make the environment of an artifact; blocks.

    Args:
        path: absolute path of its directory, or of a symbolic link to it.
        defaults, owners, no_way: as in `scan_directory`.
        source: source to show, if that is not the path.
    """
    trail = Trail(owners, no_way)
    return _read_artifact(path, defaults, trail, source or printable(path))


def _read_artifact(path: str, defaults: Defaults, trail: Trail, source: str) -> Environment:
    real = _follow(trail, path, "")
    if not stat.S_ISDIR(trail.status(real).st_mode):
        raise ArtifactError("it is not a directory")
    try:
        described = metadata.parse_file(_read(trail, real), defaults)
    except MetadataError as error:
        raise ArtifactError(f"{_METADATA}: {error}") from None
    programs = ProgramPaths(
        run=os.path.join(real, _RUN),
        session_run=os.path.join(real, _SESSION_RUN),
        template_run=os.path.join(real, _TEMPLATE_RUN),
    )
    artifact = _artifact(described, programs, trail, required=False)
    return _environment(described, artifact, source)


def _environment(described: Metadata, artifact: Artifact, source: str) -> Environment:
    return Environment(
        name=described.name,
        interpreter=described.interpreter,
        description=described.description,
        program=described.program,
        timeout_s=described.timeout_s,
        memory_mb=described.memory_mb,
        reserved_mb=reserved_mb(described.interpreter, None),
        cpu_weight=described.cpu_weight,
        preload=described.preload,
        source=source,
        artifact=artifact,
    )


def _artifact(
    described: Metadata, programs: ProgramPaths, trail: Trail, *, required: bool
) -> Artifact:
    """Check the programs.

    Args:
        required: each named program must exist; otherwise missing ones are ignored.
    """
    run = _program(trail, programs.run, whole=required)
    session_run = _optional(trail, programs.session_run, required=required)
    template_run = None
    if described.forks and session_run is not None:
        template_run = _optional(trail, programs.template_run, required=required)
    files = [path for path in (run, session_run, template_run) if path is not None]
    return Artifact(
        run=run,
        session_run=session_run,
        template_run=template_run,
        schema=described.schema,
        stamp=" ".join(_stamp(trail.status(path)) for path in files),
        takes=described.takes,
    )


def _optional(trail: Trail, path: str | None, *, required: bool) -> str | None:
    if path is None:
        return None
    try:
        trail.follow(path, trusted=False)
    except FileNotFoundError:
        if not required:
            return None
    except OSError:
        pass  # another message below says that
    return _program(trail, path, whole=required)


def _program(trail: Trail, path: str, *, whole: bool) -> str:
    """Find the real path of a program."""
    shown = printable(path) if whole else "/".join(path.split("/")[-2:])
    real = _follow(trail, path, f"{shown}: ")
    if not stat.S_ISREG(trail.status(real).st_mode):
        raise ArtifactError(f"{shown}: it is not a regular file")
    if not os.access(real, os.X_OK, effective_ids=True):
        raise ArtifactError(f"{shown}: it is not executable")
    if reason := trail.why_closed(real):
        raise ArtifactError(f"{shown}: {printable(reason)}, the user that jails run as")
    return real


def _read(trail: Trail, artifact: str) -> bytes:
    """Read an artifact's metadata; anything that is no regular file is not even opened."""
    real = _follow(trail, os.path.join(artifact, _METADATA), f"{_METADATA}: ")
    try:
        if not stat.S_ISREG(trail.status(real).st_mode):
            raise ArtifactError(f"{_METADATA}: it is not a regular file")
        data = read_file(real, MAX_METADATA_BYTES + 1)
    except OSError as error:
        raise ArtifactError(f"{_METADATA}: {_why(error)}") from None
    if len(data) > MAX_METADATA_BYTES:
        raise ArtifactError(f"{_METADATA}: it has more than {MAX_METADATA_BYTES} bytes")
    return data


def _follow(trail: Trail, path: str, prefix: str) -> str:
    try:
        return trail.follow(path)
    except OSError as error:
        raise ArtifactError(prefix + _why(error, path)) from None


def _is_file(trail: Trail, path: str) -> bool:
    try:
        return stat.S_ISREG(trail.status(trail.follow(path, trusted=False)).st_mode)
    except OSError:
        return False


def _why(error: OSError, path: str = "") -> str:
    if isinstance(error, DistrustError):
        reason = printable(error.strerror or "")
        return f"its programs are not run, since somebody else could exchange them: {reason}"
    if isinstance(error, FileNotFoundError):
        if (target := _target(path)) is None:
            return "it is missing"
        return (
            f"it is a symbolic link to {target}, where nothing is (garbage collection deletes "
            "store paths without a root)"
        )
    if error.errno == errno.ELOOP:
        return "its symbolic links lead in a circle"
    return f"it cannot be read: {error.strerror}"


def _target(path: str) -> str | None:
    try:
        return printable(os.readlink(path))
    except OSError:
        return None


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


# What variables name, kept up to date in the catalog.


def sources_of(variables: Mapping[str, str]) -> Sources | None:
    """Sources that variables name; None if they name none."""
    given = variables.get(FLAKES_VARIABLE, "").split(",")
    sources = Sources(
        directory=variables.get(DIRECTORY_VARIABLE) or None,
        metadata=variables.get(METADATA_VARIABLE) or None,
        flakes=tuple(dict.fromkeys(f.strip() for f in given if f.strip()))[:MAX_FLAKES],
    )
    return None if sources == Sources() else sources


class ArtifactDiscovery:
    """Keep a catalog up to date with directories and metadata.

    Args:
        defaults: limits of environments that set none.
        no_way: returns why the jails' user cannot reach a file; None if it can.
    """

    def __init__(
        self,
        watcher: SourceWatcher,
        catalog: Catalog,
        defaults: Defaults,
        *,
        owners: Collection[int],
        home: str,
        no_way: NoWay = lambda _: None,
    ) -> None:
        self._watcher = watcher
        self._catalog = catalog
        self._defaults = defaults
        self._owners = owners
        self._home = home
        self._no_way = no_way
        self._everyones = (
            EnvironmentSource(rank=Rank.METADATA),
            EnvironmentSource(rank=Rank.DIRECTORY),
        )
        self._holders: dict[EnvironmentSource, int] = {}

    async def begin(self, named: Sources, usual: str) -> None:
        """Find the environments that are for everyone."""
        directory = EnvironmentSource(rank=Rank.DIRECTORY)
        if named.directory is None:
            self._keep_directory(directory, usual, expected=False)
        else:
            self._keep_directory(directory, named.directory, expected=True)
        if named.metadata is not None:
            self._keep_metadata(EnvironmentSource(rank=Rank.METADATA), named.metadata)
        await self._watcher.first_look(*self._everyones)

    @asynccontextmanager
    async def opened(self, own: Sources | None) -> AsyncGenerator[None]:
        """Watch these sources while a client has them. They have been read when the block begins,
        unless that takes long.
        """
        sources = [s for s in own_sources(own) if s.rank is not Rank.CLIENT_BUILT] if own else []
        new = [source for source in sources if source not in self._holders]
        for source in sources:
            self._holders[source] = self._holders.get(source, 0) + 1
        try:
            for source in new:
                if source.rank is Rank.CLIENT_DIRECTORY:
                    self._keep_directory(source, source.of, expected=True)
                else:
                    self._keep_metadata(source, source.of)
            await self._watcher.first_look(*sources)
            yield
        finally:
            for source in sources:
                self._holders[source] -= 1
                if not self._holders[source]:
                    del self._holders[source]
                    self._watcher.end(source)
                    self._catalog.drop(source)

    async def search_again(self, client: ClientIdentity | None) -> None:
        """Read sources again, because somebody asks for an unknown environment.

        Args:
            client: client whose sources to read; None for all.
        """
        if client is None:
            await self._watcher.look(*self._everyones, *self._holders)
        else:
            own = own_sources(client.sources) if client.sources else []
            await self._watcher.look(*self._everyones, *own)

    def _keep_directory(self, source: EnvironmentSource, named: str, *, expected: bool) -> None:
        path = self._home + named[1:] if named == "~" or named.startswith("~/") else named
        if not os.path.isabs(path):
            why = "it is not an absolute path, so nothing is looked for"
            where = f"{DIRECTORY_VARIABLE}={printable(named)}"
            self._catalog.put(source, (), [EnvironmentProblem(name=None, where=where, why=why)])
            return
        scan = partial(
            scan_directory,
            path,
            self._defaults,
            self._owners,
            expected=expected,
            no_way=self._no_way,
        )
        self._keep(source, printable(path), scan)

    def _keep_metadata(self, source: EnvironmentSource, text: str) -> None:
        scan = partial(scan_metadata, text, self._defaults, self._owners, no_way=self._no_way)
        self._keep(source, METADATA_VARIABLE, scan)

    def _keep(self, source: EnvironmentSource, where: str, scan: Callable[[], Scan]) -> None:
        def report(found: Scan, unwatched: str | None) -> None:
            problems = found.problems
            if unwatched is not None:
                problems = (*problems, _unwatched(where, unwatched))
            self._catalog.put(source, found.environments, problems)

        self._watcher.keep(source, where, scan, report, partial(_failed, where))


def _unwatched(where: str, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        name=None,
        where=where,
        why=f"{why}; it is looked at when somebody runs `nsm env`, or asks for an environment "
        "that is not known",
    )


def _failed(where: str) -> Scan:
    why = "nsm failed to look at it; the supervisor's log has the details"
    return Scan(problems=(EnvironmentProblem(name=None, where=where, why=why),))
