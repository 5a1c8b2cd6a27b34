"""Development shells of all projects: evaluated in the background, used by calls.

Nothing polls. nsm checks whether a flake has changed when a client attaches, lists environments, or
calls; then only calls that need this shell wait for Nix.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import trio

from nsm.dataclass import dataclass, field, replace
from nsm.wire.errors import EnvironmentUnavailableError, NsmError
from nsmd.environments.catalog import ProjectSource
from nsmd.environments.devshell import NAME
from nsmd.environments.devshell.evaluation import (
    FLAKE,
    FlakeState,
    ProjectCache,
    Shell,
    evaluate,
    forget_unused,
    load,
    read_flake,
)
from nsmd.environments.devshell.script import setup_steps
from nsmd.environments.nix.program import NixFinder
from nsmd.host.command_monitor import CommandProgress
from nsmd.host.event_loop import BoundedReads
from nsmd.host.locales import locale_part
from nsmd.model.values import ClientIdentity, Environment, ProjectMount, ReadOnlyBind, SetupStep

log = logging.getLogger(__name__)

WORKSPACE = "/workspace"

DESCRIPTION = "Bash in the project's development shell (flake.nix)"

RETRY_S = 60.0
"""Time after which a call makes nsm try a failed evaluation again: the network may be back."""

AT_ONCE = 2
"""Evaluations at once; each takes hundreds of megabytes, and builds use all processors anyway."""

MAX_PROJECTS = 64
"""Largest number of remembered projects."""


_Directory = tuple[str, int, int]
"""Path and identity of a project; its mount point makes no difference to Nix."""


@dataclass(slots=True)
class _Project:
    """State of one project's shell.

    Attributes:
        shell: result of the last successful evaluation, while it is up to date.
        binds: directories that a jail shows for it.
        steps: its set-up, by mount point of the project and program of the shell.
        since_s: start of the running evaluation; None if there is none.
        problem: why there is no shell; empty while unknown.
    """

    cache: ProjectCache
    flake: FlakeState
    shell: Shell | None = None
    binds: tuple[ReadOnlyBind, ...] = ()
    steps: dict[tuple[str, str], tuple[SetupStep, ...]] = field(
        default_factory=dict[tuple[str, str], tuple[SetupStep, ...]]
    )
    since_s: float | None = None
    settled: trio.Event = field(default_factory=trio.Event)
    progress: CommandProgress = field(default_factory=CommandProgress)
    problem: str = ""
    failed_s: float = -math.inf


class DevShells(ProjectSource):
    """Development shells of all projects.

    Args:
        nursery: owns the evaluations; cancelling it stops them.
    """

    def __init__(
        self,
        inherit: Sequence[str],
        base: Callable[[], Environment | None],
        *,
        state: str,
        nix: NixFinder,
        nursery: trio.Nursery,
    ) -> None:
        super().__init__()
        self.inherit = tuple(inherit)
        self._base = base
        self._state = state
        self._nix = nix
        self._nursery = nursery
        self._limiter = trio.CapacityLimiter(AT_ONCE)
        self._reads = BoundedReads()
        self._projects: OrderedDict[_Directory, _Project] = OrderedDict()

    def __repr__(self) -> str:
        return f"<DevShells of {len(self._projects)} projects>"

    def environment(self, client: ClientIdentity) -> Environment | None:
        """Return the shell of a client's project, which may be pending or have a problem; None if
        it has none.

        The first request starts its evaluation.
        """
        known = self._shell_of(client)
        if known is None or client.project is None:
            return None
        return self._environment(known, client.project.mount_point, client.inherited)

    def environments(self, client: ClientIdentity) -> Sequence[Environment]:
        """Return the shell of a client's project as a list of at most one."""
        environment = self.environment(client)
        return () if environment is None else (environment,)

    def expect(self, client: ClientIdentity) -> None:
        self._shell_of(client)

    def missing(self, client: ClientIdentity, name: str) -> EnvironmentUnavailableError | None:
        if name != NAME:
            return None
        project = client.project
        why = "there is no project" if project is None else f"{project.path} has no flake.nix"
        return EnvironmentUnavailableError(
            f"Environment {NAME!r} is the development shell of the project's flake, and {why}.",
            hint="Use another environment.",
        )

    def rows(self) -> Sequence[Environment]:
        """The shells of all known projects."""
        return [self._environment(known, "/project", ()) for known in self._projects.values()]

    def is_current(self, environment: Environment) -> bool:
        """Return whether this is the shell of its project's present flake, with any client's
        values.
        """
        return any(environment.setup in known.steps.values() for known in self._projects.values())

    def settled(self, client: ClientIdentity, name: str) -> trio.Event | None:
        """Event of the end of the running evaluation; None if none runs."""
        if name != NAME or client.project is None:
            return None
        known = self._projects.get(_directory(client.project))
        return known.settled if known is not None and known.since_s is not None else None

    # State.

    def _shell_of(self, client: ClientIdentity) -> _Project | None:
        """Find the shell of a client's project; start its evaluation if needed."""
        project = client.project
        if project is None or client.bound is not None:
            return None  # Nix would execute, outside of the box, what an agent has written
        now = trio.current_time()
        directory = _directory(project)
        known = self._projects.get(directory)
        read = partial(read_flake, project.path, known.flake if known is not None else None)
        try:
            flake = self._reads.read(project.path, read)
        except TimeoutError:
            return known
        if flake is None:
            if known is not None:
                del self._projects[directory]
                self.changed()
            return None
        if known is None:
            cache = ProjectCache.of(project.path, self._state)
            known = self._projects[directory] = _Project(cache, flake)
            self._make_room()
        self._projects.move_to_end(directory)
        changed, known.flake = flake.key != known.flake.key, flake
        wanted = changed or (known.shell is None and now - known.failed_s >= RETRY_S)
        base = self._base()
        works = base is not None and base.problem is None
        if wanted and works and known.since_s is None:
            self._start_evaluation(known)
        return known

    def _make_room(self) -> None:
        for directory, known in list(self._projects.items()):
            if len(self._projects) <= MAX_PROJECTS:
                break
            if known.since_s is None and (known.shell is not None or known.problem):
                del self._projects[directory]

    def _environment(
        self, known: _Project, mount_point: str, inherited: tuple[tuple[str, str], ...]
    ) -> Environment:
        base = self._base() or Environment(name="bash", interpreter="bash", problem="no Bash")
        environment = replace(
            base,
            name=NAME,
            description=DESCRIPTION,
            preload=(),
            source=known.cache.project + "/" + FLAKE,
        )
        if base.problem is not None:
            return environment
        if known.since_s is not None:
            return replace(environment, pending=self._what_goes_on(known))
        shell = known.shell
        if shell is None:
            return replace(environment, problem=known.problem)
        return replace(
            environment,
            binds=(*base.binds, *known.binds),
            # Configuration for Bash is for that environment only.
            variables=(*locale_part(base.variables), *inherited),
            setup=self._steps(known, shell, mount_point, base.program),
        )

    @staticmethod
    def _steps(
        known: _Project, shell: Shell, mount_point: str, program: str
    ) -> tuple[SetupStep, ...]:
        # Made once: a compiler's functions have 100 KiB, and equal environments must be one kind.
        key = mount_point, program
        if key not in known.steps:
            known.steps[key] = setup_steps(
                shell.env,
                project=mount_point,
                workspace=WORKSPACE,
                program=program,
                root=shell.root,
            )
        return known.steps[key]

    @staticmethod
    def _what_goes_on(known: _Project) -> str:
        progress = known.progress
        seconds = trio.current_time() - (known.since_s or 0.0)
        told = progress.activity or progress.phase
        if progress.to_build:
            told += f", {progress.built} of {progress.to_build} built"
        return (
            f"nix has been at {known.cache.project}/{FLAKE} for {seconds:.0f} s ({told}); "
            f"its log is {known.cache.log_path}"
        )

    # Evaluation.

    def _start_evaluation(self, known: _Project) -> None:
        known.since_s = trio.current_time()
        known.settled = trio.Event()
        known.progress = CommandProgress()
        self._nursery.start_soon(self._evaluate, known)

    async def _evaluate(self, known: _Project) -> None:
        """Evaluate until the result belongs to the present flake."""
        try:
            while True:
                key = known.flake.key
                await self._evaluate_once(known, key)
                if key == known.flake.key:
                    break
        finally:
            known.since_s = None
            known.settled.set()
            self.changed()

    async def _evaluate_once(self, known: _Project, key: str) -> None:
        try:
            async with self._limiter:
                shell = await self._shell(known, key)
        except NsmError as error:
            self._keep_problem(known, f"{error.message} {error.hint}".strip())
        except OSError as error:
            what = error.filename or known.cache.folder
            self._keep_problem(
                known, f"nix could not be run, or its answer kept: {what}: {error.strerror}."
            )
        except Exception:
            # The only catch-all of an evaluation: its errors concern nobody else.
            log.exception("the evaluation of %s failed inside the supervisor", known.cache.project)
            self._keep_problem(
                known, "nsm failed to have it evaluated; the supervisor's log says more."
            )
        else:
            known.shell, known.problem = shell, ""
            known.steps.clear()
            shown = {bind.target for bind in self._binds_of_base()}
            known.binds = tuple(
                ReadOnlyBind(source=path, target=path)
                for path in shell.closure
                if path not in shown
            )

    async def _shell(self, known: _Project, key: str) -> Shell:
        extra = self._programs()
        shell = await trio.to_thread.run_sync(load, known.cache, key, extra)
        if shell is not None:
            return shell

        def on_progress(progress: CommandProgress, _log_bytes: int) -> None:
            known.progress = progress

        began = trio.current_time()
        shell = await evaluate(await self._nix.find(), known.cache, key, extra, on_progress)
        in_use = [each.cache.folder for each in self._projects.values()]
        await trio.to_thread.run_sync(forget_unused, self._state, in_use)
        log.info(
            "the development shell of %s took %.1f s: %d store paths",
            known.cache.project,
            trio.current_time() - began,
            len(shell.closure),
        )
        return shell

    def _keep_problem(self, known: _Project, why: str) -> None:
        log.warning("no development shell of %s: %s", known.cache.project, why)
        known.shell, known.binds = None, ()
        known.problem = f"{why}\nThe whole log: {known.cache.log_path}"
        known.failed_s = trio.current_time()

    def _binds_of_base(self) -> Sequence[ReadOnlyBind]:
        base = self._base()
        return base.binds if base is not None else ()

    def _programs(self) -> list[str]:
        """Programs that run the shell; on some systems they are in Nix's store."""
        base = self._base()
        return [] if base is None else [base.agent_python, base.program]


def _directory(project: ProjectMount) -> _Directory:
    return project.path, project.device, project.inode
