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
from dataclasses import dataclass
from functools import cache

import trio

from nsmd.policy import Policy
from nsmd.session import Session
from nsmd.survival import records
from nsmd.survival.records import SessionRecord, SpecRecord
from nsmd.survival.store import DescriptorStore
from nsmd.values import JailSpec

log = logging.getLogger(__name__)

SPECS_KEPT = 64
"""Descriptions of kinds that no session has any more, until the oldest is dropped: one-shots come
and go."""


@dataclass(slots=True)
class _Kind:
    """What sessions of one kind share, as it is kept."""

    name: str
    data: bytes
    policy: Policy | None
    sessions: int = 0


class SessionBook:
    """See the module.

    Args:
        store: keeps what it is given.
        known: names of descriptions that it has already.
    """

    def __init__(self, store: DescriptorStore, known: Sequence[str] = ()) -> None:
        self._store = store
        self._known = set(known)
        self._revisions: dict[str, int] = {}
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
        try:
            with ExitStack() as owned:
                if (entry := self._entry(session, owned)) is not None:
                    self._store.keep(session_name(session.id), entry)
        except (OSError, TypeError) as error:
            log.warning("session %s would not outlive the supervisor: %s", session.id, error)

    def begin_after(self, session: Session, revision: int) -> None:
        """A session was taken up whose records have revisions up to that one."""
        self._revisions[session.id] = revision

    def drop(self, session: Session) -> None:
        """A session is over."""
        if self._revisions.pop(session.id, None) is None:
            return
        self._store.drop(session_name(session.id))
        key = self._kind_of.pop(session.id, None)
        kind = self._kinds.get(key) if key is not None else None
        if kind is not None:
            kind.sessions -= 1
            self._drop_unused()

    def everything(self, sessions: Sequence[Session]) -> Iterator[tuple[str, Sequence[int]]]:
        """All that is to be kept, for a store that has lost it. Descriptors are valid until the
        next one is asked for."""
        for kind in self._kinds.values():
            with ExitStack() as owned:
                yield kind.name, [_file(kind.data, owned)]
        for session in sessions:
            with ExitStack() as owned:
                if (entry := self._entry(session, owned)) is not None:
                    yield session_name(session.id), entry

    def _entry(self, session: Session, owned: ExitStack) -> list[int] | None:
        """A session's descriptors, with a new record of it; None where it cannot be kept."""
        jail, link = session.jail, session.link
        if jail is None or link is None or jail.pid <= 0 or session.tenancy is None:
            return None
        if "sequence" not in link.capabilities:
            return None  # nobody could take it up
        copy, listener = jail.project_copy, session.network.listener_descriptor
        revision = self._revisions.get(session.id, 0) + 1
        kind = self._kind(session)
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
            executions=session.executions,
            taken_up=session.taken_up,
            applied=dict(copy.applied) if copy is not None else {},
        )
        file = _file(records.encode(record), owned)
        self._revisions[session.id] = revision
        others = [listener, shown, None if copy is None else copy.changed]
        given = [file, jail.socket.fileno(), jail.pidfd]
        return given + [each for each in others if each is not None]

    def _kind(self, session: Session) -> _Kind:
        key = session.spec, id(session.policy)
        kind = self._kinds.get(key)
        if kind is None:
            data = records.encode(SpecRecord(spec=session.spec, policy=session.policy))
            kind = self._kinds[key] = _Kind(records.spec_name(data), data, session.policy)
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


def session_name(session_id: str) -> str:
    """Under which a session's descriptors are kept."""
    return f"session-{session_id}"


def _file(data: bytes, owned: ExitStack) -> int:
    descriptor = records.memory_file(data)
    owned.callback(os.close, descriptor)
    return descriptor


@cache
def boot_id() -> str:
    """Of this boot of the machine; empty where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
