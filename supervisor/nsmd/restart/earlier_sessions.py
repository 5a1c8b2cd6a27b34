"""Sessions and executions of an earlier supervisor that this one does not continue.

`UnreadSessions` live on, since this version of nsm cannot read them, and can only be listed and
ended. `EarlierExecutions` are answered or gone.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Literal, cast

from nsm.dataclass import dataclass
from nsm.wire.errors import UnreadableSessionError
from nsmd.host.processes import has_ended
from nsmd.model import names

Drop = Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadSession:
    """A live session whose record, or specification, cannot be read.

    Attributes:
        name, scope, client, env: as far as the record tells; else None and empty.
        pid: host process id of its jail's PID 1.
        pidfd: descriptor of that process, which belongs to the entry.
        why: why it cannot be used, for people.
    """

    id: str
    name: str | None
    scope: str
    client: str
    env: str
    pid: int
    pidfd: int
    why: str

    @classmethod
    def of(
        cls, id_: str, pidfd: int, pid: int, plain: Mapping[str, Any], env: str, why: str
    ) -> UnreadSession:
        """Make one, with what its record tells."""
        tenancy = plain.get("tenancy")
        told = cast("dict[str, Any]", tenancy) if isinstance(tenancy, dict) else {}
        name, scope, client = (
            value if isinstance(value := told.get(key), str) else ""
            for key in ("name", "scope", "client")
        )
        return cls(
            id=id_,
            name=name or None,
            scope=scope,
            client=client,
            env=env,
            pid=pid,
            pidfd=pidfd,
            why=why,
        )

    def error(self) -> UnreadableSessionError:
        """Error for those who want to use it."""
        return UnreadableSessionError(
            f"This version of nsm cannot use the session {self.name or self.id!r}: {self.why}. "
            "It lives on; nothing was run.",
            hint="Install a version that can use it, then `nsm reload`. "
            f"`nsm kill {self.id}` ends it.",
            data={"id": self.id},
        )


class UnreadSessions:
    """All live sessions that cannot be read.

    Args:
        drop: drops all that the store has of one, by its id.
    """

    def __init__(self, drop: Drop = lambda _: None) -> None:
        self._sessions: dict[str, UnreadSession] = {}
        self._drop = drop

    def __len__(self) -> int:
        return len(self._sessions)

    def add(self, session: UnreadSession) -> None:
        """Add a live one."""
        self._sessions[session.id] = session

    def __repr__(self) -> str:
        return f"<UnreadSessions {', '.join(self._sessions)}>"

    def live(self, scope: str | None = None) -> list[UnreadSession]:
        """List those that live, and drop the others.

        Args:
            scope: the only scope that the caller may see; None for all.
        """
        for each in [each for each in self._sessions.values() if has_ended(each.pidfd)]:
            self._forget(each)
        return [each for each in self._sessions.values() if scope in (None, each.scope)]

    @property
    def names(self) -> Collection[tuple[str, str]]:
        """Scope and name of each that has one."""
        return {(each.scope, each.name) for each in self.live() if each.name is not None}

    def named(self, scope: str, name: str) -> UnreadSession | None:
        """Find the one of that name."""
        return next((each for each in self.live(scope) if each.name == name), None)

    def find(
        self, target: str, scope: str | None = None, *, by_name: bool = True
    ) -> UnreadSession | None:
        """Find the one that a target means: an id, a name or `scope/name`."""
        for each in self.live(scope):
            names = (each.id, f"{each.scope}/{each.name}", *([each.name] if by_name else []))
            if target in names:
                return each
        return None

    def end(self, session: UnreadSession) -> None:
        """End one."""
        with suppress(OSError):
            signal.pidfd_send_signal(session.pidfd, signal.SIGKILL)
        self._forget(session)

    def end_all(self) -> None:
        """End all of them: the supervisor ends with all sessions."""
        for each in self.live():
            self.end(each)

    def _forget(self, session: UnreadSession) -> None:
        self._sessions.pop(session.id, None)
        self._drop(session.id)


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
        lost_one_shots: some one-shot was lost with its jail.
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


log = logging.getLogger(__name__)
