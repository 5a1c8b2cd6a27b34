"""The sessions that are not over yet, by id and by name.

Whatever a call asks here costs the same with a thousand others, but for a name without its scope.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from nsm.wire.errors import AmbiguousSessionError, UnknownSessionError
from nsmd.model import names
from nsmd.sessions.session import Session

_LISTED = 10
"""Sessions named in an error about several of one name."""


class Here(NamedTuple):
    """Scope and project that somebody asks from.

    Attributes:
        scope: of the names that the caller itself gives.
        project: path of the caller's project; None for no project.
    """

    scope: str
    project: str | None

    def has(self, session: Session) -> bool:
        """Tell whether a session sees the same project."""
        return project_path(session) == self.project


def project_path(session: Session) -> str | None:
    """The directory that a session sees; None for no project."""
    return None if session.spec.project is None else session.spec.project.path


class SessionIndex:
    """Index of the sessions that are not over. It includes spares, and sessions that are just
    ending."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._named: dict[tuple[str, str], Session] = {}

    def __repr__(self) -> str:
        return f"<Directory of {len(self._sessions)} sessions, {len(self._named)} of them named>"

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._sessions

    def live(self) -> list[Session]:
        """Those that belong to somebody and can take work; takes a while where there are many."""
        return [s for s in self._sessions.values() if s.tenancy is not None and s.live]

    @property
    def names(self) -> Container[tuple[str, str]]:
        """Scope and name of each session that has one."""
        return self._named.keys()

    def named(self, scope: str, name: str) -> Session | None:
        """The session that was given that name last, also while it ends."""
        return self._named.get((scope, name))

    def add(self, session: Session) -> None:
        """One has come into being; it is nobody's yet."""
        self._sessions[session.id] = session

    def give_name(self, session: Session) -> None:
        """Register a session under the name in its tenancy; an earlier session of that name is
        displaced."""
        tenancy = session.tenancy
        assert tenancy is not None
        assert tenancy.name is not None, "a one-shot has no name"
        self._named[tenancy.scope, tenancy.name] = session

    def remove(self, session: Session) -> bool:
        """Remove a session that is over; return whether it still had its name."""
        self._sessions.pop(session.id, None)
        tenancy = session.tenancy
        if tenancy is None or tenancy.name is None:
            return False
        key = tenancy.scope, tenancy.name
        if self._named.get(key) is not session:
            return False
        del self._named[key]
        return True

    def find(self, target: str, scope: str | None = None, here: Here | None = None) -> Session:
        """The live session that an id, its beginning, a name or `scope/name` means.

        Args:
            scope: others are not there for who asks; None for all.
            here: of several of one name, the session from here is meant; None for no preference.

        Raises:
            UnknownSessionError, AmbiguousSessionError: none, or several.
        """
        matches = [
            s
            for s in self._meant(target)
            if s.tenancy is not None and s.live and scope in (None, s.tenancy.scope)
        ]
        if len(matches) > 1 and here is not None:
            own = [s for s in matches if s.tenancy is not None and s.tenancy.scope == here.scope]
            matches = own or [s for s in matches if here.has(s)] or matches
        if not matches:
            raise UnknownSessionError(
                f"No session {target[:200]!r}.", hint="`nsm ps` lists the live ones."
            )
        return _only(matches, target)

    def identified(self, target: str) -> Session | None:
        """The live session that an id, its beginning or `scope/name` means; never a name alone.

        Raises:
            AmbiguousSessionError: several ids begin so.
        """
        matches = [s for s in self._identified(target) if s.tenancy is not None and s.live]
        return _only(matches, target) if matches else None

    def _meant(self, target: str) -> list[Session]:
        if target not in self._sessions:
            named = [s for (_, name), s in self._named.items() if name == target]
            if named:
                return named
        return self._identified(target)

    def _identified(self, target: str) -> list[Session]:
        session = self._sessions.get(target)
        if session is None:
            scope, _, name = target.rpartition("/")
            session = self._named.get((scope, name)) if scope else None
        if session is not None:
            return [session]
        if not names.may_be_id(target):
            return []
        return [s for s in self._sessions.values() if s.tenancy and s.id.startswith(target)]


def _only(matches: list[Session], target: str) -> Session:
    if len(matches) > 1:
        shown = [f"{s.id} ({s.tenancy.scope if s.tenancy else ''})" for s in matches[:_LISTED]]
        listed = ", ".join([*shown, "..."] if len(matches) > _LISTED else shown)
        named = any(s.name == target for s in matches)
        raise AmbiguousSessionError(
            f"{len(matches)} sessions {'are called' if named else 'have ids that begin with'} "
            f"{target!r}: {listed}.",
            hint="Use an id.",
            data={"ids": [s.id for s in matches]},
        )
    return matches[0]
