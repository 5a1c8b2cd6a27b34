"""Records that an earlier supervisor has left: read, checked and sorted.

The records say what should exist, the descriptors what does. A session is taken over if both agree
and its jail lives. If its jail is gone, its end is reported. A session with an unreadable record is
ended, since nobody could ever use it. What a newer nsm has written is left alone.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import trio

from nsm.dataclass import dataclass, field
from nsmd.fdstore import records
from nsmd.fdstore.records import NewerRecordError, RecordError, SessionRecord, SpecRecord
from nsmd.fdstore.store import Kept
from nsmd.host.processes import has_ended, pid_of
from nsmd.jail import ProjectCopy
from nsmd.jail.adopted import AdoptedJail
from nsmd.model.values import JailSpec
from nsmd.restart.session_store import boot_id, session_id_of
from nsmd.sessions.agent_session import Earlier

log = logging.getLogger(__name__)

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
        newer: number of sessions of a newer nsm, which stay in the store.
    """

    found: list[LoadedSession] = field(default_factory=list[LoadedSession])
    gone: list[SessionRecord] = field(default_factory=list[SessionRecord])
    over: list[str] = field(default_factory=list[str])
    specs: list[str] = field(default_factory=list[str])
    newer: int = 0


def sort_out(kept: Kept) -> LoadedState:
    """Read and check the records. Descriptors of sessions that are not taken over are closed.

    Args:
        kept: descriptors by name; this takes those whose names begin with `SESSION` or `SPEC`.
    """
    loaded_state = LoadedState()
    specs: dict[str, SpecRecord] = {}
    for name, descriptors in kept.items():
        if name.startswith(SPEC):
            _read_spec(name, descriptors, specs, loaded_state)
    entries: dict[str, _Entry] = {}
    for name, descriptors in kept.items():
        if name.startswith(SESSION):
            entries.setdefault(session_id_of(name), _Entry()).add(name, descriptors)
    for entry in entries.values():
        entry.sort_out(specs, loaded_state)
    if not loaded_state.newer:  # else it may belong to one of those
        used = {found.record.spec for found in loaded_state.found}
        loaded_state.over += [name for name in loaded_state.specs if name not in used]
        loaded_state.specs = [name for name in loaded_state.specs if name in used]
    return loaded_state


def _read_spec(
    name: str, descriptors: Sequence[int], specs: dict[str, SpecRecord], loaded_state: LoadedState
) -> None:
    for descriptor in descriptors:
        data = records.read_file(descriptor)
        os.close(descriptor)
        if data is None or name in specs:
            continue
        try:
            specs[name] = records.decode(SpecRecord, data)
        except NewerRecordError:
            return
        except RecordError as error:
            log.warning("what was kept as %s cannot be read: %s", name, error)
    if name in specs:
        loaded_state.specs.append(name)
    else:
        loaded_state.over.append(name)


class _Entry:
    """Descriptors kept for one session, in any order."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._left: list[int] = []
        self._problem = "there is no record of it"

    def add(self, name: str, descriptors: Sequence[int]) -> None:
        """Add descriptors of the same session."""
        self._names.append(name)
        self._left += descriptors

    def sort_out(self, specs: Mapping[str, SpecRecord], loaded_state: LoadedState) -> None:
        """Decide whether to take the session over, report its end, or end it."""
        try:
            record = self._record()
        except NewerRecordError as error:
            log.warning("%s is left alone: %s", self._names[0], error)
            loaded_state.newer += 1
            self._close()
            return
        spec = specs.get(record.spec) if record is not None else None
        if record is not None and spec is None:
            self._problem = f"what it runs in ({record.spec}) is not known"
        found = self._found(record, spec) if record is not None and spec is not None else None
        if found is not None:
            loaded_state.found.append(found)
            return
        loaded_state.over += self._names
        if record is not None:
            loaded_state.gone.append(record)
        self._end()

    def _record(self) -> SessionRecord | None:
        """Return the valid record if there are several.

        Raises:
            NewerRecordError: a newer nsm has written it.
        """
        best: SessionRecord | None = None
        for descriptor in list(self._left):
            data = records.read_file(descriptor)
            if data is None:
                continue
            self._left.remove(descriptor)
            os.close(descriptor)
            try:
                record = records.decode(SessionRecord, data)
            except NewerRecordError:
                raise
            except RecordError as error:
                self._problem = str(error)
                continue
            if best is None or record.revision > best.revision:
                best = record
        return best

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
        jail = AdoptedJail(
            connection,
            pidfd,
            pid or record.pid,
            starter_pid=record.starter,
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
