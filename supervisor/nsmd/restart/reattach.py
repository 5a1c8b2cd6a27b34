"""Reattachment of an earlier supervisor's sessions, and of the executions under way in them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import trio

from nsmd.agent_link.frames import Noted, ResumedFrame
from nsmd.model import names
from nsmd.model.values import ClientIdentity, RunRequest
from nsmd.restart.kept_sessions import LoadedState
from nsmd.sessions.execution import Execution, ExecutionIndex, Origin
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Agents that are asked at once. Thousands would compete for the processors with the one that a
client waits for.
"""

SETTLE_S = 5.0
"""How long clients wait for the next agent to say what it runs. Each takes milliseconds, and agents
that are stopped delay nobody for longer.
"""


EarlierState = Literal["never", "done", "unknown"]
"""never: it has not run and never will; done: it ran, and its result was dropped; unknown: nobody
knows.
"""


class EarlierExecutions:
    """Ends of executions, known after sessions were taken over. Until then, and if there were no
    sessions, nothing is known: the sessions that could tell are gone.

    Attributes:
        complete: True once no answer of a session of the earlier supervisor is awaited any more.
            Until then, only the sessions that have answered are known below.
        done: ids of executions that were answered and whose answers are gone, with scope and name
            of the sessions whose agents say so: each speaks only for its own.
        surviving: (scope, name) of the named sessions that live on.
        lost_one_shots: some one-shot was lost with its jail, or may have been.
    """

    def __init__(self) -> None:
        self.complete = False
        self.done: dict[str, set[tuple[str, str | None]]] = {}
        self.surviving: set[tuple[str, str]] = set()
        self.lost_one_shots = False

    def __repr__(self) -> str:
        return f"<EarlierExecutions: {len(self.done)} executions, {len(self.surviving)} sessions>"

    def was_done(self, execution_id: str, scope: str, name: str | None) -> None:
        """Note that an execution was answered in that session."""
        self.done.setdefault(execution_id, set()).add((scope, name))

    def state_of(self, execution_id: str, scope: str, name: str | None) -> EarlierState:
        """Find what became of an execution that is not under way here.

        Args:
            scope, name: scope and name of its session; None for a one-shot, "new" for a session
                with a generated name.
        """
        said = self.done.get(execution_id, ())
        if any(scope == each and name in (its, names.NEW) for each, its in said):
            return "done"
        if name is not None:
            return "never" if (scope, name) in self.surviving else "unknown"
        return "never" if self.complete and not self.lost_one_shots else "unknown"


class ResumeTurns:
    """Order in which the agents of an earlier supervisor are asked what they run."""

    def __init__(self) -> None:
        self._waiting: dict[str, trio.Event] = {}
        self._under_way: set[str] = set()
        self._advanced: set[str] = set()
        self._all = False

    def __repr__(self) -> str:
        return f"<ResumeTurns {len(self._under_way)} under way, {len(self._waiting)} waiting>"

    def advance(self, session_id: str) -> None:
        """Give a session its turn now: a client waits for it."""
        self._advanced.add(session_id)
        if session_id in self._waiting:
            self._give_turn(session_id)

    def advance_all(self) -> None:
        """Give all sessions their turns now."""
        self._all = True
        for session_id in list(self._waiting):
            self._give_turn(session_id)

    # For turns.

    async def wait(self, session_id: str) -> None:
        """Wait for the turn of a session."""
        turn = self._waiting[session_id] = trio.Event()
        if self._all or session_id in self._advanced:
            self._give_turn(session_id)
        self._give_free_turns()
        try:
            await turn.wait()
        except BaseException:
            self.done(session_id)
            raise

    def done(self, session_id: str) -> None:
        """Note that a session has answered or ended."""
        self._waiting.pop(session_id, None)
        self._under_way.discard(session_id)
        self._give_free_turns()

    def _give_free_turns(self) -> None:
        while self._waiting and len(self._under_way) < AT_ONCE:
            self._give_turn(next(iter(self._waiting)))

    def _give_turn(self, session_id: str) -> None:
        self._under_way.add(session_id)
        self._waiting.pop(session_id).set()


class ResumeTurn:
    """Turn of one session. The session enters it as it enters the limit of starts otherwise."""

    def __init__(self, turns: ResumeTurns, session_id: str) -> None:
        self._turns = turns
        self._session_id = session_id

    async def __aenter__(self) -> None:
        await self._turns.wait(self._session_id)

    async def __aexit__(self, *_: object) -> None:
        self._turns.done(self._session_id)


class Reattachment:
    """Reattachment of sessions: their executions under way, and the answers to wait for.

    Attributes:
        turns: order in which the agents are asked.
    """

    def __init__(self, earlier: EarlierExecutions, executions: ExecutionIndex) -> None:
        self.turns = ResumeTurns()
        self._earlier = earlier
        self._executions = executions
        self._awaited: dict[Session, trio.Event] = {}
        self._progress = trio.Event()
        self._settled = trio.Event()
        self._settled.set()

    def __repr__(self) -> str:
        return f"<Reattachment that awaits {len(self._awaited)} sessions>"

    @property
    def settled(self) -> bool:
        """True if nobody has to wait for any session."""
        return self._settled.is_set()

    def begin(
        self, loaded_state: LoadedState, sessions: Sequence[Session], *, all_seen: bool = True
    ) -> None:
        """Note that these sessions were taken over, and that their agents are being asked.

        Args:
            all_seen: False if there may be further sessions, in a holder that does not answer.
        """
        self._awaited = {session: trio.Event() for session in sessions}
        self._settled = trio.Event()
        # Those that cannot be used, or not yet, may have run anything, and are not asked.
        lost = any(each.tenancy.name is None for each in loaded_state.gone)
        lost = lost or loaded_state.lost_one_shots
        self._earlier.lost_one_shots = lost or bool(loaded_state.unread) or not all_seen

    async def settle(self) -> None:
        """Wait until all of them have answered, ended, or taken too long."""
        while self._awaited:
            self._progress = trio.Event()
            with trio.move_on_after(SETTLE_S) as patience:
                await self._progress.wait()
            if patience.cancelled_caught:
                log.warning("%d sessions have not answered yet", len(self._awaited))
                break
        self.turns.advance_all()
        self._earlier.complete = True
        self._settled.set()

    async def wait(self, target: str | None) -> None:
        """Wait until the sessions that a target may mean have answered, ended, or taken too long.

        Args:
            target: an id, its beginning, a name or `scope/name`; None for all sessions.
        """
        if target is None:
            await self._settled.wait()
            return
        meant = {each: done for each, done in self._awaited.items() if _may_mean(target, each)}
        for session in meant:
            self.turns.advance(session.id)
        with trio.move_on_after(SETTLE_S):
            for done in meant.values():
                await done.wait()

    def execution(self, session: Session, noted: Noted) -> Execution:
        """Return the handle of an execution that an earlier supervisor sent. Its note comes from
        the session's jail, so it only decides who may have the result.
        """
        note, tenancy = noted.note, session.tenancy
        assert tenancy is not None, "spares are not taken up"
        environment = session.spec.environment
        told_id = execution_id = execution_id_of(noted.id)
        if not execution_id or execution_id in self._executions:
            # Another agent claims it, too. `Deduplication` finds out to which of them it was sent.
            execution_id = f"{session.id}.{noted.id}"
        request = RunRequest(
            client=ClientIdentity(
                name=_text(note.get("client"), tenancy.client),
                scope=_text(note.get("scope"), tenancy.scope),
            ),
            env=environment.name,
            code=noted.code,
            session=session.name,
            execution_id=execution_id,
            stdin=note.get("stdin") is True,
        )
        origin = Origin(
            env=environment.name,
            created=note.get("created") is True,
            replaced=_text(note.get("replaced"), "") or None,
            timeout_s=min(
                _seconds(note.get("timeout_s")) or environment.timeout_s, environment.timeout_s
            ),
            clamped_from_s=_seconds(note.get("clamped_from_s")),
            one_shot=session.name is None,
        )
        finished = self._executions.finished
        execution = Execution(execution_id, request, origin, session, None, finished, callers=0)
        execution.earlier = True
        execution.told_id = told_id
        execution.sent_at = _number_below(1e12, note.get("sent_at"))
        self._executions.add(execution)
        return execution

    def resumed(self, session: Session, resumed: ResumedFrame) -> None:
        """Handle an agent's report of what it ran."""
        under_way = {noted.id for noted in resumed.executions}
        tenancy = session.tenancy
        for each in resumed.recent:
            if tenancy is not None and each not in under_way:
                self._earlier.was_done(execution_id_of(each), tenancy.scope, tenancy.name)
        # An agent that cannot tell may have run anything.
        told = resumed.count is not None
        if tenancy is not None and tenancy.name is not None and told:
            self._earlier.surviving.add((tenancy.scope, tenancy.name))
        self._came(session)

    def ended(self, session: Session) -> None:
        """A session is gone. If it never answered, its executions are lost, too."""
        if session in self._awaited and session.name is None:
            self._earlier.lost_one_shots = True
        if session.tenancy is not None and session.tenancy.name is not None:
            self._earlier.surviving.discard((session.tenancy.scope, session.tenancy.name))
        self._came(session)

    def _came(self, session: Session) -> None:
        came = self._awaited.pop(session, None)
        if came is not None:
            came.set()
            self._progress.set()


def _may_mean(target: str, session: Session) -> bool:
    tenancy = session.tenancy
    names = () if tenancy is None else (tenancy.name, f"{tenancy.scope}/{tenancy.name}")
    return target in names or session.id.startswith(target)


def execution_id_of(agent_id: str) -> str:
    """Id of an execution, taken from its id at the agent."""
    return agent_id.partition(".")[2]


def _text(value: Any, default: str) -> str:
    return value if isinstance(value, str) and len(value) <= 1000 else default


def _seconds(value: Any) -> float | None:
    return _number_below(1e9, value)


def _number_below(limit: float, value: Any) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < limit:
        return float(value)
    return None
