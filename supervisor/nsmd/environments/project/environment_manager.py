"""The environments that lie in projects, for the clients of these projects.

Nothing polls. nsm checks whether files have changed when a client lists environments or calls.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Container, Sequence
from contextlib import suppress
from functools import partial

import trio

from nsm.dataclass import dataclass, replace
from nsm.wire.errors import (
    BadRequestError,
    EnvironmentUnavailableError,
    UnknownEnvironmentError,
)
from nsmd.environments.builds.builder import Builder
from nsmd.environments.builds.building import Building, ProjectPackages, so_far
from nsmd.environments.catalog import ProjectSource
from nsmd.environments.project import package_lists, reading
from nsmd.environments.project.agreements import (
    MAX_AGREEMENTS,
    AgreedEnvironment,
    FindPython,
    Pythons,
    UseAgreement,
    built_environment,
    make_environment,
    save_agreements,
    shown_path,
    why_python_refused,
)
from nsmd.environments.project.package_lists import ListCopies, PackageList
from nsmd.environments.project.reading import FoundEnvironment, NoEnvironmentError, parts
from nsmd.host.event_loop import BoundedReads
from nsmd.host.paths import is_within, printable
from nsmd.model.names import ENVIRONMENT_NAME
from nsmd.model.packages import check_packages
from nsmd.model.values import ClientIdentity, Environment, ProjectMount

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRow:
    """An environment of a project, or a list of packages, for people.

    Attributes:
        found: None if it is not there any more, or was not read.
        package_count: number of packages of a lock; 0 if nobody has counted.
        name: name in use; None if nobody has agreed to use it.
        problem: why it cannot be used; else empty.
    """

    path: str
    kind: str
    found: FoundEnvironment | None
    package_count: int = 0
    name: str | None = None
    changed: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """Options for an environment that is made from a list of packages, as in `WantedPackages`."""

    interpreter: str = ""
    allow_builds: bool = False
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class ProjectEnvironmentManager(ProjectSource):
    """The environments in projects that people agreed to use.

    Args:
        path: of the file of the agreements; nsm's copies of lists of packages lie beside it.
        nursery: owns the questions to Pythons.
    """

    def __init__(
        self,
        path: str,
        agreements: Sequence[UseAgreement],
        nursery: trio.Nursery,
    ) -> None:
        super().__init__()
        self._path = path
        self._lists = ListCopies(f"{os.path.splitext(path)[0]}.lists")
        self._projects: dict[str, list[AgreedEnvironment]] = {}
        self._node: Environment | None = None
        self._builder: Builder | None = None
        self._pythons = Pythons(nursery, lambda: self.changed())  # noqa: PLW0108 (set later)
        self._writing = trio.Lock()
        self._reads = BoundedReads()
        self._use_agreements(agreements)

    def __repr__(self) -> str:
        return f"<ProjectEnvironmentManager of {len(self._projects)} projects>"

    def configure(self, find_python: FindPython, node: Environment | None) -> None:
        """Use these interpreters from now on; `node` is the host's."""
        self._node = node
        self._pythons.configure(find_python)
        self.changed()

    def build_with(self, builder: Builder) -> Sequence[ProjectPackages]:
        """Build lists of packages with this builder; return those that are agreed to now."""
        self._builder = builder
        builder.subscribe(lambda: self.changed())  # noqa: PLW0108 (set later)
        return self._agreed_lists()

    # For the catalog.

    def environments(self, client: ClientIdentity) -> Sequence[Environment]:
        """Return those of a client's project."""
        project = client.project
        if project is None:
            return ()
        agreed = self._projects.get(project.path, ())
        return [self._environment(each, project) for each in agreed]

    def rows(self) -> Sequence[Environment]:
        """All of them, as clients with the usual mount point have them."""
        found: list[Environment] = []
        for path, agreed in self._projects.items():
            project = self._mount_of(path)
            found += [self._environment(each, project) for each in agreed]
        return found

    async def ready(self) -> None:
        """Wait until no Python is asked any more."""
        self.rows()
        await self._pythons.ready()

    def is_current(self, environment: Environment) -> bool:
        """Return whether a client can have exactly this environment now."""
        for agreed in self._projects.values():
            for each in agreed:
                if each.agreement.source == environment.source:
                    if each.is_list:
                        return self._made(each, "") == environment
                    # The mount point is the client's choice; it is part of the program's path.
                    mounts = [target for _, target in environment.links]
                    return any(self._made(each, _mount(each, m)) == environment for m in mounts)
        return False

    def settled(self, client: ClientIdentity, name: str) -> trio.Event | None:
        """Event after which an environment's Python has answered, or its build has ended; None if
        nothing is under way.
        """
        for each in self._of(client):
            if each.agreement.name == name and each.is_list:
                building = self._building(each.agreement)
                attempt = None if building is None else building.attempt
                return None if attempt is None else attempt.done
            if each.agreement.name == name:
                return self._pythons.under_way(each.agreement.home, each.agreement.version)
        return None

    # For calls.

    def preferred(self, client: ClientIdentity, language: str) -> str | None:
        """Name of the project's environment for a language; None if it has none that works.

        The one that was agreed to last comes first.
        """
        for environment in reversed(self.environments(client)):
            if environment.interpreter == language and environment.problem is None:
                return environment.name
        return None

    def notes(self, client: ClientIdentity, environment: Environment) -> tuple[str, ...]:
        """Notes for a result of code in an environment; each scope gets them once."""
        for each in self._of(client):
            if each.agreement.source == environment.source and client.project is not None:
                self._refresh(each, client.project)
                notes = (each.note_of_change(client.scope), self._note_of_build(each.agreement))
                return tuple(note for note in notes if note)
        return ()

    def _note_of_build(self, agreement: UseAgreement) -> str:
        """Note for a result that its environment is being rebuilt; else empty."""
        building = self._building(agreement)
        if building is None or building.attempt is None or building.built is None:
            return ""
        return (
            f"{agreement.name} is being rebuilt, and this ran in the previous environment: "
            f"{so_far(building.attempt)}"
        )

    # For people.

    async def find(self, project: ProjectMount) -> list[ProjectRow]:
        """Find the environments of a project and its lists of packages, in use or not.

        Raises:
            BadRequestError: the project cannot be read.
        """
        try:
            rows = await trio.to_thread.run_sync(find_rows, project)
        except OSError as error:
            raise BadRequestError(
                f"{printable(project.path)} cannot be read: {error.strerror}."
            ) from error
        agreed = {each.agreement.path: each for each in self._projects.get(project.path, ())}
        by_path = {row.path: row for row in rows}
        found: list[ProjectRow] = []
        for path in dict.fromkeys((*by_path, *agreed)):
            each, row = agreed.get(path), by_path.get(path)
            if each is not None:
                kind = each.agreement.kind
                row = row or ProjectRow(path=path, kind=kind, found=each.found)
                environment = self._environment(each, project)
                row = replace(
                    row,
                    name=each.agreement.name,
                    changed=each.changed,
                    problem=environment.problem or environment.pending or "",
                )
            if row is not None:
                found.append(row)
        return found

    async def use(
        self,
        project: ProjectMount,
        path: str,
        name: str | None,
        taken: Container[str],
        options: ListOptions | None = None,
    ) -> ProjectRow:
        """Agree to use an environment of a project, as it is now.

        Args:
            path: of its directory, or of a list of packages, relative to the project.
            name: for it; None for one that is made from the path.

        Raises:
            BadRequestError: there is none, or the name cannot be used.
            EnvironmentUnavailableError: it cannot be used here, or not be remembered.
        """
        async with self._writing:
            if is_list := package_lists.is_list(path):
                agreement, row = await self._agree_to_list(project, path, options or ListOptions())
            else:
                if options not in (None, ListOptions()):
                    raise BadRequestError(
                        f"{shown_path(path)} is not a list of packages, so nothing is installed.",
                        hint="Leave out --python, --node, --allow-builds, --extra and --group.",
                    )
                agreement, row = await self._agree(project, path)
            agreements = [each for each in self._all() if not _means(each, project, row.path)]
            others = [each.name for each in agreements if each.project == project.path]
            before = next((a.name for a in self._all() if _means(a, project, row.path)), None)
            name = name or before or _name_of(os.path.splitext(path)[0] if is_list else row.path)
            _check_name(name, others, taken)
            if len(agreements) >= MAX_AGREEMENTS:
                raise BadRequestError(
                    f"At most {MAX_AGREEMENTS} environments of projects are remembered.",
                    hint="`nsm env use --forget PATH` forgets one.",
                )
            agreement = replace(agreement, name=name, agreed_s=time.time())
            await self._replace([*agreements, agreement])
        building = self._building(agreement)
        if building is not None and self._builder is not None:
            self._builder.build_if_missing(building)
        return replace(row, name=name)

    async def _agree(self, project: ProjectMount, path: str) -> tuple[UseAgreement, ProjectRow]:
        """Make the agreement for an environment that lies in a project."""
        found = await self._read(project, path)
        if found.kind == "venv":
            await self._check_python(project, found)
        elif self._node is None or self._node.problem is not None:
            why = self._node.problem if self._node is not None else "there is no Node"
            raise EnvironmentUnavailableError(f"{shown_path(found.path)} cannot be used: {why}.")
        agreement = UseAgreement(
            project=project.path,
            path=found.path,
            kind=found.kind,
            name="",
            home=found.home,
            version=found.version,
            interpreter_key=found.interpreter_key,
            packages_key=found.packages_key,
        )
        return agreement, ProjectRow(path=found.path, kind=found.kind, found=found)

    async def _agree_to_list(
        self, project: ProjectMount, path: str, options: ListOptions
    ) -> tuple[UseAgreement, ProjectRow]:
        """Make the agreement for a list of packages, and copy it."""
        try:
            found = await trio.to_thread.run_sync(_read_list, project, path, options)
        except NoEnvironmentError as error:
            raise BadRequestError(
                f"{shown_path(path)} of {printable(project.path)} cannot be used: {error}.",
                hint="`nsm env found` lists what can be used.",
            ) from error
        try:
            folder = await trio.to_thread.run_sync(self._lists.keep, project.path, found)
        except OSError as error:
            raise _not_remembered(error) from error
        wanted = replace(
            found.wanted(folder),
            interpreter=options.interpreter,
            allow_builds=options.allow_builds,
            extras=options.extras,
            groups=options.groups,
        )
        agreement = UseAgreement(
            project=project.path,
            path=path,
            kind="packages",
            name="",
            interpreter_key="",
            packages_key=found.found.packages_key,
            files=tuple(found.files),
            packages=check_packages(wanted),
        )
        row = ProjectRow(path=path, kind="packages", found=found.found, package_count=found.count)
        return agreement, row

    async def forget(self, project: str, target: str) -> str:
        """Forget an agreement; sessions in its environment live on. Returns its name.

        Args:
            project: real path of the project.
            target: path relative to the project, or name.
        """
        async with self._writing:
            agreements = self._all()
            for each in agreements:
                if each.project == project and target in (each.path, each.name):
                    await self._replace([other for other in agreements if other is not each])
                    return each.name
        raise UnknownEnvironmentError(
            f"{printable(project)} has no environment {printable(target)[:200]!r} in use.",
            hint="`nsm env found` lists those that are.",
        )

    async def _read(self, project: ProjectMount, path: str) -> FoundEnvironment:
        try:
            path = "/".join(parts(path))
            return await trio.to_thread.run_sync(reading.read, project, path)
        except (OSError, NoEnvironmentError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise BadRequestError(
                f"{shown_path(path)} of {printable(project.path)} cannot be used: {why}.",
                hint="Name a virtual environment of Python, a node_modules or a list of packages "
                "in the project; `nsm env found` lists them.",
            ) from error

    async def _check_python(self, project: ProjectMount, found: FoundEnvironment) -> None:
        problem = why_python_refused(found.home, project)
        if not problem:
            python = self._pythons.ask(found.home, found.version)
            await python.settled.wait()
            problem = (python.environment and python.environment.problem) or ""
        if problem:
            raise EnvironmentUnavailableError(
                f"{shown_path(found.path)} cannot be used: {problem}."
            )

    async def _replace(self, agreements: Sequence[UseAgreement]) -> None:
        """Replace the agreements; the new ones count once the file has them."""
        try:
            await trio.to_thread.run_sync(save_agreements, self._path, agreements)
        except OSError as error:
            raise _not_remembered(error) from error
        # First without those that are new, so that nothing stays of what they replace.
        known = self._all()
        self._use_agreements([agreement for agreement in agreements if agreement in known])
        self.changed()
        self._use_agreements(agreements)
        self.changed()
        if self._builder is not None:
            self._builder.keep_for_projects(self._agreed_lists())
        kept = [each.packages.file for each in agreements if each.packages is not None]
        await trio.to_thread.run_sync(self._lists.keep_only, kept)

    def _agreed_lists(self) -> list[ProjectPackages]:
        return [
            ProjectPackages(
                project=each.project, name=each.name, path=each.source, packages=each.packages
            )
            for each in self._all()
            if each.packages is not None
        ]

    def _building(self, agreement: UseAgreement) -> Building | None:
        if self._builder is None or agreement.kind != "packages":
            return None
        return self._builder.of_project(agreement.project, agreement.name)

    # State.

    def _all(self) -> list[UseAgreement]:
        agreements = [each.agreement for agreed in self._projects.values() for each in agreed]
        return sorted(agreements, key=lambda agreement: agreement.agreed_s)

    def _use_agreements(self, agreements: Sequence[UseAgreement]) -> None:
        known = {each.agreement: each for agreed in self._projects.values() for each in agreed}
        self._projects = {}
        for agreement in agreements:
            agreed = known.get(agreement) or AgreedEnvironment(agreement=agreement)
            self._projects.setdefault(agreement.project, []).append(agreed)

    def _of(self, client: ClientIdentity) -> Sequence[AgreedEnvironment]:
        return () if client.project is None else self._projects.get(client.project.path, ())

    def _refresh(self, agreed: AgreedEnvironment, project: ProjectMount) -> None:
        if agreed.refresh(project, self._reads):
            self.changed()

    def _environment(self, agreed: AgreedEnvironment, project: ProjectMount) -> Environment:
        self._refresh(agreed, project)
        return self._made(agreed, project.mount_point)

    def _made(self, agreed: AgreedEnvironment, mount_point: str) -> Environment:
        agreement, problem, base = agreed.agreement, agreed.problem, self._node
        if agreed.is_list:
            return built_environment(agreement, self._building(agreement))
        if agreement.kind == "venv" and not problem:
            base = self._pythons.ask(agreement.home, agreement.version).environment
        modules = agreed.found.modules if agreed.found is not None else ()
        return make_environment(agreement, base, mount_point, problem=problem, modules=modules)

    def _mount_of(self, path: str) -> ProjectMount:
        """The project at a path, with an impossible identity if there is none."""
        device = inode = -1
        with suppress(OSError):
            found = self._reads.read(path, partial(os.stat, path))
            device, inode = found.st_dev, found.st_ino
        return ProjectMount(path=path, mount_point="/project", device=device, inode=inode)


def _read_list(project: ProjectMount, path: str, options: ListOptions) -> PackageList:
    python = os.path.realpath(options.interpreter) if options.interpreter else ""
    if python and is_within(python, project.path):
        raise NoEnvironmentError("its Python is in the project, and nsm runs no programs there")
    return package_lists.read(project, path)


def _not_remembered(error: OSError) -> EnvironmentUnavailableError:
    return EnvironmentUnavailableError(
        f"The agreement cannot be saved, so nothing was changed: {error.strerror}.",
        hint="`nsm doctor` says what is wrong with nsm's directories.",
    )


def _mount(agreed: AgreedEnvironment, target: str) -> str:
    """The mount point of an environment, from the target of its link."""
    if agreed.agreement.kind == "venv":
        return target
    return target.removesuffix("/" + agreed.agreement.path)


def _means(agreement: UseAgreement, project: ProjectMount, path: str) -> bool:
    return agreement.project == project.path and agreement.path == path


def _name_of(path: str) -> str:
    """The name for an environment that nobody named: of `.venv`, `venv`."""
    words = re.sub("[^a-z0-9]+", "-", path.lower()).strip("-")
    return words[:64].rstrip("-") or "project-venv"


def _check_name(name: str, others: Container[str], taken: Container[str]) -> None:
    if ENVIRONMENT_NAME.fullmatch(name) is None:
        raise BadRequestError(
            f"Environment name {name[:80]!r} is not allowed.",
            hint="Use 1 to 64 characters of a-z, 0-9 and '-'; do not begin with '-'.",
        )
    if name in others or name in taken:
        raise BadRequestError(
            f"There is another environment {name!r}.", hint="Choose a name with --name."
        )


def find_rows(project: ProjectMount) -> list[ProjectRow]:
    """Read what lies in a project. Blocks.

    Raises:
        OSError: the project cannot be read.
    """
    rows = [
        ProjectRow(path=found.path, kind=found.kind, found=found)
        for found in reading.find_all(project)
    ]
    for path in package_lists.find_all(project):
        count, problem = 0, package_lists.why_not(path)
        if not problem:
            try:
                count = package_lists.read(project, path).count
            except NoEnvironmentError as error:
                problem = str(error)
        rows.append(
            ProjectRow(path=path, kind="packages", found=None, package_count=count, problem=problem)
        )
    return rows
