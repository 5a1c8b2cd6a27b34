"""Sessions kept ready, so that a call finds its jail already there.

A *kind* is a jail specification; spares of a kind are interchangeable. Each kind in use keeps
`spares` sessions ready; one that nobody asked for during `keep_seconds` is given up. Another source
of sessions (a template that forks them) fits behind `SessionSource`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import trio

from nsmd.lifecycle import State
from nsmd.session import Session
from nsmd.settings import PoolSettings
from nsmd.values import JailSpec

START = Callable[[JailSpec], Session]


class SessionSource(Protocol):
    """Where the registry gets sessions from."""

    def take(self, spec: JailSpec) -> Session:
        """A session of that kind, ready or still starting, which is the caller's from now on."""
        ...

    def forget(self, session: Session) -> bool:
        """A session ended. Returns whether it was a spare."""
        ...


@dataclass(slots=True, kw_only=True)
class _Kind:
    spares: deque[Session] = field(default_factory=deque["Session"])
    used_s: float = 0.0
    expiry: trio.CancelScope | None = None


class Pool:
    """See the module.

    Args:
        settings: how many, how long.
        start: makes a session of a kind and starts its task.
        nursery: for refills and expiries; cancelling it stops both.
    """

    def __init__(self, settings: PoolSettings, start: START, nursery: trio.Nursery) -> None:
        self._settings = settings
        self._start = start
        self._nursery = nursery
        self._kinds: dict[JailSpec, _Kind] = {}

    @property
    def spares(self) -> int:
        """How many sessions wait to be taken."""
        return sum(len(kind.spares) for kind in self._kinds.values())

    def take(self, spec: JailSpec) -> Session:
        """See `SessionSource`."""
        kind = self._kinds.setdefault(spec, _Kind())
        kind.used_s = trio.current_time()
        session = _best(kind.spares) or self._start(spec)
        self._keep(spec, kind)
        self._nursery.start_soon(self._refill, spec)
        return session

    def forget(self, session: Session) -> bool:
        """See `SessionSource`.

        A spare that died is not replaced before the next `take`: a kind that cannot start must not
        be tried for ever.
        """
        kind = self._kinds.get(session.spec)
        if kind is None or session not in kind.spares:
            return False
        kind.spares.remove(session)
        return True

    async def _refill(self, spec: JailSpec) -> None:
        # One turn of the scheduler: the call that caused this goes first.
        await trio.lowlevel.checkpoint()
        kind = self._kinds.get(spec)
        while kind is not None and len(kind.spares) < self._settings.spares:
            if self.spares >= self._settings.max_spares and not self._make_room(spec):
                return
            kind.spares.append(self._start(spec))

    def _make_room(self, spec: JailSpec) -> bool:
        """End a spare of the kind that was used least recently, unless that is `spec` itself."""
        others = [
            (kind.used_s, index)
            for index, (other, kind) in enumerate(self._kinds.items())
            if other != spec and kind.spares
        ]
        if not others:
            return False
        kind = list(self._kinds.values())[min(others)[1]]
        kind.spares.popleft().end("its place in the pool was needed")
        return True

    def _keep(self, spec: JailSpec, kind: _Kind) -> None:
        """Count the kind's time from now."""
        if kind.expiry is not None:
            kind.expiry.cancel()
        kind.expiry = trio.CancelScope()
        self._nursery.start_soon(self._expire, spec, kind.expiry)

    async def _expire(self, spec: JailSpec, scope: trio.CancelScope) -> None:
        with scope:
            await trio.sleep(self._settings.keep_seconds)
            for session in self._kinds.pop(spec).spares:
                session.end("nobody asked for its kind any more")


def _best(spares: deque[Session]) -> Session | None:
    """Take a ready spare, else one that is starting."""
    for wanted in (State.IDLE, State.STARTING):
        for session in spares:
            if session.state is wanted:
                spares.remove(session)
                return session
    return None
