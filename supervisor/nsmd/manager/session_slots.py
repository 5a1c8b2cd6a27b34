"""Room for so many sessions, and sessions that wait for some.

A call that needs a new session while all places are taken is refused with what to do, with one
exception: one-shots give their places back by themselves, mostly within milliseconds, so sessions
wait for those, first come, first served, so many at most and for so long. One that waits has an id,
is listed as starting and can be interrupted, but has no jail.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from types import TracebackType

import trio

from nsm.wire.errors import SessionLimitError
from nsmd.model.durations import duration
from nsmd.model.limits import SessionRoom
from nsmd.sessions.session import Session

MAX_WAITING = 256
"""Sessions that wait for a place; more are refused at once."""

WAIT_S = 30.0
"""How long one waits: as long as a one-shot may run by default."""

SHARE = 4
"""The sessions of one box take at most one place in so many: they outlive it, and code in there
that takes all of them would leave none to the user."""

_LISTED = 5
"""Sessions named in an error about too many of them."""


class SessionSlots:
    """Slots for sessions, and sessions that wait for one.

    Args:
        room: how many sessions may have jails.
        live: all live sessions, those that wait included and spares left out.
        starts: how many jails are launched at once.
    """

    def __init__(
        self, room: SessionRoom, live: Callable[[], Sequence[Session]], starts: trio.CapacityLimiter
    ) -> None:
        self._limit = room.sessions
        self._remedy = room.remedy
        self._live = live
        self._starts = starts
        self._waiting: dict[Session, Turn] = {}

    def __repr__(self) -> str:
        return f"<Places {self._limit} in all, {len(self._waiting)} sessions wait>"

    def configure(self, room: SessionRoom) -> None:
        """From now on there may be so many; nobody is ended for it."""
        self._limit = room.sessions
        self._remedy = room.remedy
        self.given_back()

    def has_room(self, at_most: int) -> bool:
        """Return whether a session may start now.

        Args:
            at_most: sessions that there are at most; below the limit, nobody needs to count.
        """
        return not self._waiting and (at_most < self._limit or self._free() > 0)

    def check_share(self, scope: str) -> None:
        """Make sure that a box may have one more session.

        Args:
            scope: that of its sessions.

        Raises:
            SessionLimitError: it has its share.
        """
        most = max(1, self._limit // SHARE)
        own = [s for s in self._live() if s.tenancy and s.tenancy.scope == scope]
        if len(own) >= most:
            raise SessionLimitError(
                f"You have your share of sessions, {most} of {self._limit}"
                f"{_told(own, scope, ':')}.",
                hint=_CONFINED,
                data={"limit": most},
            )

    def turn(self, scope: str, *, confined: bool = False) -> Turn:
        """Queue a new session until it may start.

        Args:
            scope: the caller's, whose sessions an error may name.
            confined: it is a box's, which may end no sessions.

        Raises:
            SessionLimitError: no place becomes free by itself, or too many wait.
        """
        live = self._live()
        if all(session.name for session in live):
            raise self._refusal(live, scope, confined=confined)
        if len(self._waiting) >= MAX_WAITING:
            besides = f" {len(self._waiting)} calls wait for a place."
            raise self._refusal(live, scope, confined=confined, besides=besides)
        return Turn(self, scope, confined=confined)

    def given_back(self) -> None:
        """A session has ended: the next ones have their turn."""
        if not self._waiting:
            return
        free = self._free()
        for session, turn in list(self._waiting.items()):
            if free <= 0:
                return
            if session.live:
                del self._waiting[session]
                turn.opened.set()
                free -= 1

    def _free(self) -> int:
        return self._limit - sum(session not in self._waiting for session in self._live())

    # Its turns' side.

    def queue(self, session: Session, turn: Turn) -> None:
        """A session waits from now on."""
        self._waiting[session] = turn

    async def wait(self, session: Session, turn: Turn) -> None:
        """Wait for a place, and then for the leave to launch a jail.

        Raises:
            SessionLimitError: none became free in time.
        """
        try:
            with trio.move_on_after(WAIT_S):
                await turn.opened.wait()
        finally:
            self._waiting.pop(session, None)
        if not turn.opened.is_set():
            waited = f" This call waited {WAIT_S:.0f} s for a place."
            raise self._refusal(self._live(), turn.scope, confined=turn.confined, besides=waited)
        await self._starts.acquire()

    def started(self) -> None:
        """A jail that waited has been launched."""
        self._starts.release()

    def _refusal(
        self, live: Sequence[Session], scope: str, *, confined: bool, besides: str = ""
    ) -> SessionLimitError:
        told = _told(live, scope, " Yours:" if confined else " Yours that could be ended:", ".")
        hint = (
            "End one with `nsm kill NAME` (or `nsm kill --idle SECONDS`), reuse a session, or "
            f"{self._remedy}."
        )
        return SessionLimitError(
            f"{self._limit} sessions are live, which is the limit.{besides}{told}",
            hint=_CONFINED if confined else hint,
            data={"limit": self._limit},
        )


_CONFINED = (
    "Reuse a session, by its name. Those that nobody uses end by themselves; whoever runs nsm can "
    "end some with `nsm kill NAME`."
)
"""Clients in a box may end none."""


def _told(live: Sequence[Session], scope: str, words: str, end: str = "") -> str:
    """The sessions of a scope that were idle longest, after some words; nothing for none."""
    now = trio.current_time()
    own = [s for s in live if s.tenancy and s.tenancy.scope == scope and s.name]
    longest = heapq.nsmallest(_LISTED, own, key=lambda s: s.active_s)
    listed = ", ".join(f"{s.name} (idle {duration(now - s.active_s)})" for s in longest)
    return f"{words} {listed}{end}" if listed else ""


class Turn:
    """One session's wait for a place and for the leave to start, in place of a plain limiter."""

    def __init__(self, places: SessionSlots, scope: str, *, confined: bool = False) -> None:
        self.scope, self.confined = scope, confined
        self.opened = trio.Event()
        self._places = places
        self._session: Session | None = None

    def is_for(self, session: Session) -> None:
        """Bind the turn to the session that waits."""
        self._session = session
        self._places.queue(session, self)

    async def __aenter__(self) -> None:
        assert self._session is not None, "nobody waits"
        await self._places.wait(self._session, self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._places.started()
