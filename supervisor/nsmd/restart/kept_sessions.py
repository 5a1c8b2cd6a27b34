"""Sessions in the descriptor store: kept there, and read back by the next supervisor.

What an earlier supervisor has left is read, checked and sorted. The records say what should exist,
the descriptors what does. A session is taken over if both agree and its jail lives. If its jail is
gone, its end is reported. What another version of nsm has written and this one cannot read is left
alone. A session that nobody could ever use is ended.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress

import trio

from nsm.dataclass import dataclass, field, replace
from nsmd.fdstore import records
from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.left_alone import LeftAlone
from nsmd.fdstore.records import (
    NewerRecordError,
    SessionRecord,
    SpecRecord,
    UnreadableRecordError,
    boot_id,
)
from nsmd.fdstore.store import DescriptorStore, Kept
from nsmd.host.processes import has_ended, pid_of
from nsmd.jail import Jail, ProjectCopy
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec
from nsmd.restart.earlier_sessions import UnreadSession, UnreadSessions
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


SESSION, SPEC = "session-", "spec-"


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """A live session, with its record and descriptors.

    Attributes:
        names: names in the store. If there are two, the supervisor was about to drop one.
    """

    names: tuple[str, ...]
    record: SessionRecord
    spec: JailSpec
    earlier: Earlier


@dataclass(slots=True, kw_only=True)
class LoadedState:
    """Sessions and descriptors that an earlier supervisor has left.

    Attributes:
        found: live sessions.
        gone: records of sessions that have ended meanwhile.
        over: names with nothing useful, to be dropped from the store.
        specs: names of kept specifications.
        unread: live sessions that cannot be read, which stay in the store.
    """

    found: list[LoadedSession] = field(default_factory=list[LoadedSession])
    gone: list[SessionRecord] = field(default_factory=list[SessionRecord])
    over: list[str] = field(default_factory=list[str])
    specs: list[str] = field(default_factory=list[str])
    unread: UnreadSessions = field(default_factory=UnreadSessions)


def sort_out(kept: Kept, left_alone: LeftAlone) -> LoadedState:
    """Read and check the records. Descriptors of sessions that are not taken over are closed.

    Args:
        kept: descriptors by name; this takes those whose names begin with `SESSION` or `SPEC`.
        left_alone: gets what cannot be read.
    """
    loaded_state = LoadedState(unread=UnreadSessions(left_alone.drop))
    specs = {name: _Spec(fds) for name, fds in kept.items() if name.startswith(SPEC)}
    entries: dict[str, _Entry] = {}
    for name, descriptors in kept.items():
        if name.startswith(SESSION):
            entries.setdefault(session_id_of(name), _Entry()).add(name, descriptors)
    for entry in entries.values():
        entry.sort_out(specs, loaded_state, left_alone)
    used = {found.record.spec for found in loaded_state.found}
    for name, spec in specs.items():
        if loaded_state.unread:  # it may belong to one of those
            left_alone.add(name, spec.descriptors)
        else:
            records.close_all(spec.descriptors)
        known = name in used or bool(loaded_state.unread)
        (loaded_state.specs if known else loaded_state.over).append(name)
    return loaded_state


class _Spec:
    """A kept specification of sessions.

    Attributes:
        record: None if it cannot be read.
        env: name of its environment, as far as its record tells.
        why: why it cannot be read.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.descriptors = descriptors
        self.record: SpecRecord | None = None
        self.env, self.why = "", "there is no record of it"
        for data in filter(None, map(records.read_file, descriptors)):
            try:
                self.record = self.record or records.decode(SpecRecord, data)
            except UnreadableRecordError as error:
                self.why = str(error)
            match records.outline(data):
                case {"spec": {"environment": {"name": str(name)}}}:
                    self.env = name
                case _:
                    pass


class _Entry:
    """Descriptors kept for one session, in any order."""

    def __init__(self) -> None:
        self._kept: dict[str, Sequence[int]] = {}
        self._left: list[int] = []
        self._problem = "there is no record of it"
        self._unreadable: tuple[bytes, str] | None = None  # a record, and why it is

    @property
    def _names(self) -> list[str]:
        return list(self._kept)

    def add(self, name: str, descriptors: Sequence[int]) -> None:
        """Add descriptors of the same session."""
        self._kept[name] = descriptors
        self._left += descriptors

    def sort_out(
        self, specs: Mapping[str, _Spec], loaded_state: LoadedState, left_alone: LeftAlone
    ) -> None:
        """Decide whether to take the session over, report its end, leave it alone, or end it."""
        record = self._record()
        spec = specs.get(record.spec) if record is not None else None
        if record is not None and (spec is None or spec.record is None):
            why = f"what it runs in ({record.spec}) is not known" if spec is None else spec.why
            self._unreadable = records.encode(record), why
        if self._unreadable is not None and (unread := self._unread(*self._unreadable, specs)):
            loaded_state.unread.add(unread)
            for name, descriptors in self._kept.items():
                left_alone.add(name, descriptors, unread.why, owner=unread.id)
            return
        self._close_records()
        kept = None if spec is None else spec.record
        found = self._found(record, kept) if record is not None and kept is not None else None
        if found is not None:
            loaded_state.found.append(found)
            return
        loaded_state.over += self._names
        if record is not None:
            loaded_state.gone.append(record)
        self._end()

    def _record(self) -> SessionRecord | None:
        """Return the valid record if there are several; None if there is none, or another version
        of nsm has written the last one.
        """
        best: SessionRecord | None = None
        newer = False
        for data in filter(None, map(records.read_file, self._left)):
            try:
                record = records.decode(SessionRecord, data)
            except UnreadableRecordError as error:
                newer = newer or isinstance(error, NewerRecordError)
                if self._unreadable is None or records.outline(data):
                    self._unreadable = data, str(error)
                continue
            if best is None or record.revision > best.revision:
                best = record
        if best is not None and not newer:
            self._unreadable = None
        return None if newer else best

    def _unread(self, data: bytes, why: str, specs: Mapping[str, _Spec]) -> UnreadSession | None:
        """Return the session as one that cannot be read; None if it has ended."""
        for descriptor in self._left:
            pid = pid_of(descriptor)
            if pid is not None and not has_ended(descriptor):
                id_, plain = session_id_of(self._names[0]), records.outline(data)
                spec = specs.get(str(plain.get("spec")))
                env = "" if spec is None else spec.env
                return UnreadSession.of(id_, descriptor, pid, plain, env, why)
        self._problem = "its jail has ended"
        return None

    def _close_records(self) -> None:
        for descriptor in [each for each in self._left if records.read_file(each) is not None]:
            self._left.remove(descriptor)
            os.close(descriptor)

    def _found(self, record: SessionRecord, kept: SpecRecord) -> LoadedSession | None:
        """Return the session, if it lives and everything that it needs is there."""
        pids = ((each, pid_of(each)) for each in self._left)
        pidfd, pid = next((each for each in pids if each[1] is not None), (None, None))
        if pidfd is None or has_ended(pidfd):
            self._problem = "its jail has ended"
            return None
        known = _by_identity(each for each in self._left if each != pidfd)
        channel = known.get(record.channel)
        changed, shown = known.get(record.changed or ""), known.get(record.shown or "")
        if channel is None or (record.changed is not None and changed is None):
            self._problem = "not all of its descriptors were kept"
            return None
        listener = known.get(record.listener or "")
        copy = None if changed is None else ProjectCopy(changed, shown)
        if copy is not None:
            copy.applied.update(record.applied)
        try:
            token = bytes.fromhex(record.token)
        except ValueError:
            self._problem = "its token is none"
            return None
        connection = socket.socket(fileno=channel)
        connection.setblocking(False)
        used = {pidfd, channel, listener, changed, shown}
        self._left = [each for each in self._left if each not in used]
        self._close()
        jail = Jail(
            connection,
            pidfd,
            pid or record.pid,
            starter=record.starter,
            policy=kept.policy,
            project_copy=copy,
        )
        jail.template_pid, jail.outdated = record.template, record.outdated
        now_s = time.monotonic()
        age_s = max(0.0, now_s - record.created_s) if record.boot == boot_id() else 0.0
        return LoadedSession(
            tuple(self._names),
            record,
            kept.spec,
            Earlier(
                jail=jail,
                token=token,
                capabilities=frozenset(record.capabilities),
                group=record.group,
                listener=listener,
                network=record.network,
                created_s=trio.current_time() - age_s,
                executions=record.executions,
                taken_up=record.taken_up + 1,
            ),
        )

    def _end(self) -> None:
        """End the session: nobody could use what is left, or end it later."""
        log.warning("%s could not be taken over: %s", self._names[0], self._problem)
        for descriptor in self._left:
            if pid_of(descriptor) is not None:
                with suppress(OSError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        for descriptor in self._left:
            with suppress(OSError):
                os.close(descriptor)
        self._left = []


def _by_identity(descriptors: Iterable[int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for descriptor in descriptors:
        with suppress(OSError):
            found.setdefault(records.identity(descriptor), descriptor)
    return found
