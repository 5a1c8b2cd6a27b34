"""Records of open ports and relays in the descriptor store, for the next supervisor."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nsm.dataclass import dataclass, field
from nsmd.fdstore import records
from nsmd.fdstore.left_alone import LeftAlone
from nsmd.fdstore.records import RecordError, UnreadableRecordError
from nsmd.fdstore.store import Kept
from nsmd.host.processes import has_ended, pid_of

log = logging.getLogger(__name__)

PORT, RELAY = "port-", "relay-"
"""Beginnings of the names in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRecord:
    """One open port.

    Attributes:
        session: id of the session.
        number: port in the session.
        slot: its place among the counts of the relay.
        address: where people connect, as `nsmd.ports.addresses.shown`.
        path: path of its Unix socket, else empty; `device` and `inode` are the file's.
        client: program that asked for it.
    """

    id: str
    session: str
    number: int
    slot: int
    address: str
    path: str = ""
    device: int = 0
    inode: int = 0
    client: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRecord:
    """One relay.

    Attributes:
        session: id of the session.
        control, counts: identities (`nsmd.fdstore.records.identity`) of its descriptors.
    """

    id: str
    session: str
    control: str
    counts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftRelay:
    """A live relay that an earlier supervisor has left. It owns its descriptors."""

    record: RelayRecord
    pidfd: int
    control: int
    counts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftPort:
    """An open port that an earlier supervisor has left. It owns its listening socket."""

    record: PortRecord
    listener: int


@dataclass(slots=True)
class LeftPorts:
    """Ports and relays that an earlier supervisor has left.

    Attributes:
        over: names in the store with nothing useful.
    """

    ports: list[LeftPort] = field(default_factory=list[LeftPort])
    relays: list[LeftRelay] = field(default_factory=list[LeftRelay])
    over: list[str] = field(default_factory=list[str])


def sort_out(kept: Kept, left_alone: LeftAlone) -> LeftPorts:
    """Sort the ports and relays that an earlier supervisor has left.

    Args:
        kept: descriptors by name; this takes those whose names begin with `PORT` or `RELAY`.
        left_alone: gets what cannot be read, and what belongs to sessions that cannot.
    """
    left = LeftPorts()
    for name, descriptors in kept.items():
        if name.startswith((PORT, RELAY)):
            try:
                kind: type[PortRecord | RelayRecord]
                kind = PortRecord if name.startswith(PORT) else RelayRecord
                record = records.decode(kind, records.find(descriptors))
                if left_alone.has(record.session):
                    left_alone.add(name, descriptors, owner=record.session)
                else:
                    _take(name, record, list(descriptors), left)
            except UnreadableRecordError as error:
                left_alone.add(name, descriptors, str(error))
            except RecordError as error:
                log.warning("the kept entry %s cannot be used: %s", name, error)
                records.close_all(descriptors)
                left.over.append(name)
    return left


def _take(
    name: str, record: PortRecord | RelayRecord, descriptors: Sequence[int], left: LeftPorts
) -> None:
    """Take one entry.

    Raises:
        RecordError: it cannot be used.
    """
    by_identity = {records.identity(each): each for each in descriptors}
    if isinstance(record, PortRecord):
        sealed = [each for each in descriptors if records.read_file(each) is not None]
        others = [each for each in descriptors if each not in sealed]
        if len(others) != 1:
            raise RecordError("its socket is not there")
        left.ports.append(LeftPort(record=record, listener=others[0]))
        records.close_all(sealed)
        return
    pidfd = next((each for each in descriptors if pid_of(each) is not None), None)
    control, counts = by_identity.get(record.control), by_identity.get(record.counts)
    if pidfd is None or control is None or counts is None:
        raise RecordError("not all of its descriptors are there")
    if has_ended(pidfd):
        records.close_all(descriptors)
        left.over.append(name)
        return
    left.relays.append(LeftRelay(record=record, pidfd=pidfd, control=control, counts=counts))
    records.close_all(each for each in descriptors if each not in (pidfd, control, counts))
