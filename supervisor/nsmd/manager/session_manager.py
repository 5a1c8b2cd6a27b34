"""All sessions of the supervisor: they start, are kept for the next supervisor, and end.

The run service decides which session a call gets. This module takes a ready one, or starts one as
soon as there is a place. It remembers ended sessions for the next call with their name.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import trio

from nsm.dataclass import replace
from nsm.wire.errors import BadRequestError, ForkRefusedError
from nsm.wire.sessions import FORKED_FROM
from nsm.wire.tuples import NamedTuple
from nsmd.agent_link.frames import Noted, ResumedFrame
from nsmd.fdstore.running_holders import SilentHolders
from nsmd.fdstore.store import NoStore
from nsmd.host.descriptors import MAX_PROXIED, Shares
from nsmd.host.event_loop import Timer, Timers
from nsmd.jail import Launcher
from nsmd.jail.limits import LimitEnforcer
from nsmd.jail.templates import TemplateLauncher
from nsmd.manager.session_index import SessionIndex
from nsmd.manager.session_slots import SessionSlots, StartLimit, Turn
from nsmd.model import names
from nsmd.model.events import Events
from nsmd.model.limits import session_limits, session_room
from nsmd.model.settings import Settings
from nsmd.model.values import Environment, JailSpec, Tenancy
from nsmd.network.gateway import Gateway
from nsmd.network.secrets.service import SecretService
from nsmd.pool.memory import HostMemory
from nsmd.pool.pool import Pool
from nsmd.restart.ended_sessions import EndedSessionFiles, EndedSessions
from nsmd.restart.kept_sessions import LoadedState, SessionStore
from nsmd.restart.reattach import EarlierExecutions, Reattachment, ResumeTurn
from nsmd.sessions.agent_session import Earlier, StartLimiter
from nsmd.sessions.execution import Execution, ExecutionIndex
from nsmd.sessions.forking.live_fork import Helpers, LiveFork, MadeForks, check_forkable
from nsmd.sessions.session import Session
from nsmd.sessions.transcripts import TranscriptStore

log = logging.getLogger(__name__)

HIDDEN_S = 10.0
"""How long calls wait for sessions of a holder that did not answer at the start; later ones are
refused.
"""

CONCURRENT_STARTS = 4
"""Jails started at once. More only makes each slower: a start is all CPU and mount work."""

KEPT_AFTER_S = 1.0
"""Age from which on a one-shot outlives the supervisor. Most are over sooner, and to keep one takes
the twentieth part of all that it costs.
"""


class Forks(NamedTuple):
    """Forks of a session that were made at once, and how."""

    sessions: Sequence[Session]
    report: MadeForks


class SessionManager:
    """All sessions of the supervisor.

    Args:
        sessions: owns the sessions' tasks; cancelling it ends every session.
        upkeep: owns timers, and the pool's refills.

    Attributes:
        closing: no new work is accepted.
        leaving: sessions are left to the next supervisor.
        catch_up: delivers pending reports of changes to templates (`template_changed`).
    """

    def __init__(
        self,
        settings: Settings,
        launcher: Launcher,
        *,
        sessions: trio.Nursery,
        upkeep: trio.Nursery,
        memory: HostMemory | None = None,
        shares: Shares | None = None,
        gateway: Gateway | None = None,
        enforcer: LimitEnforcer | None = None,
        events: Events | None = None,
        session_store: SessionStore | None = None,
        ended_files: EndedSessionFiles | None = None,
    ) -> None:
        self.closing = self.leaving = False
        self._hidden_until_s = -math.inf
        self.events = events or Events()
        self.index = SessionIndex()
        self.executions = ExecutionIndex()
        self.earlier_executions = EarlierExecutions()
        self.transcripts = TranscriptStore()
        self.catch_up: Callable[[], None] = lambda: None
        self.secrets: SecretService | None = None
        self._session_store = session_store or SessionStore(NoStore())
        self._young: dict[Session, None] = {}  # one-shots that are not kept yet, oldest first
        self._ended_files = ended_files
        self.ended = EndedSessions(ended_files)
        self._reattachment = Reattachment(self.earlier_executions, self.executions)
        self._launcher = launcher
        self._helpers = Helpers()
        self._enforcer = enforcer
        self._nursery = sessions
        self._upkeep = upkeep
        self._shares = shares
        self._limits = session_limits(settings)
        self._starts = StartLimit(CONCURRENT_STARTS)
        self.timers = Timers()
        self._keeping = Timer(self.timers, self._keep_lasting)
        self.gateway = gateway or Gateway(
            max_connections=shares.proxied if shares is not None else MAX_PROXIED
        )
        upkeep.start_soon(self.timers.run)
        room = session_room(settings, shares)
        self._slots = SessionSlots(room, self.index.live, self._starts)
        self.pool = Pool(settings.pool, self._start, upkeep, memory, events=self.events)

    def __repr__(self) -> str:
        return f"<SessionManager {self.index!r}>"

    def configure(self, settings: Settings) -> None:
        self._limits = replace(
            self._limits,
            grace_s=settings.defaults.interrupt_grace_seconds,
            max_queued=settings.session.max_queued,
        )
        self._slots.configure(session_room(settings, self._shares))
        self.pool.configure(settings.pool)

    @property
    def grace_s(self) -> float:
        """Seconds between an interrupt and the kill."""
        return self._limits.grace_s

    def environments_in_use(self) -> set[Environment]:
        """Environments that sessions of any kind use now."""
        return {session.spec.environment for session in self.index}

    @property
    def has_templates(self) -> bool:
        """True if sessions may be forks of templates."""
        return isinstance(self._launcher, TemplateLauncher)

    # Starts.

    def check_share(self, scope: str) -> None:
        """Check that a scope may have one more session."""
        self._slots.check_share(scope)

    def take_session(
        self, spec: JailSpec, tenancy: Tenancy, *, confined: bool, pooled: bool = True
    ) -> Session:
        """Take a session for a client: a ready one, or one that starts, now or in its turn.

        Args:
            confined: the caller knows nothing beyond its scope.
            pooled: others may want one of this kind, so that some are kept ready.

        Raises:
            SessionLimitError: no place becomes free by itself, or too many wait.
        """
        self.catch_up()
        if (spec.secrets or spec.network.reads_requests) and self.secrets is not None:
            self.secrets.check(spec.secrets, spec.network)
            pooled = False  # as in `Pool.expect`
        if self._slots.has_room(spec, len(self.index), self.index.descriptors):
            session = (
                self.pool.take_spare(spec)
                if pooled
                else self._start(replace(spec, rehearsed=False))
            )
        else:
            turn = self._slots.turn(tenancy.scope, confined=confined)
            session = self._start(replace(spec, rehearsed=False), turn)
            turn.is_for(session)
        session.claim(tenancy)
        if session.link is not None:  # else it is kept as soon as it is ready
            self._keep(session)
        return session

    def _keep(self, session: Session) -> None:
        """Have a session outlive the supervisor: at once if it has a name, else if it lasts."""
        if session.name is not None or self.leaving or not self._session_store.note_one_shots():
            self._session_store.keep(session)
            return
        if not self._young:
            self._keeping.arm(KEPT_AFTER_S)
        self._young[session] = None

    def _keep_lasting(self, least_s: float = KEPT_AFTER_S) -> None:
        """Keep the one-shots of this age, and look again if there are younger ones."""
        before_s = self.timers.now() - least_s
        while self._young:
            oldest = next(iter(self._young))
            if oldest.created_s > before_s:
                self._keeping.arm(oldest.created_s - before_s)
                return
            del self._young[oldest]
            self._session_store.keep(oldest)

    async def fork(self, original: Session, tenancies: Sequence[Tenancy]) -> Forks:
        """Fork a live session; returns the new ones, which have their names."""
        check_forkable(original)
        if not isinstance(self._launcher, TemplateLauncher):
            raise ForkRefusedError("No session can be forked: there are no templates here.")
        # Its secrets are its own: what a fork inherits of them is worth nothing.
        spec = replace(original.spec, network=original.network.rule, secrets=())
        for more in range(len(tenancies)):
            descriptors = self.index.descriptors + more * spec.descriptors
            if not self._slots.has_room(spec, len(self.index) + more, descriptors):
                self._slots.turn(tenancies[0].scope)  # says what is full, if nobody can wait
        live_fork = LiveFork(original, self._launcher, self._helpers, len(tenancies))
        forks: list[Session] = []
        for tenancy in tenancies:
            session_id = names.fresh_id(self.index)
            session = self._make(spec, session_id, turn=nullcontext(), launcher=live_fork)
            forks.append(session)
            session.claim(tenancy)
            session.network.known_names = dict(original.network.known_names or {})
            original.forks.add(session)
            self.events.publish("session_started", session=session.id, subject=session)
            self._nursery.start_soon(session.run, name=session.id)
        try:
            for session in forks:
                await session.requests.settled()
            self._check_names(tenancies)
        except BaseException:
            for session in forks:
                session.end("the fork failed")
            raise
        for session, tenancy in zip(forks, tenancies, strict=True):
            self.index.give_name(session)
            self._session_store.keep(session)
            if tenancy.name is not None:
                self.ended.begin(tenancy.scope, tenancy.name)
        assert live_fork.report is not None, "all are there"
        return Forks(forks, live_fork.report)

    def _check_names(self, tenancies: Sequence[Tenancy]) -> None:
        """Check that nobody has taken the names while the forks were made."""
        for tenancy in tenancies:
            if tenancy.name is not None and self.index.named(tenancy.scope, tenancy.name):
                raise BadRequestError(
                    f"There is a session {tenancy.name!r} now.",
                    hint="Choose another name, or none.",
                )

    def _start(self, spec: JailSpec, turn: Turn | None = None) -> Session:
        session = self._make(spec, names.fresh_id(self.index), turn=turn)
        self.events.publish("session_started", session=session.id, subject=session)
        self._nursery.start_soon(session.run, name=session.id)
        return session

    def _make(
        self,
        spec: JailSpec,
        session_id: str,
        earlier: Earlier | None = None,
        *,
        turn: StartLimiter | None = None,
        launcher: Launcher | None = None,
    ) -> Session:
        session = Session(
            session_id,
            spec,
            launcher=launcher or self._launcher,
            limits=self._limits,
            manager=self,
            start_limiter=turn or self._starts,
            transcripts=self.transcripts,
            timers=self.timers,
            gateway=self.gateway,
            nursery=self._nursery,
            enforcer=self._enforcer,
            events=self.events,
            earlier=earlier,
        )
        self.index.add(session)
        return session

    def take_up(self, loaded_state: LoadedState, silent: SilentHolders | None = None) -> None:
        """Take over the sessions of an earlier supervisor. Returns at once: their agents are asked
        in the background what they run. `wait_found` waits for the answers.
        """
        sessions: list[Session] = []
        # Of two sessions of one name, the later one keeps it: the other may be ending.
        by_age = sorted(loaded_state.found, key=lambda each: each.earlier.created_s, reverse=True)
        for found in by_age:
            tenancy = self._with_free_name(_in_its_project(found.record.tenancy, found.spec))
            turn = ResumeTurn(self._reattachment.turns, found.record.id)
            session = self._make(found.spec, found.record.id, found.earlier, turn=turn)
            self._session_store.begin_after(session, found.names, found.record, found.earlier)
            session.claim(tenancy)
            if tenancy.name is not None:
                self.index.give_name(session)
            sessions.append(session)
        _link_forks(sessions)
        self.index.unread = loaded_state.unread
        all_seen = silent is None and all(each.scope for each in loaded_state.unread.live())
        for record in loaded_state.gone:
            tenancy = record.tenancy
            if tenancy.name is not None:
                why = "while there was no supervisor"
                self.ended.add(tenancy.scope, tenancy.name, why, lost=True)
        unseen: Collection[tuple[str, str]] = ()
        if self._ended_files is not None:
            unseen = self._ended_files.take_up(
                self.index.names, self.ended.restore, all_seen=all_seen
            )
        if silent is not None:
            self.index.hide(unseen, silent)
            self._hidden_until_s = trio.current_time() + HIDDEN_S
        self._reattachment.begin(loaded_state, sessions, all_seen=silent is None)
        for session in sessions:
            self._nursery.start_soon(session.run, name=repr(session))
        self._upkeep.start_soon(self._settle, sessions)

    def _with_free_name(self, tenancy: Tenancy) -> Tenancy:
        """Change a session's name if another has it: that one began while a holder was silent, and
        the name had not been noted.
        """
        scope, name = tenancy.scope, tenancy.name
        if name is None or not self.index.is_taken(scope, name):
            return tenancy
        other = names.fresh(name, partial(self.index.is_taken, scope))
        log.warning("two sessions are called %s: the earlier one is %s now", name, other)
        self.ended.begin(scope, other)
        return replace(tenancy, name=other)

    async def _settle(self, sessions: Sequence[Session]) -> None:
        await self._reattachment.settle()
        if sessions:
            outlived = max(session.taken_up for session in sessions)
            self.events.publish("restarted", restarts=outlived, sessions=len(sessions))

    @property
    def all_found(self) -> bool:
        """True if nobody has to wait for a session of an earlier supervisor."""
        return self._reattachment.settled and trio.current_time() >= self._hidden_until_s

    async def wait_found(self, target: str | None = None) -> None:
        """Wait as `wait_reattached`, and before that for a silent holder that may have a session
        which is meant: this process then takes it over as the next program.
        """
        if target is None or self.index.may_hide(target):
            with trio.move_on_at(self._hidden_until_s):
                await trio.sleep_forever()
        await self.wait_reattached(target)

    async def wait_reattached(self, target: str | None = None) -> None:
        """Wait until the sessions of an earlier supervisor that a target may mean have said what
        they run, or have taken too long.

        Args:
            target: an id, its beginning, a name or `scope/name`; None for all sessions.
        """
        await self._reattachment.wait(target)

    def template_changed(self, pid: int, certain: bool) -> None:
        """Files of a template have changed, or may have: end its spares, and mark its sessions.

        Args:
            pid: `Jail.template_pid`.
        """
        for session in [each for each in self.index if each.live]:
            if (jail := session.jail) is None or jail.template_pid != pid:
                continue
            if session.tenancy is None:
                self.pool.discard(session, "its interpreter or modules have changed on disk")
            elif certain:
                jail.outdated = True
                self.session_changed(session)

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        live = [session for session in self.index if session.live]
        return self._session_store.everything(live)

    def leave(self) -> None:
        """Accept no new work, and leave every session as it is."""
        self.closing = self.leaving = True
        self._keep_lasting(0.0)
        self._session_store.forget_one_shots()

    def close(self) -> None:
        """Accept no new work, and end every session."""
        self.closing = True
        if self._ended_files is not None and self.index.names:
            self._ended_files.shut_down()
        self._helpers.close()
        self.index.unread.end_all()
        for session in self.index:
            session.end("the supervisor is shutting down")

    # For sessions.

    def session_ready(self, session: Session) -> None:
        if session.tenancy is not None:
            self._keep(session)
        self.pool.ready(session)

    def session_changed(self, session: Session) -> None:
        if session in self._session_store:
            self._session_store.keep(session)

    def session_resumed(self, session: Session, resumed: ResumedFrame) -> None:
        self._session_store.keep(session)
        self._reattachment.resumed(session, resumed)

    def execution_resumed(self, session: Session, noted: Noted) -> Execution:
        return self._reattachment.execution(session, noted)

    def session_ended(self, session: Session) -> None:
        named, tenancy = self.index.remove(session), session.tenancy
        if named and tenancy is not None and tenancy.name is not None and not self.closing:
            # Otherwise its successor knows already. First of all: a supervisor that is killed in
            # between has either the session or its end.
            self.ended.add(tenancy.scope, tenancy.name, session.end_reason, lost=session.lost)
        self._young.pop(session, None)
        self._session_store.drop(session)
        self._reattachment.ended(session)
        self.pool.forget(session)
        self._slots.given_back()
        if tenancy is None or tenancy.name is None:
            return
        log.log(
            logging.WARNING if session.lost else logging.INFO,
            "session %s (%s) of %s %s: %s",
            session.id,
            tenancy.name,
            tenancy.client,
            "was lost" if session.lost else "ended",
            session.end_reason,
        )


def _link_forks(sessions: Sequence[Session]) -> None:
    """Tell the originals among sessions of an earlier supervisor which forks they have."""
    by_id = {session.id: session for session in sessions}
    for session in sessions:
        if (tenancy := session.tenancy) is None:
            continue
        original = by_id.get(dict(tenancy.labels).get(FORKED_FROM, ""))
        # Anybody may set labels, but only of their own sessions.
        if original and original.tenancy and original.tenancy.scope == tenancy.scope:
            original.forks.add(session)


def _in_its_project(tenancy: Tenancy, spec: JailSpec) -> Tenancy:
    """Move a tenancy into its project's scope; nsm 0.1 had one scope for the whole command line."""
    if tenancy.scope != names.COMMAND_LINE:
        return tenancy
    project = None if spec.project is None else spec.project.path
    return replace(tenancy, scope=names.command_line_scope(project))
