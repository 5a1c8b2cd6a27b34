"""Limit of live sessions, and sessions that wait for a slot.

A call that needs a new session when all slots are taken is refused, with what to do. There is one
exception: one-shots free their slots by themselves, mostly within milliseconds. So sessions wait
for those, first come, first served; their number and their time are bounded. A waiting session has
an id, is listed as starting and can be interrupted, but has no jail.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import trio

from nsm.wire.errors import SessionLimitError
from nsmd.model.limits import SessionRoom
from nsmd.model.text import duration
from nsmd.model.values import JailSpec
from nsmd.sessions.session import Session

MAX_WAITING = 256
"""Sessions that wait for a slot; more are refused at once."""

WAIT_S = 30.0
"""Longest wait: as long as a one-shot may run by default."""

SHARE = 4
"""The sessions of one box take at most one slot in so many. They outlive it, and code in a box that
takes all slots would leave none to the user.
"""

_LISTED = 5
"""Largest number of sessions that an error about the limit lists."""


class StartLimit:
    """Limit of jails that start at once. Unlike trio's limiter, it lets a start begin at once while
    there is room: another pass of the event loop would cost a twentieth of a start.
    """

    def __init__(self, most: int) -> None:
        self._free = trio.Semaphore(most)

    async def acquire(self) -> None:
        """Wait for permission to start one."""
        try:
            self._free.acquire_nowait()
        except trio.WouldBlock:
            await self._free.acquire()

    def release(self) -> None:
        """Note that one has started."""
        self._free.release()

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


class SessionSlots:
    """Slots for sessions, and sessions that wait for one.

    Args:
        live: returns all live sessions, with waiting ones and without spares.
    """

    def __init__(
        self, room: SessionRoom, live: Callable[[], Sequence[Session]], starts: StartLimit
    ) -> None:
        self._room = room
        self._live = live
        self._starts = starts
        self._waiting: dict[Session, Turn] = {}

    def __repr__(self) -> str:
        return f"<SessionSlots {self._room.sessions} in all, {len(self._waiting)} sessions wait>"

    def configure(self, room: SessionRoom) -> None:
        """Change the limit; no session ends for it."""
        self._room = room
        self.given_back()

    def has_room(self, spec: JailSpec, sessions: int, descriptors: int) -> bool:
        """Return whether a session may start now.

        Args:
            sessions, descriptors: upper bounds of the number of sessions, and of what they hold;
                below the limits, nothing needs to be counted.
        """
        if self._waiting:
            return False
        return self._fits(sessions, descriptors, spec) or self._fits(*self._taken(), spec)

    def _fits(self, sessions: int, descriptors: int, spec: JailSpec) -> bool:
        """Return whether another session fits beside so many that hold so many descriptors."""
        room = self._room
        return sessions < room.configured and (
            room.descriptors is None or descriptors + spec.descriptors <= room.descriptors
        )

    def _taken(self) -> tuple[int, int]:
        """Count the live sessions that do not wait, and their descriptors."""
        held = [s.spec.descriptors for s in self._live() if s not in self._waiting]
        return len(held), sum(held)

    def check_share(self, scope: str) -> None:
        """Check that a box may have one more session."""
        most = max(1, self._room.sessions // SHARE)
        own = [s for s in self._live() if s.tenancy and s.tenancy.scope == scope]
        if len(own) >= most:
            raise SessionLimitError(
                f"You have your share of sessions, {most} of {self._room.sessions}"
                f"{_told(own, scope, ':')}.",
                hint=_CONFINED,
                data={"limit": most},
            )

    def turn(self, scope: str, *, confined: bool = False) -> Turn:
        """Queue a new session until it may start.

        Args:
            scope: the caller's; an error may name its sessions.
            confined: the caller is in a box, and may end no sessions.
        """
        live = self._live()
        if all(session.name for session in live):
            raise self._refusal(live, scope, confined=confined)
        if len(self._waiting) >= MAX_WAITING:
            besides = f" {len(self._waiting)} calls wait for a place."
            raise self._refusal(live, scope, confined=confined, besides=besides)
        return Turn(self, scope, confined=confined)

    def given_back(self) -> None:
        """A session has ended: let the next ones start."""
        if not self._waiting:
            return
        sessions, descriptors = self._taken()
        for session, turn in list(self._waiting.items()):
            if not self._fits(sessions, descriptors, session.spec):
                return
            if session.live:
                del self._waiting[session]
                turn.opened.set()
                sessions += 1
                descriptors += session.spec.descriptors

    # For turns.

    def queue(self, session: Session, turn: Turn) -> None:
        """Add a waiting session."""
        self._waiting[session] = turn

    async def wait(self, session: Session, turn: Turn) -> None:
        """Wait for a place, and then for permission to launch a jail."""
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
        """A waiting jail was launched."""
        self._starts.release()

    def _refusal(
        self, live: Sequence[Session], scope: str, *, confined: bool, besides: str = ""
    ) -> SessionLimitError:
        told = _told(live, scope, " Yours:" if confined else " Yours that could be ended:", ".")
        number = self._taken()[0]
        hint = (
            "End one with `nsm kill NAME` (or `nsm kill --idle SECONDS`), reuse a session, or "
            f"{self._room.remedy(number)}."
        )
        return SessionLimitError(
            f"{_live(number)}, {self._room.why_full(number)}.{besides}{told}",
            hint=_CONFINED if confined else hint,
            data={"limit": number},
        )


_CONFINED = (
    "Reuse a session, by its name. Those that nobody uses end by themselves; whoever runs nsm can "
    "end some with `nsm kill NAME`."
)
"""Hint for clients in a box, which may end no sessions."""


def _told(live: Sequence[Session], scope: str, words: str, end: str = "") -> str:
    """List the sessions of a scope that were idle longest, after some words; empty if there are
    none.
    """
    now = trio.current_time()
    own = [s for s in live if s.tenancy and s.tenancy.scope == scope and s.name]
    longest = heapq.nsmallest(_LISTED, own, key=lambda s: s.active_s)
    listed = ", ".join(f"{s.name} (idle {duration(now - s.active_s)})" for s in longest)
    return f"{words} {listed}{end}" if listed else ""


class Turn:
    """One session's wait for a place and for permission to start, used in place of a
    plain limiter.
    """

    def __init__(self, slots: SessionSlots, scope: str, *, confined: bool = False) -> None:
        self.scope, self.confined = scope, confined
        self.opened = trio.Event()
        self._slots = slots
        self._session: Session | None = None

    def is_for(self, session: Session) -> None:
        """Bind the turn to the session that waits."""
        self._session = session
        self._slots.queue(session, self)

    async def __aenter__(self) -> None:
        assert self._session is not None, "nobody waits"
        await self._slots.wait(self._session, self)

    async def __aexit__(self, *_: object) -> None:
        self._slots.started()


def _live(number: int) -> str:
    return "1 session is live" if number == 1 else f"{number} sessions are live"
