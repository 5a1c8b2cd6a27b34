"""Sessions in the descriptor store: kept there, and read back by the next supervisor.

What an earlier supervisor has left is read, checked and sorted. The records say what should exist,
the descriptors what does. A session is taken over if both agree and its jail lives. If its jail is
gone, its end is reported. What another version of nsm has written and this one cannot read is left
alone. A session that nobody could ever use is ended.
"""

from __future__ import annotations

import logging
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import trio

from nsm.dataclass import dataclass, field, replace
from nsm.wire.errors import UnreadableSessionError
from nsmd.fdstore import records
from nsmd.fdstore.records import (
    KeptEntries,
    RecordError,
    SessionRecord,
    SpecRecord,
    UnreadableRecordError,
    boot_id,
)
from nsmd.fdstore.store import DescriptorStore
from nsmd.host.processes import has_ended, pid_of
from nsmd.jail import Jail, ProjectCopy
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec
from nsmd.sessions.agent_session import Earlier
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

SPEC = "spec-"
ONE_SHOTS = f"{SPEC}one-shots"
"""Entry of a supervisor that runs one-shots without keeping them. Versions that do not know it drop
it, as a specification that nobody uses.
"""

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
        # A new name each time: a store adds to its content, and the earlier record would stay as
        # long as the session.
        name = session_name(session.id, revision)
        try:
            if (entry := self._entry(session, revision)) is None:
                return
            record, given = entry
            if not records.keep(self._store, records.kept_entry(name, record, *given)):
                return
        except (OSError, TypeError) as error:
            log.warning("session %s would not outlive the supervisor: %s", session.id, error)
            return
        for earlier in self._names.get(session.id, ()):
            self._store.drop(earlier)
        self._revisions[session.id] = revision
        self._names[session.id] = [name]
        self._awaited.pop(session.id, None)

    def note_one_shots(self) -> bool:
        """Note, until `forget_one_shots`, that one-shots run which are not stored; return whether
        the next supervisor will know that.
        """
        if ONE_SHOTS in self._known or self._store.kind == "none":
            return True
        try:
            noted = records.keep(self._store, records.kept_entry(ONE_SHOTS, b""))
        except OSError:
            return False
        if noted:
            self._known.add(ONE_SHOTS)
        return noted

    def forget_one_shots(self) -> None:
        """Note that all one-shots that run are stored."""
        if ONE_SHOTS in self._known - self._pinned:
            self._known.remove(ONE_SHOTS)
            self._store.drop(ONE_SHOTS)

    def begin_after(
        self, session: Session, names: Sequence[str], record: SessionRecord, earlier: Earlier
    ) -> None:
        """Note a session that was taken over."""
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
        if ONE_SHOTS in self._known:
            yield from records.kept_entry(ONE_SHOTS, b"")
        for kind in list(self._kinds.values()):
            yield from records.kept_entry(kind.name, kind.data)
        for session in sessions:
            revision = self._revisions.setdefault(session.id, 1)
            name = session_name(session.id, revision)
            try:
                entry = self._entry(session, revision)
            except OSError:  # its descriptors are being closed
                continue
            if entry is not None:
                names = self._names.setdefault(session.id, [])
                if name not in names:
                    names.append(name)
                record, given = entry
                yield from records.kept_entry(name, record, *given)

    def _entry(self, session: Session, revision: int) -> tuple[SessionRecord, Sequence[int]] | None:
        """Return a session's record and its descriptors; None if it cannot be stored.

        One that has not answered is stored as it was stored before: this supervisor may be killed,
        too, or its store may be lost.
        """
        if session.link is None and session.id in self._awaited:
            record, earlier = self._awaited[session.id]
            jail = earlier.jail
            if jail.socket.fileno() < 0:
                return None
            record = replace(record, spec=self._kind(session, jail.policy).name)
        else:
            made = self._record(session, revision)
            if made is None:
                return None
            record, jail = made
        copy = jail.project_copy
        others = [session.network.listener_descriptor]
        others += [] if copy is None else [copy.shown, copy.changed]
        given = [jail.socket.fileno(), jail.pidfd, *(each for each in others if each is not None)]
        return record, given

    def _record(self, session: Session, revision: int) -> tuple[SessionRecord, Jail] | None:
        jail, link = session.jail, session.link
        if jail is None or link is None or jail.pid <= 0 or session.tenancy is None:
            return None
        if "sequence" not in link.capabilities:
            return None  # nobody could take it over
        copy, listener = jail.project_copy, session.network.listener_descriptor
        confinement = session.confinement
        group = confinement.group if confinement is not None else None
        shown = copy.shown if copy is not None else None
        record = SessionRecord(
            id=session.id,
            revision=revision,
            spec=self._kind(session, session.policy).name,
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
        return record, jail

    def _kind(self, session: Session, policy: Policy | None) -> _Kind:
        key = session.spec, id(policy)
        kind = self._kinds.get(key)
        if kind is None:
            data = records.encode(SpecRecord(spec=session.spec, policy=policy))
            kind = self._kinds[key] = _Kind(records.spec_name(data), data, policy)
            if kind.name not in self._known:
                self._known.add(kind.name)
                records.keep(self._store, records.kept_entry(kind.name, data))
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


SESSION = "session-"


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


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """A live session, with its record and its names in the store. If there are two names, the
    supervisor was about to drop one.
    """

    names: tuple[str, ...]
    record: SessionRecord
    spec: JailSpec
    earlier: Earlier


@dataclass(slots=True, kw_only=True)
class LoadedState:
    """Sessions that an earlier supervisor has left.

    Attributes:
        gone: records of sessions that have ended meanwhile.
        unread: live sessions that cannot be read, which stay in the store.
        lost_one_shots: one-shots may have ended with the supervisor, which did not keep them.
    """

    found: list[LoadedSession] = field(default_factory=list[LoadedSession])
    gone: list[SessionRecord] = field(default_factory=list[SessionRecord])
    specs: list[str] = field(default_factory=list[str])
    unread: UnreadSessions = field(default_factory=UnreadSessions)
    lost_one_shots: bool = False


def load_sessions(entries: KeptEntries) -> LoadedState:
    """Take over the sessions that live and can be used.

    A session that nobody could use or end later is ended, and its descriptors are closed.
    """
    state = LoadedState(
        unread=UnreadSessions(entries.drop), lost_one_shots=ONE_SHOTS in entries.kept
    )
    specs = {name: _Spec(each) for name, each in entries.kept.items() if name.startswith(SPEC)}
    names: dict[str, list[str]] = {}
    for name in entries.kept:
        names.setdefault(session_id_of(name), []).append(name)

    def load(record: SessionRecord, descriptors: list[int]) -> Collection[int]:
        if not _lives(descriptors):
            raise RecordError("its jail has ended")
        spec = specs.get(record.spec)
        if spec is None:
            raise UnreadableRecordError(f"what it runs in ({record.spec}) is not known")
        if spec.record is None:
            raise UnreadableRecordError(spec.why)
        earlier, used = _earlier(record, spec.record.policy, descriptors)
        its_names = tuple(names.get(record.id, ()))
        state.found.append(LoadedSession(its_names, record, spec.record.spec, earlier))
        return used

    def take_over(record: SessionRecord, descriptors: list[int]) -> Collection[int]:
        try:
            return load(record, descriptors)
        except RecordError as error:
            if not isinstance(error, UnreadableRecordError):
                state.gone.append(record)
            raise

    def unusable(name: str, descriptors: Sequence[int], error: RecordError) -> str | None:
        if isinstance(error, UnreadableRecordError) and _lives(descriptors):
            session = _unread(session_id_of(name), descriptors, specs, str(error))
            state.unread.add(session)
            return session.id
        for descriptor in descriptors:
            if pid_of(descriptor) is not None:
                with suppress(OSError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return None

    entries.take_over(SESSION, SessionRecord, take_over, unusable=unusable)
    used = {found.record.spec for found in state.found}
    for name, spec in specs.items():
        if state.unread:  # it may belong to one of those
            entries.leave(name, spec.descriptors)
        else:
            records.close_all(spec.descriptors)
        if name in used or state.unread:
            state.specs.append(name)
        else:
            entries.store.drop(name)
    return state


class _Spec:
    """A kept specification of sessions.

    Attributes:
        record: None if it cannot be read.
    """

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.descriptors = descriptors
        self.record: SpecRecord | None = None
        self.env, self.why = "", ""
        try:
            self.record = records.newest(SpecRecord, descriptors)
        except RecordError as error:
            self.why = str(error)
        match records.outline_of(descriptors):
            case {"spec": {"environment": {"name": str(name)}}}:
                self.env = name
            case _:
                pass


def _lives(descriptors: Iterable[int]) -> bool:
    return any(pid_of(each) is not None and not has_ended(each) for each in descriptors)


def _unread(
    id_: str, descriptors: Sequence[int], specs: Mapping[str, _Spec], why: str
) -> UnreadSession:
    """Make a live session that cannot be read of what its record tells."""
    plain = records.outline_of(descriptors)
    spec = specs.get(str(plain.get("spec")))
    pidfd, pid = next((each, pid) for each in descriptors if (pid := pid_of(each)) is not None)
    return UnreadSession.of(id_, pidfd, pid, plain, "" if spec is None else spec.env, why)


def _earlier(
    record: SessionRecord, policy: Policy | None, descriptors: Sequence[int]
) -> tuple[Earlier, Collection[int]]:
    """Make a session of its record and descriptors; returns it with those that it owns from now on.

    Raises:
        RecordError: not everything that it needs is there.
    """
    changes = () if record.changed is None else (record.changed,)
    pidfd, channel, *changed = records.matched(descriptors, record.channel, *changes)
    known = records.by_identity(descriptors)
    listener, shown = known.get(record.listener or ""), known.get(record.shown or "")
    copy = ProjectCopy(changed[0], shown) if changed else None
    if copy is not None:
        copy.applied.update(record.applied)
    try:
        token = bytes.fromhex(record.token)
    except ValueError as error:
        raise RecordError("its token is none") from error
    connection = socket.socket(fileno=channel)
    connection.setblocking(False)
    jail = Jail(
        connection,
        pidfd,
        pid_of(pidfd) or record.pid,
        starter=record.starter,
        policy=policy,
        project_copy=copy,
    )
    jail.template_pid, jail.outdated = record.template, record.outdated
    age_s = max(0.0, time.monotonic() - record.created_s) if record.boot == boot_id() else 0.0
    earlier = Earlier(
        jail=jail,
        token=token,
        capabilities=frozenset(record.capabilities),
        group=record.group,
        listener=listener,
        network=record.network,
        created_s=trio.current_time() - age_s,
        executions=record.executions,
        taken_up=record.taken_up + 1,
    )
    owned = (pidfd, channel, listener, shown if copy is not None else None, *changed)
    return earlier, [each for each in owned if each is not None]
