"""Sessions are handed to whoever keeps their descriptors, so that they outlive the supervisor.

Each time a session becomes somebody's, changes what a later supervisor would have to know, or is
over: some 50 us. What runs in it is not written down: its agent remembers that.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache

import trio

from nsmd.fdstore import records
from nsmd.fdstore.records import SessionRecord, SpecRecord
from nsmd.fdstore.store import DescriptorStore
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec
from nsmd.sessions.agent_session import Earlier
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

SPECS_KEPT = 64
"""Descriptions of kinds that no session has any more, until the oldest is dropped: one-shots come
and go."""


@dataclass(slots=True)
class _Kind:
    """Facts that sessions of one kind share, as they are kept."""

    name: str
    data: bytes
    policy: Policy | None
    sessions: int = 0


class SessionStore:
    """Records of sessions in the descriptor store, so that they outlive the supervisor.

    Args:
        store: keeps what it is given.
        known: names of descriptions that it has already.
    """

    def __init__(self, store: DescriptorStore, known: Sequence[str] = ()) -> None:
        self._store = store
        self._known = set(known)
        self._revisions: dict[str, int] = {}
        self._names: dict[str, list[str]] = {}
        self._awaited: dict[str, tuple[SessionRecord, Earlier]] = {}
        self._kind_of: dict[str, tuple[JailSpec, int]] = {}
        # By specification and identity of the policy, which `_Kind` holds on to.
        self._kinds: OrderedDict[tuple[JailSpec, int], _Kind] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SessionBook of {len(self._revisions)} sessions>"

    def __contains__(self, session: Session) -> bool:
        return session.id in self._revisions

    def keep(self, session: Session) -> None:
        """A session is somebody's, and can take work; or what is known of it is another now.

        It may be repeated. What cannot be kept is logged: the session is there all the same.
        """
        if self._store.kind == "none":
            return
        revision = self._revisions.get(session.id, 0) + 1
        try:
            with ExitStack() as owned:
                if (entry := self._entry(session, revision, owned)) is None:
                    return
                # Another name each time: a store adds to what it has, and the earlier record would
                # stay for as long as the session does.
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
        """A session was taken up.

        Args:
            names: under which it is kept.
            record, earlier: what is to be kept of it until it answers.
        """
        self._revisions[session.id] = record.revision
        self._names[session.id] = list(names)
        self._awaited[session.id] = record, earlier

    def drop(self, session: Session) -> None:
        """A session is over."""
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
        """All that is to be kept, for a store that has lost it. Descriptors are valid until the
        next one is asked for."""
        for kind in list(self._kinds.values()):
            with ExitStack() as owned:
                try:
                    file: Sequence[int] = [_file(kind.data, owned)]
                except OSError:  # there is no descriptor left for the moment
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
        """A session's descriptors, with a new record of it; None where it cannot be kept."""
        if session.link is None and session.id in self._awaited:
            return self._as_left(session, *self._awaited[session.id], owned)
        jail, link = session.jail, session.link
        if jail is None or link is None or jail.pid <= 0 or session.tenancy is None:
            return None
        if "sequence" not in link.capabilities:
            return None  # nobody could take it up
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
        """Keep an unanswered session as it was kept before: this supervisor may be killed too, or
        its store be lost."""
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
        unused = [key for key, kind in self._kinds.items() if not kind.sessions]
        for key in unused[: max(0, len(unused) - SPECS_KEPT)]:
            name = self._kinds.pop(key).name
            if all(kind.name != name for kind in self._kinds.values()):
                self._known.discard(name)
                self._store.drop(name)


def session_name(session_id: str, revision: int) -> str:
    """Under which a session's descriptors are kept."""
    return f"session-{session_id}.{revision}"


def session_id_of(name: str) -> str:
    """The session whose descriptors are kept under a name."""
    return name.partition("-")[2].partition(".")[0]


def _file(data: bytes, owned: ExitStack) -> int:
    descriptor = records.memory_file(data)
    owned.callback(os.close, descriptor)
    return descriptor


@cache
def boot_id() -> str:
    """Id of this boot of the machine; empty where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
