"""Records and descriptors of sessions in the descriptor store, so that sessions outlive the
supervisor.

A session is stored when a client takes it, when facts change that a later supervisor needs, and
removed when it ends: some 50 us each. What runs in it is not recorded: its agent remembers that.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache

import trio

from nsm.dataclass import dataclass, replace
from nsmd.fdstore import records
from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.records import SessionRecord, SpecRecord
from nsmd.fdstore.store import DescriptorStore
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec
from nsmd.sessions.agent_session import Earlier
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

SPECS_KEPT = 64
"""Largest number of specifications kept without a session, since one-shots come and go."""


@dataclass(slots=True)
class _Kind:
    """Facts that sessions of one kind share, in their stored form."""

    name: str
    data: bytes
    policy: Policy | None
    sessions: int = 0


class SessionStore:
    """Records of sessions in the descriptor store, so that they outlive the supervisor.

    Args:
        store: the descriptor store.
        known: names of specifications that it already has.
        pinned: these stay, since sessions that cannot be read may need them.
    """

    def __init__(
        self, store: DescriptorStore, known: Sequence[str] = (), *, pinned: bool = False
    ) -> None:
        self._store = store
        self._known = set(known)
        self._pinned = frozenset(known if pinned else ())
        self._revisions: dict[str, int] = {}
        self._names: dict[str, list[str]] = {}
        self._awaited: dict[str, tuple[SessionRecord, Earlier]] = {}
        self._kind_of: dict[str, tuple[JailSpec, int]] = {}
        # By specification and by the identity of the policy; `_Kind` keeps that object alive.
        self._kinds: OrderedDict[tuple[JailSpec, int], _Kind] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SessionStore of {len(self._revisions)} sessions>"

    def __contains__(self, session: Session) -> bool:
        return session.id in self._revisions

    def keep(self, session: Session) -> None:
        """Store a session that belongs to a client and can take work, or store it again after a
        change.

        This may be repeated. If it cannot be stored, that is logged: the session still works.
        """
        if self._store.kind == "none":
            return
        revision = self._revisions.get(session.id, 0) + 1
        try:
            with ExitStack() as owned:
                if (entry := self._entry(session, revision, owned)) is None:
                    return
                # A new name each time: a store adds to its content, and the earlier record would
                # stay as long as the session.
                name = session_name(session.id, revision)
                self._store.keep(name, entry)
        except (OSError, TypeError) as error:
            log.warning("session %s would not outlive the supervisor: %s", session.id, error)
            return
        for earlier in self._names.get(session.id, ()):
            self._store.drop(earlier)
        self._revisions[session.id] = revision
        self._names[session.id] = [name]
        self._awaited.pop(session.id, None)

    def begin_after(
        self, session: Session, names: Sequence[str], record: SessionRecord, earlier: Earlier
    ) -> None:
        """Note a session that was taken over.

        Args:
            names: its names in the store.
            record, earlier: its record until it answers.
        """
        self._revisions[session.id] = record.revision
        self._names[session.id] = list(names)
        self._awaited[session.id] = record, earlier
        self._kind(session, earlier.jail.policy)  # so that `everything` has it

    def drop(self, session: Session) -> None:
        """Remove a session that has ended."""
        if self._revisions.pop(session.id, None) is None:
            return
        self._awaited.pop(session.id, None)
        for name in self._names.pop(session.id, ()):
            self._store.drop(name)
        key = self._kind_of.pop(session.id, None)
        kind = self._kinds.get(key) if key is not None else None
        if kind is not None:
            kind.sessions -= 1
            self._drop_unused()

    def everything(self, sessions: Sequence[Session]) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield everything for a store that has lost it. Descriptors are valid until the next step
        of the iteration.
        """
        for kind in list(self._kinds.values()):
            with ExitStack() as owned:
                try:
                    file: Sequence[int] = [_file(kind.data, owned)]
                except OSError:  # there is no free descriptor for the moment
                    file = ()
                yield kind.name, file
        for session in sessions:
            revision = self._revisions.setdefault(session.id, 1)
            with ExitStack() as owned:
                entry: Sequence[int] | None
                try:
                    entry = self._entry(session, revision, owned)
                except OSError:
                    entry = ()
                if entry is not None:
                    name = session_name(session.id, revision)
                    names = self._names.setdefault(session.id, [])
                    if name not in names:
                        names.append(name)
                    yield name, entry

    def _entry(self, session: Session, revision: int, owned: ExitStack) -> list[int] | None:
        """Make a session's descriptors with a new record; None if it cannot be stored."""
        if session.link is None and session.id in self._awaited:
            return self._as_left(session, *self._awaited[session.id], owned)
        jail, link = session.jail, session.link
        if jail is None or link is None or jail.pid <= 0 or session.tenancy is None:
            return None
        if "sequence" not in link.capabilities:
            return None  # nobody could take it over
        copy, listener = jail.project_copy, session.network.listener_descriptor
        kind = self._kind(session, session.policy)
        confinement = session.confinement
        group = confinement.group if confinement is not None else None
        shown = copy.shown if copy is not None else None
        record = SessionRecord(
            id=session.id,
            revision=revision,
            spec=kind.name,
            tenancy=session.tenancy,
            token=link.token.hex(),
            capabilities=tuple(sorted(link.capabilities)),
            pid=jail.pid,
            starter=jail.starter_pid,
            channel=records.identity(jail.socket.fileno()),
            listener=None if listener is None else records.identity(listener),
            changed=None if copy is None else records.identity(copy.changed),
            shown=None if shown is None else records.identity(shown),
            network=session.network.rule,
            group=group.directory if group is not None else None,
            created_s=session.created_s - trio.current_time() + time.monotonic(),
            boot=boot_id(),
            executions=session.runs.count,
            taken_up=session.taken_up,
            applied=dict(copy.applied) if copy is not None else {},
            template=jail.template_pid,
            outdated=jail.outdated,
        )
        file = _file(records.encode(record), owned)
        others = [listener, shown, None if copy is None else copy.changed]
        given = [file, jail.socket.fileno(), jail.pidfd]
        return given + [each for each in others if each is not None]

    def _as_left(
        self, session: Session, record: SessionRecord, earlier: Earlier, owned: ExitStack
    ) -> list[int] | None:
        """Store a session that has not answered as it was stored before: this supervisor may be
        killed, too, or its store may be lost.
        """
        jail, copy = earlier.jail, earlier.jail.project_copy
        if jail.socket.fileno() < 0:
            return None
        kind = self._kind(session, jail.policy)
        file = _file(records.encode(replace(record, spec=kind.name)), owned)
        listener, shown = session.network.listener_descriptor, copy.shown if copy else None
        others = [listener, shown, None if copy is None else copy.changed]
        return [
            file,
            jail.socket.fileno(),
            jail.pidfd,
            *(each for each in others if each is not None),
        ]

    def _kind(self, session: Session, policy: Policy | None) -> _Kind:
        key = session.spec, id(policy)
        kind = self._kinds.get(key)
        if kind is None:
            data = records.encode(SpecRecord(spec=session.spec, policy=policy))
            kind = self._kinds[key] = _Kind(records.spec_name(data), data, policy)
            if kind.name not in self._known:
                self._known.add(kind.name)
                with ExitStack() as owned:
                    self._store.keep(kind.name, [_file(data, owned)])
        if session.id not in self._kind_of:
            self._kind_of[session.id] = key
            kind.sessions += 1
            self._kinds.move_to_end(key)
        return kind

    def _drop_unused(self) -> None:
        if len(self._kinds) <= SPECS_KEPT:
            return
        unused = [key for key, kind in self._kinds.items() if not kind.sessions]
        for key in unused[: max(0, len(unused) - SPECS_KEPT)]:
            name = self._kinds.pop(key).name
            if name in self._pinned:
                continue
            if all(kind.name != name for kind in self._kinds.values()):
                self._known.discard(name)
                self._store.drop(name)


def session_name(session_id: str, revision: int) -> str:
    """Name of a session's descriptors in the store."""
    return f"session-{session_id}.{revision}"


def session_id_of(name: str) -> str:
    """Id of the session with that name in the store."""
    return name.partition("-")[2].partition(".")[0]


def _file(data: bytes, owned: ExitStack) -> int:
    descriptor = memory_file(data)
    owned.callback(os.close, descriptor)
    return descriptor


@cache
def boot_id() -> str:
    """Id of this boot of the machine; empty if the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
