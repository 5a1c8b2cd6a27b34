"""Bounded memory of ended sessions and finished executions."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import trio

from nsm.dataclass import dataclass
from nsmd.model.text import duration
from nsmd.sessions.execution import Execution

if TYPE_CHECKING:
    from nsmd.restart.ended_sessions import EndedSessionFiles

MAX_ENDED = 1000
"""Largest number of ended sessions to remember, so that a later call with that name gets the
reason.
"""

MAX_RESULTS = 1000
MAX_FORGOTTEN = 50_000
"""Ids of executions whose results were dropped: so many that a client which asks again after a
lost connection finds its own."""

MAX_RESULT_BYTES = 32 * 1024 * 1024
"""Total size of the results of finished executions that clients can still ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """End of a session: the reason, and the time on trio's clock (seconds).

    Attributes:
        lost: its jail or its agent failed; neither a person nor a limit ended it.
    """

    reason: str
    at_s: float
    lost: bool = False

    def words(self) -> str:
        """Text for people: ``ended 12 min ago (idle timeout)``."""
        verb = "was lost" if self.lost else "ended"
        return f"{verb} {duration(trio.current_time() - self.at_s)} ago ({self.reason})"


class EndedSessions:
    """The last `MAX_ENDED` ends, by (scope, name); the oldest is dropped."""

    def __init__(self, store: EndedSessionFiles | None = None) -> None:
        self._store = store
        self._ends: OrderedDict[tuple[str, str], SessionEnd] = OrderedDict()

    def add(self, scope: str, name: str, reason: str, *, lost: bool = False) -> None:
        """Note that a session of that name has ended."""
        ended = SessionEnd(reason=reason, at_s=trio.current_time(), lost=lost)
        self.restore(scope, name, ended)
        if self._store is not None:
            self._store.keep(scope, name, ended)

    def restore(self, scope: str, name: str, ended: SessionEnd) -> None:
        """Note that a session has ended under an earlier supervisor."""
        self._ends[scope, name] = ended
        self._ends.move_to_end((scope, name))
        if len(self._ends) > MAX_ENDED:
            oldest, _ = self._ends.popitem(last=False)
            if self._store is not None:
                self._store.forget(*oldest)

    def begin(self, scope: str, name: str) -> str | None:
        """Note that a session of that name begins.

        Returns:
            How the last session of that name ended, in words; given only once.
        """
        if self._store is not None:
            self._store.began(scope, name)
        ended = self._ends.pop((scope, name), None)
        return None if ended is None else ended.words()


class ExecutionIndex:
    """Executions by id: those under way, and the results of finished ones while there is room."""

    def __init__(self) -> None:
        self._running: dict[str, Execution] = {}
        self._finished: OrderedDict[str, Execution] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._forgot_ids = False
        self._bytes = 0

    def __contains__(self, execution_id: str) -> bool:
        return execution_id in self._running or execution_id in self._finished

    def get(self, execution_id: str) -> Execution | None:
        """The execution of that id, if it is running or remembered."""
        return self._running.get(execution_id) or self._finished.get(execution_id)

    def told_of(self, execution_id: str) -> list[Execution]:
        """Return the executions with that id in sessions that an earlier supervisor began, as their
        agents say.
        """
        known = (*self._running.values(), *self._finished.values())
        return [each for each in known if each.earlier and each.told_id == execution_id]

    def rename(self, execution: Execution, execution_id: str) -> None:
        """Give an execution another id, so that its own is free."""
        for kept in (self._running, self._finished):
            if kept.pop(execution.id, None) is not None:
                execution.id = execution_id
                kept[execution_id] = execution
                return

    def unfinished(self) -> list[Execution]:
        """Executions under way, in the order of their arrival."""
        return list(self._running.values())

    def add(self, execution: Execution) -> None:
        """Note a submitted execution."""
        self._running[execution.id] = execution

    def finished(self, execution: Execution) -> None:
        """Note that an execution has its answer; the oldest results make room for it."""
        del self._running[execution.id]
        self._finished[execution.id] = execution
        self._bytes += execution.answer_bytes
        while self._bytes > MAX_RESULT_BYTES or len(self._finished) > MAX_RESULTS:
            execution_id, oldest = self._finished.popitem(last=False)
            self._bytes -= oldest.answer_bytes
            self._forgotten[execution_id] = None
            if len(self._forgotten) > MAX_FORGOTTEN:
                self._forgotten.popitem(last=False)
                self._forgot_ids = True

    def never_had(self, execution_id: str) -> bool:
        """Return whether no execution had that id; False if that is not known any more."""
        return not (self._forgot_ids or execution_id in self or execution_id in self._forgotten)
