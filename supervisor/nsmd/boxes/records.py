"""Records of boxes, and their kept descriptors."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nsm.dataclass import dataclass, field
from nsmd.fdstore import records
from nsmd.fdstore.left_alone import LeftAlone
from nsmd.fdstore.records import RecordError, UnreadableRecordError
from nsmd.fdstore.store import Kept
from nsmd.host.processes import has_ended, pid_of
from nsmd.jail.limits import BoxBounds
from nsmd.model.limits import ClientLimits

log = logging.getLogger(__name__)

BOX = "box-"
"""Beginning of the names in the store. The name with the box's id has its process, its sockets and
the record; the one that ends with `WAY` has the socket of its proxy, which comes later.
"""

WAY = ".way"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRecord:
    """One box.

    Attributes:
        pid: process id of its first process, for people.
        directory: the agent's working directory.
        profile: name of its profile.
        client_limits: limits of its clients.
        project_problem: why their sessions see no project; else empty.
        created_s: start, on the system's monotonic clock.
        boot: id of the boot in which that clock runs.
        control, proxy: identities (`nsmd.fdstore.records.identity`) of its listening sockets; None
            if it has none.
        bounds: limits of its processes; None if it asked for none.
        group: directory of its control group; None if it has none.
        secrets: names of its secrets.
    """

    id: str
    pid: int
    directory: str
    profile: str
    client_limits: ClientLimits
    project_problem: str = ""
    created_s: float
    boot: str
    control: str
    proxy: str | None = None
    bounds: BoxBounds | None = None
    group: str | None = None
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A live box that an earlier supervisor has left. It owns all descriptors.

    Attributes:
        listener: socket of its proxy; None without.
    """

    record: BoxRecord
    pidfd: int
    control: int
    proxy: int | None = None
    listener: int | None = None


@dataclass(slots=True)
class LeftBoxes:
    """Boxes that an earlier supervisor has left, sorted.

    Attributes:
        over: names in the store with nothing useful.
        unread: ids of boxes that cannot be read, which stay in the store.
    """

    found: list[Left] = field(default_factory=list[Left])
    over: list[str] = field(default_factory=list[str])
    unread: list[str] = field(default_factory=list[str])


def sort_out(kept: Kept, left_alone: LeftAlone) -> LeftBoxes:
    """Sort the boxes that an earlier supervisor has left.

    Args:
        kept: descriptors by name; this takes those whose names begin with `BOX`.
        left_alone: gets what cannot be read.
    """
    left = LeftBoxes()
    for name, descriptors in kept.items():
        if name.startswith(BOX) and not name.endswith(WAY):
            ways = kept.get(name + WAY, ())
            _sort_out(name, list(descriptors), list(ways), left, left_alone)
    alone = [
        name
        for name in kept
        if name.startswith(BOX) and name.endswith(WAY) and name.removesuffix(WAY) not in kept
    ]
    for name in alone:
        records.close_all(kept[name])
        left.over.append(name)
    return left


def _sort_out(
    name: str, descriptors: list[int], ways: list[int], left: LeftBoxes, left_alone: LeftAlone
) -> None:
    try:
        record = records.decode(BoxRecord, records.find(descriptors))
        found = _matched(record, descriptors, ways)
    except UnreadableRecordError as error:
        if any(pid_of(each) is not None and has_ended(each) for each in descriptors):
            left.over += [name, *([name + WAY] if ways else [])]
            records.close_all((*descriptors, *ways))
            return
        box = name.removeprefix(BOX)
        left.unread.append(box)
        left_alone.add(name, descriptors, str(error), owner=box)
        if ways:
            left_alone.add(name + WAY, ways, owner=box)
        return
    except RecordError as error:
        log.warning("the kept entry %s cannot be used: %s", name, error)
        left.over += [name, *([name + WAY] if ways else [])]
    else:
        if found is not None:
            left.found.append(found)
            taken = {found.pidfd, found.control, found.proxy, found.listener}
            records.close_all(each for each in (*descriptors, *ways) if each not in taken)
            return
        left.over += [name, *([name + WAY] if ways else [])]
    records.close_all((*descriptors, *ways))


def _matched(record: BoxRecord, descriptors: Sequence[int], ways: Sequence[int]) -> Left | None:
    """Find the descriptors of a record.

    Raises:
        RecordError: something is missing.
    """
    by_identity = {records.identity(each): each for each in descriptors}
    pidfd = next((each for each in descriptors if pid_of(each) is not None), None)
    control = by_identity.get(record.control)
    proxy = by_identity.get(record.proxy) if record.proxy is not None else None
    if pidfd is None or control is None or (proxy is None) != (record.proxy is None):
        raise RecordError("not all of its descriptors are there")
    if has_ended(pidfd):
        return None
    return Left(
        record=record,
        pidfd=pidfd,
        control=control,
        proxy=proxy,
        listener=ways[0] if ways else None,
    )
