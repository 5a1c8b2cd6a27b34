"""Reattachment of an earlier supervisor's sessions, and of the executions under way in them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import trio

from nsmd.agent_link.frames import Noted, ResumedFrame
from nsmd.fdstore.fates import Fates
from nsmd.model.values import ClientIdentity, RunRequest
from nsmd.restart.load import LoadedState
from nsmd.sessions.ended import ExecutionIndex
from nsmd.sessions.execution import Execution, Origin
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

SETTLE_S = 5.0
"""How long clients wait for agents to say what they run. Each agent takes milliseconds; one that is
stopped delays nobody for longer.
"""


class Reattachment:
    """Reattachment of sessions: their executions under way, and the answers to wait for.

    Args:
        fates: gets the outcomes of executions.
        executions: gets the executions under way.
    """

    def __init__(self, fates: Fates, executions: ExecutionIndex) -> None:
        self._fates = fates
        self._executions = executions
        self._awaited: set[Session] = set()
        self._settled = trio.Event()

    def __repr__(self) -> str:
        return f"<Reattachment that awaits {len(self._awaited)} sessions>"

    def begin(self, loaded_state: LoadedState, sessions: Sequence[Session]) -> None:
        """Note that these sessions were taken over, and their agents are being asked."""
        self._awaited = set(sessions)
        self._fates.lost_one_shots = any(each.tenancy.name is None for each in loaded_state.gone)

    async def settle(self) -> None:
        """Wait until all of them have answered, ended, or taken too long."""
        with trio.move_on_after(SETTLE_S):
            while self._awaited:
                await self._settled.wait()
        if self._awaited:
            log.warning("%d sessions have not answered yet", len(self._awaited))
        self._fates.complete = True

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
                self._fates.was_done(execution_id_of(each), tenancy.scope, tenancy.name)
        # An agent that cannot tell may have run anything.
        told = resumed.count is not None
        if tenancy is not None and tenancy.name is not None and told:
            self._fates.surviving.add((tenancy.scope, tenancy.name))
        self._came(session)

    def ended(self, session: Session) -> None:
        """A session is gone. If it never answered, its executions are lost, too."""
        if session in self._awaited and session.name is None:
            self._fates.lost_one_shots = True
        if session.tenancy is not None and session.tenancy.name is not None:
            self._fates.surviving.discard((session.tenancy.scope, session.tenancy.name))
        self._came(session)

    def _came(self, session: Session) -> None:
        self._awaited.discard(session)
        if not self._awaited:
            self._settled.set()


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
