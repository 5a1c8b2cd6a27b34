"""The one way to run code in sessions, and to find them by name and scope.

Every front end (control socket, MCP) submits code here. The service checks a request, finds or
makes its session, and remembers how sessions ended. Refusals say what to do; nothing waits without
bound.
"""

from __future__ import annotations

import platform
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from nsm.dataclass import replace
from nsm.wire.errors import (
    AmbiguousSessionError,
    BadProjectError,
    BadRequestError,
    ForkRefusedError,
    ShuttingDownError,
    UnknownExecutionError,
    UnknownSessionError,
)
from nsm.wire.sessions import FORKED_FROM, SessionRow
from nsm.wire.transcripts import EndedRow
from nsmd.environments.catalog import OTHER_NAMES, Catalog
from nsmd.environments.on_demand import EnvironmentSearch
from nsmd.manager.projects import Projects, Unreadable, project_mode
from nsmd.manager.run_requests import (
    Deduplication,
    check_runs_code,
    env_left_open,
    without_fence,
)
from nsmd.manager.session_index import (
    ROWS_AT_ONCE,
    Here,
    Measure,
    SessionLister,
    ended_row,
    measure_in_threads,
)
from nsmd.manager.session_manager import Forks, SessionManager
from nsmd.model import names
from nsmd.model.lifecycle import Shutdown
from nsmd.model.limits import (
    check_can_be_bound,
    check_keeps_state,
    check_request,
    check_same,
    jail_sizes,
    no_session,
    reach_of,
    time_limit,
    wrong_environment,
)
from nsmd.model.settings import Settings
from nsmd.model.values import (
    ClientIdentity,
    Environment,
    JailSpec,
    OutputSink,
    ProjectMount,
    RunRequest,
    Sources,
    Tenancy,
)
from nsmd.pool.prewarm import Prewarm
from nsmd.sessions.execution import Execution, Origin
from nsmd.sessions.fresh import WHILE_PROGRAMS_RUN, ClientPrograms
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import Transcript

MAX_FORKS = 16
"""Forks made at once: each takes 10 to 20 ms, for which the original stands still."""


class RunService:
    """The one way to run code in sessions.

    Args:
        measure: measures the processes below some PID 1s; None to read /proc.
    """

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        session_manager: SessionManager,
        *,
        home: str,
        search: EnvironmentSearch | None = None,
        private: Sequence[str] = (),
        unreadable: Unreadable = lambda _: None,
        measure: Measure | None = None,
        ending: Shutdown | None = None,
    ) -> None:
        self.events = session_manager.events
        self.session_manager = session_manager
        self.catalog = catalog
        self._environments = catalog.environments  # one object for all calls, which keep it
        self._search = search or EnvironmentSearch()
        self._ending = ending or Shutdown()
        self._settings = settings
        self._projects = Projects(
            settings.project, home=home, private=private, unreadable=unreadable
        )
        self._sizes = jail_sizes(settings)
        self._index = session_manager.index
        self._executions = session_manager.executions
        self.retries = Deduplication(session_manager.executions, session_manager.earlier_executions)
        self.instance = self.retries.instance
        self.lister = SessionLister(measure or measure_in_threads())
        self.prewarm = Prewarm(catalog, self._spec, session_manager.pool.expect)
        catalog.subscribe(self._environments_changed)

    def __repr__(self) -> str:
        return f"<RunService of {self.session_manager!r}>"

    def configure(self, settings: Settings) -> None:
        """Use other settings for new calls and sessions."""
        self._settings = settings
        self._projects.configure(settings.project)
        self._sizes = jail_sizes(settings)
        self.session_manager.configure(settings)

    # Queries.

    @property
    def keeps_checkpoints(self) -> bool:
        return self._settings.session.undo > 0

    async def search_environments(self, client: ClientIdentity | None = None) -> None:
        """Look again for the environments of a client, or of all."""
        await self._search.search_again(client)

    def _environments_changed(self) -> None:
        self.session_manager.pool.keep_only(self.catalog.reachable())

    def live_sessions(self) -> list[Session]:
        """Sessions that belong to clients."""
        return self._index.live()

    def resolve_project(
        self, *, variables: Mapping[str, str], root: str | None, cwd: str | None
    ) -> tuple[ProjectMount | None, str]:
        """Choose the project that a client's sessions see.

        Raises:
            BadProjectError: a directory that was named explicitly cannot be mounted.
        """
        return self._projects.choose(variables=variables, root=root, cwd=cwd)

    def check_project(
        self, path: str, point: str | None, mode: str | None, live: Session | None = None
    ) -> ProjectMount:
        """Check a directory that a client names for a session, which may be live and show it
        already. Returns its mount.
        """
        shown = None if live is None else live.spec.project
        return self._projects.check(path, point, project_mode(mode), shown)

    @property
    def longest_idle_s(self) -> float:
        return self._settings.session.idle_timeout_seconds

    # New clients.

    @asynccontextmanager
    async def attached(
        self, *, variables: Mapping[str, str], cwd: str | None, sources: Sources | None
    ) -> AsyncGenerator[None]:
        """Announce a client while the block lasts; its roots are not known yet."""
        async with self._search.opened(sources):
            try:
                mount, _ = self.resolve_project(variables=variables, root=None, cwd=cwd)
            except BadProjectError:
                mount = None  # the client learns that when it asks for something
            if mount is not None:
                client = ClientIdentity(name="", scope="", project=mount, sources=sources)
                self.prewarm.expect(client)
            yield

    # Running code.

    def submit(
        self,
        request: RunRequest,
        on_output: OutputSink | None = None,
        *,
        session: Session | None = None,
    ) -> Execution:
        """Queue one piece of code, for every front end. A session that it needs starts in the
        background.

        Args:
            session: a live session of any scope, in place of the one that `request` names.
        """
        name, scope = request.session, request.client.scope
        if session is not None:
            name, scope = session.name, session.tenancy.scope if session.tenancy else scope
        if request.again:
            if name is not None:
                self._index.named(scope, name)  # raises if it is hidden: it may have run there
            execution = self.retries.find(request, name, scope)
            if execution is not None:
                return execution.join(on_output)
        request, live, environment = self.place(request, session)
        check_runs_code(environment)
        busy = live is not None and (live.runs.running is not None or bool(live.runs.waiting))
        one_shot = (session or name) is None
        check_request(request, self._settings, environment, one_shot=one_shot, busy=busy)
        timeout_s, clamped_from_s = time_limit(request.timeout_s, environment)
        execution_id = self.retries.new_id(request.execution_id, name, scope)
        ran_in, replaced = (live, None) if live else self.session_for(request, environment)
        code, note = without_fence(request.code, environment.interpreter)
        request = replace(request, code=code) if code != request.code else request
        origin = Origin(
            env=environment.name,
            created=live is None,
            replaced=replaced,
            timeout_s=timeout_s,
            clamped_from_s=clamped_from_s,
            one_shot=session is None and name is None,
            environments=self._environments,
            notes=((note,) if note else ()) + self.catalog.notes(request.client, environment),
        )
        finished = self._first_finished if origin.created else self._executions.finished
        execution = Execution(execution_id, request, origin, ran_in, on_output, finished)
        ran_in.submit(execution)
        self._executions.add(execution)
        return execution

    def place(
        self, request: RunRequest, session: Session | None, *, otherwise: str | None = None
    ) -> tuple[RunRequest, Session | None, Environment]:
        """Find where a request is carried out.

        Args:
            session: a live session, in place of the one that `request` names.
            otherwise: environment where nothing says which; None to refuse that.
        """
        if session is None and not request.env:
            own = request.session and self.named(request.client.scope, request.session)
            usable = self.catalog.environments(request.client)
            default = self._settings.defaults.env or otherwise
            default = self.catalog.preferred(request.client, request.language) or default
            request = replace(request, env=env_left_open(request, own or None, usable, default))
        live = session or self._meant(request)
        if self._ending.draining and (refusal := self._ending.refusal(live=live is not None)):
            raise refusal
        if self.session_manager.closing:
            raise ShuttingDownError(
                "The supervisor is shutting down; the code was not run.",
                hint="Try again in a moment: the next call starts a new supervisor.",
            )
        if live is None and request.must_exist:
            raise no_session(request.session)
        if live is None:
            return request, None, self.catalog.find(request.client, request.env)
        if session is None:
            check_same(request, live.network.rule, live.spec.project, live.spec.secrets)
        # It keeps its environment, even if that has changed or gone since.
        return request, live, live.spec.environment

    def _first_finished(self, execution: Execution) -> None:
        self._executions.finished(execution)
        self.session_manager.pool.answered(execution.session)

    def unfinished(self) -> Sequence[Execution | ClientPrograms]:
        """Executions that run or wait, in order of arrival, and clients with programs that do."""
        sessions = self.live_sessions()
        programs = [each for session in sessions for each in session.unfinished_programs]
        return [*self._executions.unfinished(), *programs]

    def execution(self, execution_id: str, scope: str | None = None) -> Execution:
        """Find a running or remembered execution."""
        execution = self._executions.get(execution_id)
        if execution is None or scope not in (None, execution.request.client.scope):
            raise UnknownExecutionError(
                f"No execution {execution_id[:200]!r} is running or remembered.",
                hint="Results are kept for a while only, and not across supervisors.",
            )
        return execution

    # Forks of sessions that run.

    @property
    def can_fork(self) -> bool:
        """True if sessions may be forked here, as far as is known without a try."""
        return platform.machine() == "x86_64" and self.session_manager.has_templates

    async def fork(
        self,
        original: Session,
        wanted: Sequence[str],
        count: int,
        *,
        client: str,
        made_by: str = "",
    ) -> Forks:
        """Fork a live session once or several times.

        Raises:
            NsmError: that cannot be done; the original goes on as before.
        """
        if original.runs_programs:
            raise ForkRefusedError(
                "Programs run in fresh interpreters of the session.",
                hint=WHILE_PROGRAMS_RUN,
            )
        tenancy = original.tenancy
        assert tenancy is not None, "a session that was asked for belongs to somebody"
        named = self.named
        if not 1 <= count <= MAX_FORKS:
            raise BadRequestError(
                f"1 to {MAX_FORKS} forks can be made at once, and {count} were asked for."
            )
        if len(wanted) > count:
            forks = "1 fork was" if count == 1 else f"{count} forks were"
            raise BadRequestError(
                f"{len(wanted)} names were given, and {forks} asked for.",
                hint="Leave out the count, or give at most as many names; other forks get names of "
                "their own.",
            )
        taken = dict.fromkeys(wanted)
        if len(taken) < len(wanted):
            raise BadRequestError("Two of the forks' names are the same.")
        for name in wanted:
            names.check(name)
            if named(tenancy.scope, name) is not None:
                raise BadRequestError(
                    f"There is a session {name!r} already.", hint="Choose another name, or none."
                )
        own = original.name or original.spec.environment.name

        def is_taken(name: str) -> bool:
            return name in taken or named(tenancy.scope, name) is not None

        while len(taken) < count:
            taken[names.fresh(own, is_taken)] = None
        labels = tuple(sorted({**dict(tenancy.labels), FORKED_FROM: original.id}.items()))
        of_forks = replace(tenancy, client=client, labels=labels, made_by=made_by)
        async with original.runners.away():
            return await self.session_manager.fork(
                original, [replace(of_forks, name=name) for name in taken]
            )

    async def fork_for_call(self, request: RunRequest, fork_of: str) -> RunRequest:
        """Fork a session for a call of a model; returns the call as it is for the fork."""
        client = request.client
        original = self.named(client.scope, fork_of)
        if original is None:
            raise no_session(fork_of)
        bound = original.spec.environment
        if request.env and request.env != bound.name:
            asked = self.catalog.find(client, request.env)
            raise wrong_environment(fork_of, bound, asked)
        call_id = request.execution_id or ""
        if request.again and call_id:
            # The client lost its connection, perhaps after the fork.
            for known in self.session_manager.index.made_by(client.scope, call_id):
                return replace(request, session=known.name, env=bound.name, must_exist=True)
        if client.bound is not None:
            self.session_manager.check_share(client.scope)
        wanted = [] if request.session in (None, names.NEW) else [str(request.session)]
        try:
            made = await self.fork(original, wanted, 1, client=client.name, made_by=call_id)
        except ForkRefusedError as error:
            busy = original.runs.running is not None or original.runs.waiting
            hint = (
                "Call again when that has ended"
                if busy
                else f"Go on in {fork_of!r}, or make what you need of it in a new session"
            )
            raise ForkRefusedError(error.message, hint=f"{hint}. The code was not run.") from None
        (fork,) = made.sessions
        return replace(request, session=fork.name, env=bound.name, must_exist=True)

    # For people's commands.

    def find(self, target: str, scope: str | None = None, here: Here | None = None) -> Session:
        """Find the live session of that id or beginning of one, that name or `scope/name`."""
        return self._index.find(target, scope, here)

    def named(self, scope: str, name: str) -> Session | None:
        """Find the live session of that name."""
        session = self._index.named(scope, name)
        return session if session is not None and session.live else None

    def identified(self, target: str) -> Session | None:
        """Find the live session by an id, its beginning or `scope/name`; never by a name alone."""
        return self._index.identified(target)

    def transcript(
        self, target: str, here: Here | None = None
    ) -> tuple[Transcript, Session | None]:
        """Find the transcript of a live or ended session, and the session if it is live.

        Args:
            target, here: as for `find`. An ended session from here comes before other projects'
                live ones; of several ended sessions of one name the last one is meant.
        """
        own, hint = None if here is None else self._ended(f"{here.scope}/{target}"), ""
        try:
            session = self.find(target, here=here)
        except UnknownSessionError as error:
            session, hint = None, error.hint
        except AmbiguousSessionError:
            if own is None:
                raise
            session = None
        if session is not None:
            elsewhere = here is not None and session.name == target and not here.has(session)
            if own is None or not elsewhere:
                return session.transcript, session
        found = own or self._ended(target)
        if found is None:
            raise UnknownSessionError(
                f"No session {target[:200]!r}, and no transcript of one that has ended.",
                hint=f"{hint} `nsm ps --all` also lists ended ones.".lstrip(),
            )
        return found

    def _ended(self, target: str) -> tuple[Transcript, Session | None] | None:
        """Find the transcript of a session that has ended or is ending."""
        for session in self._index:
            ending = session.tenancy is not None and not session.live
            if ending and session.transcript.subject.means(target):
                return session.transcript, session
        transcript = self.session_manager.transcripts.find(target)
        return None if transcript is None else (transcript, None)

    def describe_ended(self) -> list[EndedRow]:
        """A row for each ended session whose transcript is kept, the newest last."""
        return [ended_row(transcript) for transcript in self.session_manager.transcripts.ended()]

    def idle_longer_than(self, seconds: float) -> list[Session]:
        """Sessions that have been idle for that long, with their forks; running ones never are."""
        before = trio.current_time() - seconds
        used = {s for s in self.live_sessions() if s.state.value != "idle" or s.active_s > before}
        return [s for s in self.live_sessions() if used.isdisjoint({s, *s.forks.below()})]

    def parts(self, scope: str | None = None) -> list[list[Session]]:
        """Live sessions, oldest first, in parts that can be described at once.

        Args:
            scope: the only scope that the caller may see; None for all.
        """
        live = [s for s in self.live_sessions() if scope in (None, s.tenancy and s.tenancy.scope)]
        live.sort(key=lambda s: s.created_s)
        return [live[at : at + ROWS_AT_ONCE] for at in range(0, len(live), ROWS_AT_ONCE)]

    async def describe(self, sessions: Sequence[Session] | None = None) -> list[SessionRow]:
        """A row for each of these sessions that is live; None for all, oldest first."""
        if sessions is None:
            return [row for part in self.parts() for row in await self.describe(part)]
        return await self.lister.rows(sessions)

    def _meant(self, request: RunRequest) -> Session | None:
        """Find the live session that a call names, if its environment is the one that is meant."""
        if request.session is None:
            return None
        session = self.named(request.client.scope, request.session)
        if session is None or session.tenancy is None:
            return None
        bound, env = session.spec.environment.name, request.env
        meant = bound in (env, OTHER_NAMES.get(env)) and session.tenancy.is_for(request.client)
        return session if meant else None

    def session_for(
        self, request: RunRequest, environment: Environment, *, pooled: bool = True
    ) -> tuple[Session, str | None]:
        """Make a session, or take a ready one. Returns it, and how an earlier one ended."""
        client, name = request.client, request.session
        if name is None:
            return self._new_session(client, environment, None, pooled=True), None
        check_keeps_state(environment)
        if name == names.NEW:
            name = names.fresh(environment.name, lambda n: self._index.is_taken(client.scope, n))
        names.check(name)
        session = self._index.named(client.scope, name)
        if session is not None and session.live:
            raise wrong_environment(name, session.spec.environment, environment)
        created = self._new_session(client, environment, name, pooled=pooled)
        if session is not None:  # it is just ending, and has not reported that yet
            self.session_manager.ended.add(
                client.scope, name, session.end_reason, lost=session.lost
            )
        self._index.give_name(created)
        return created, self.session_manager.ended.begin(client.scope, name)

    def _new_session(
        self, client: ClientIdentity, environment: Environment, name: str | None, *, pooled: bool
    ) -> Session:
        bound = client.bound
        if bound is not None:
            check_can_be_bound(environment, bound)
            self.session_manager.check_share(client.scope)
        spec = reach_of(client, self._spec(environment, client.project))
        configured = self._settings.session
        tenancy = Tenancy(
            name=name,
            scope=client.scope,
            client=client.name,
            idle_timeout_s=client.idle_timeout_s or configured.idle_timeout_seconds,
            max_lifetime_s=client.max_lifetime_s or configured.max_lifetime_seconds,
            own=self.catalog.own_of(client, environment),
            labels=client.labels,
            made_by=client.made_by,
        )
        made = self.session_manager.take_session(
            spec, tenancy, confined=bound is not None, pooled=pooled
        )
        self.prewarm.used(client, environment.name)
        return made

    def _spec(self, environment: Environment, mount: ProjectMount | None) -> JailSpec:
        return JailSpec(
            environment=environment,
            project=self._projects.current(mount),
            sizes=self._sizes,
            network=environment.network,
            secrets=environment.secrets,
        )
