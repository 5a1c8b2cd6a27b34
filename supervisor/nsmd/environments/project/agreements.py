"""Agreements to use what lies in projects: kept in a file, compared with what is there now, and
made into environments, for which the Pythons of virtual environments are asked.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import trio

from nsm.dataclass import dataclass, field, replace
from nsm.wire.decode import Constraint
from nsmd.environments import saved_records
from nsmd.environments.builds.building import Building, so_far
from nsmd.environments.builds.building import problem as problem_of
from nsmd.environments.project import package_lists, reading
from nsmd.environments.project.reading import FoundEnvironment, Kind, NoEnvironmentError
from nsmd.host.event_loop import BoundedReads
from nsmd.host.paths import is_within, printable
from nsmd.model.names import ENVIRONMENT_NAME
from nsmd.model.packages import WantedPackages
from nsmd.model.values import Environment, ProjectMount

log = logging.getLogger(__name__)

MAX_AGREEMENTS = 256
"""Largest number of agreements to remember. Each has less than 10 KiB."""

MAX_TOLD = 256
"""Largest number of scopes that are remembered as notified of a change."""

RETRY_S = 60.0
"""Time after which a Python that did not work is asked again."""

FindPython = Callable[[str, Sequence[int]], Environment]
"""Makes the environment of the Python in a directory, given its version. Blocks."""

NODE_MODULES = "/node_modules"
"""Place in the jail where code finds packages from any directory: Node looks in each directory up
to the root.
"""

_MAX_PATH_CHARS = 200


def _is_absolute(path: str) -> bool:
    return path.startswith("/") and os.path.normpath(path) == path


def _is_below(path: str) -> bool:
    return path != "" and not path.startswith("/") and ".." not in path.split("/")


def _is_name(name: str) -> bool:
    return ENVIRONMENT_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class UseAgreement:
    """An environment of a project that somebody agreed to use.

    Attributes:
        project: real path of the project.
        path: of the environment's directory, relative to the project.
        home, version, interpreter_key, packages_key: as in `FoundEnvironment`, when it was agreed.
        files: of a list of packages: paths of all its files, relative to the project.
        packages: of a list of packages: those to install, named by nsm's copies of its files.
        agreed_s: Unix time.
    """

    project: Annotated[str, Constraint(_is_absolute, "a normalised absolute path")]
    path: Annotated[str, Constraint(_is_below, "a path below the project")]
    kind: Kind
    name: Annotated[str, Constraint(_is_name, "a name of an environment")]
    home: str = ""
    version: str = ""
    interpreter_key: str
    packages_key: str
    files: tuple[Annotated[str, Constraint(_is_below, "a path below the project")], ...] = ()
    packages: WantedPackages | None = None
    agreed_s: float = 0.0

    @property
    def source(self) -> str:
        """Absolute path of the environment's directory."""
        return os.path.join(self.project, self.path)


def load_agreements(path: str) -> list[UseAgreement]:
    """Load the agreements; none if the file is missing or broken. Blocks."""
    rows = saved_records.load(
        path, UseAgreement, "agreements", cure="`nsm env use` agrees once more"
    )
    return rows[:MAX_AGREEMENTS]


def save_agreements(path: str, agreements: Sequence[UseAgreement]) -> None:
    """Replace the file. Blocks. After an OSError, the old one is unchanged."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    saved_records.save(path, "agreements", agreements)


# Whether the files have changed.


@dataclass(slots=True, kw_only=True)
class AgreedEnvironment:
    """An environment that somebody agreed to use.

    Attributes:
        signature: value for its files at the last look; it changes when they do.
        found: the environment at the last look; None if there was none.
        problem: why it cannot be used; else empty.
        told: scopes whose clients were notified that it has changed.
    """

    agreement: UseAgreement
    signature: tuple[object, ...] | None = None
    found: FoundEnvironment | None = None
    problem: str = ""
    told: set[str] = field(default_factory=set[str])

    @property
    def is_list(self) -> bool:
        """True if it is made from a list of packages; False if it lies in the project."""
        return self.agreement.kind == "packages"

    @property
    def changed(self) -> bool:
        """True if its packages are not those of the agreement."""
        if self.found is None:
            return self.is_list and self.signature is not None
        return self.found.packages_key != self.agreement.packages_key

    def refresh(self, project: ProjectMount, reads: BoundedReads) -> bool:
        """Read the files again if they may have changed. Returns whether the environment has become
        usable or unusable.
        """
        first, before, changed = self.signature is None, self.problem, self.changed
        try:
            read = reads.read(project.path, partial(_read, self, project, self.signature))
        except TimeoutError as error:
            if first and not self.is_list:  # else nsm has a copy
                self.problem = f"{shown_path(self.agreement.path)}: {error.strerror}"
            return False
        if read is None:
            return False
        self.signature, self.found, self.problem = read
        if self.changed and not changed:
            self.told.clear()
            log.info("the packages in %s have changed", printable(self.agreement.source))
        return not first and self.problem != before

    def note_of_change(self, scope: str) -> str:
        """Note for a result that it has changed, once for each scope; else empty."""
        if not self.changed or scope in self.told:
            return ""
        if len(self.told) >= MAX_TOLD:
            self.told.clear()
        self.told.add(scope)
        path = printable(self.agreement.path)
        agrees = f"`nsm env use {path}` agrees to what is there now"
        if self.is_list:
            return (
                f"the project's {path} has changed since somebody agreed to it, and this "
                f"environment still has the packages from then; {agrees}"
            )
        return (
            f"the packages in the project's {path} have changed since somebody agreed to them; "
            f"{agrees}"
        )


def _read(
    agreed: AgreedEnvironment, project: ProjectMount, known: tuple[object, ...] | None
) -> tuple[tuple[object, ...], FoundEnvironment | None, str] | None:
    """Read the files unless they are as known. Blocks.

    Returns:
        What `AgreedEnvironment` has as `signature`, `found` and `problem`; None if nothing changed.
    """
    agreement = agreed.agreement
    files = (
        package_lists.signature(project, agreement.files)
        if agreed.is_list
        else reading.signature(project, agreement.path, agreement.kind, agreement.version)
    )
    sign = (project.device, project.inode, *files)
    if sign == known:
        return None
    try:
        if agreed.is_list:
            found = package_lists.read(project, agreement.path).found
        else:
            found = reading.read(project, agreement.path, details=False)
    except NoEnvironmentError as error:
        # Of a list nsm has a copy.
        return sign, None, "" if agreed.is_list else f"{shown_path(agreement.path)}: {error}"
    return sign, found, _why_not(found, agreement, project)


def why_python_refused(home: str, project: ProjectMount) -> str:
    """Return why the Python in a directory is not used for a project; else empty."""
    if any(is_within(path, project.path) for path in (home, os.path.realpath(home)) if home):
        return "its pyvenv.cfg names a Python in the project, and nsm runs no programs of projects"
    return ""


def _why_not(found: FoundEnvironment, agreement: UseAgreement, project: ProjectMount) -> str:
    """Return why an environment cannot be used although somebody agreed; else empty."""
    if found.interpreter_key != agreement.interpreter_key or found.kind != agreement.kind:
        path = shown_path(agreement.path)
        return (
            f"the interpreter of the project's {path} has changed since somebody agreed to use it; "
            f"`nsm env use {path}` agrees to what is there now"
        )
    return why_python_refused(found.home, project)


# Environments, as sessions get them.


def make_environment(
    agreement: UseAgreement,
    base: Environment | None,
    mount_point: str,
    *,
    problem: str = "",
    modules: tuple[str, ...] = (),
) -> Environment:
    """Make an environment.

    Args:
        base: of the host's interpreter; None if there is no Node, or while Python is asked.
        problem: why it cannot be used; else empty.
    """
    is_venv, path = agreement.kind == "venv", shown_path(agreement.path)
    unusable = Environment(
        name=agreement.name,
        interpreter="python" if is_venv else "node",
        source=agreement.source,
        description=f"the project's {path}",
    )
    if problem:
        return replace(unusable, problem=problem)
    if base is None and is_venv:
        return replace(unusable, pending=f"the Python in {shown_path(agreement.home)} is asked")
    if base is None or base.problem is not None:
        why = "there is no Node" if base is None else base.problem
        return replace(unusable, problem=f"{path}: {why}")
    there = f"{mount_point}/{agreement.path}"
    environment = replace(
        base,
        name=agreement.name,
        source=agreement.source,
        description=f"{base.description}, the project's {path}",
        preload=(),
    )
    if not is_venv:
        return replace(
            environment, links=((NODE_MODULES, there),), path=f"{there}/.bin:{base.path}"
        )
    return replace(
        environment,
        # The agent stays with the host's Python: a program of the project is no PID 1.
        program=f"{there}/bin/python",
        path=f"{there}/bin:{base.path}",
        packages=modules,
        variables=(*base.variables, ("VIRTUAL_ENV", there)),
        # Scripts, and packages that are installed as links, name the project by this path.
        links=((agreement.project, mount_point),),
    )


def built_environment(agreement: UseAgreement, building: Building | None) -> Environment:
    """Make the environment of a list of packages from its build, which is None if nsm has none."""
    description = f"the project's {shown_path(agreement.path)}"
    unusable = Environment(
        name=agreement.name,
        interpreter="python" if agreement.packages is None else agreement.packages.preset,
        source=agreement.source,
        description=description,
    )
    if building is None:
        return replace(unusable, problem="this supervisor builds no environments")
    if building.built is not None:
        built = building.built.environment
        return replace(
            built,
            source=agreement.source,
            description=f"{built.description}, {description}",
        )
    if building.attempt is not None:
        return replace(unusable, pending=so_far(building.attempt))
    problem = problem_of(building)
    return replace(unusable, problem="it is not built" if problem is None else problem.why)


def shown_path(path: str) -> str:
    """Format a path that anybody may have chosen, for people."""
    return printable(path)[:_MAX_PATH_CHARS]


# The Pythons that virtual environments were made with, asked in the background.


@dataclass(slots=True, kw_only=True)
class PythonAnswer:
    """Answer of a Python; without environment while it is asked."""

    environment: Environment | None = None
    settled: trio.Event = field(default_factory=trio.Event)
    asked_s: float = -math.inf


class Pythons:
    """The Pythons of virtual environments.

    Args:
        nursery: owns the questions.
        changed: called after each answer.
    """

    def __init__(self, nursery: trio.Nursery, changed: Callable[[], None]) -> None:
        self._find: FindPython = _find_none
        self._nursery = nursery
        self._changed = changed
        self._answers: dict[tuple[str, str], PythonAnswer] = {}

    def __repr__(self) -> str:
        return f"<Pythons {len(self._answers)}>"

    def configure(self, find: FindPython) -> None:
        """Ask all of them again, in this way."""
        self._find = find
        self._answers.clear()

    def ask(self, home: str, version: str) -> PythonAnswer:
        """Return what is known of the Python in a directory; ask it if that is nothing."""
        key, now = _key(home, version), trio.current_time()
        known = self._answers.get(key)
        if known is not None:
            answer = known.environment
            if answer is None or answer.problem is None or now - known.asked_s < RETRY_S:
                return known
        known = self._answers[key] = PythonAnswer(asked_s=now)
        self._nursery.start_soon(self._ask, known, self._find, *key)
        return known

    def under_way(self, home: str, version: str) -> trio.Event | None:
        """Event of the answer; None if the Python is not asked at the moment."""
        known = self._answers.get(_key(home, version))
        return known.settled if known is not None and known.environment is None else None

    async def ready(self) -> None:
        """Wait until none is asked any more."""
        for answer in list(self._answers.values()):
            await answer.settled.wait()

    async def _ask(self, python: PythonAnswer, find: FindPython, home: str, version: str) -> None:
        numbers = [int(number) for number in version.split(".")]
        try:
            answer = await trio.to_thread.run_sync(find, home, numbers)
        except Exception:
            # The only catch-all of a question: its errors concern nobody else.
            log.exception("asking the Python in %s failed inside the supervisor", printable(home))
            why = "nsm failed to ask its Python; the supervisor's log says more"
            answer = Environment(name="python", interpreter="python", problem=why)
        python.environment = answer
        python.settled.set()
        self._changed()


def _key(home: str, version: str) -> tuple[str, str]:
    return home, ".".join(version.split(".")[:2])


def _find_none(folder: str, _version: Sequence[int]) -> Environment:
    return Environment(name="python", interpreter="python", problem=f"{folder} is not looked at")
