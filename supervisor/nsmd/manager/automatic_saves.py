"""Saves that nobody asked for: of sessions that have become idle, and at a shutdown.

A process of its own writes each, as a client (`nsm.saves.automatic`): compressing takes seconds,
and the supervisor neither holds nor reads anything of what is saved. It saves a session a minute
after its last execution, and not just before its idle limit ends it: a save that failed then would
lose everything. A save is called `NAME.ID`, so that a new session of that name never replaces it.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable

import trio

from nsm.wire.transcripts import OWN_CODE
from nsmd.model.events import EventKind, Events, SupervisorEvent
from nsmd.model.lifecycle import SessionState
from nsmd.model.settings import SessionSettings
from nsmd.sessions.execution import Execution
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

IDLE_S = 60.0
"""Idle time after which a session is saved; half of its idle limit if that is shorter. So each is
saved before the limit ends it."""

SAVE_S = 600.0
"""Time limit of one save; the code that pickles has the limit of its environment besides."""

SHUTDOWN_S = 60.0
"""Time for all saves at a shutdown."""

AT_ONCE = 2
"""Saves at the same time: each may compress hundreds of megabytes."""

_KINDS: tuple[EventKind, ...] = ("execution_finished", "fresh_finished", "session_taken_up")

Write = Callable[[Session, int], Awaitable[None]]


class AutomaticSaves:
    """Saves of sessions, if the configuration asks for them.

    Args:
        write: writes the save of a session, with the largest size of all saves in MiB.
    """

    def __init__(
        self,
        events: Events,
        settings: Callable[[], SessionSettings],
        find: Callable[[str], Session | None],
        live: Callable[[], Iterable[Session]],
        write: Write,
    ) -> None:
        self._settings = settings
        self._find = find
        self._live = live
        self._write = write
        self._limiter = trio.CapacityLimiter(AT_ONCE)
        self._due: dict[str, float] = {}  # on trio's clock, by session
        self._changed = trio.Event()
        events.subscribe(self._heard, _KINDS)

    def __repr__(self) -> str:
        return f"<AutomaticSaves of {len(self._due)} changed sessions>"

    def _heard(self, event: SupervisorEvent) -> None:
        """Note that a session has something that its last save has not."""
        if not self._settings().keep:
            return
        subject = event.subject
        if event.kind == "fresh_finished":
            subject = self._find(event.session)
        elif isinstance(subject, Execution):
            if subject.request.code.startswith(OWN_CODE):
                return
            subject = subject.session
        if isinstance(subject, Session):
            self._note(subject)

    def _note(self, subject: Session) -> None:
        if subject.tenancy is None or subject.name is None:
            return  # a spare, or a one-shot, which is gone already
        idle_s = min(IDLE_S, subject.tenancy.idle_timeout_s / 2)
        self._due[subject.id] = trio.current_time() + idle_s
        self._changed.set()

    async def run(self) -> None:
        """Save each session when it has been idle for a while."""
        if self._settings().keep:
            for live in self._live():
                self._note(live)
        async with trio.open_nursery() as saving:
            while True:
                self._changed = trio.Event()
                with trio.move_on_at(min(self._due.values(), default=math.inf)):
                    await self._changed.wait()
                now = trio.current_time()
                for session_id in [each for each, due_s in self._due.items() if due_s <= now]:
                    del self._due[session_id]
                    session = self._find(session_id)
                    # Else it is gone, or the end of its code or programs will be told.
                    idle = session is not None and session.state is SessionState.IDLE
                    if session is not None and idle and not session.runs_programs:
                        saving.start_soon(self._save, session)

    async def save_all(self) -> None:
        """Save all sessions that have changed, before they end."""
        found = [self._find(session_id) for session_id in self._due]
        changed = [session for session in found if session is not None]
        self._due.clear()
        with trio.move_on_after(SHUTDOWN_S) as scope:
            async with trio.open_nursery() as saving:
                for session in changed:
                    saving.start_soon(self._save_last, session)
        if scope.cancelled_caught:
            log.warning("not all sessions were saved within %g s", SHUTDOWN_S)

    async def _save_last(self, session: Session) -> None:
        """Save a session that is to end, and end its programs before: they might change files."""
        if session.runs_programs:
            await session.runners.end_programs()
        await self._save(session)

    async def _save(self, session: Session) -> None:
        async with self._limiter:
            with trio.move_on_after(SAVE_S):
                await self._write(session, self._settings().saves_mb)


def writing_to(socket_path: str) -> Write:
    """Make the function that has a process write a save."""

    async def write(session: Session, saves_mb: int) -> None:
        command = [sys.executable, "-P", "-m", "nsm.saves.automatic", session.id, str(saves_mb)]
        try:
            done = await trio.run_process(
                command,
                cwd="/",
                env={**os.environ, "NSM_SOCKET": socket_path},
                capture_stderr=True,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except OSError as error:
            log.warning("session %s was not saved: %s", session.id, error)
            return
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
            log.warning("session %s was not saved: %.300s", session.id, lines[-1])

    return write
