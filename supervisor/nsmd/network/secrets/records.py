"""Records of granted secrets in the descriptor store, for the next supervisor. No values."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nsm.dataclass import dataclass, field
from nsmd.fdstore import records
from nsmd.fdstore.left_alone import LeftAlone
from nsmd.fdstore.records import RecordError, UnreadableRecordError
from nsmd.fdstore.store import Kept
from nsmd.host.processes import pid_of
from nsmd.model.secrets import SecretRule

log = logging.getLogger(__name__)

GRANT = "secrets-"
"""Beginning of the names in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRecord:
    """Secrets of one session or box.

    Attributes:
        owner: id of the session or box.
        certificate: that of its certificate authority, as PEM.
        stand_ins: stand-ins of the secrets, by name.
        requests: rules for the requests that its helper reads; so named for earlier records.
        revoked: names of those that are worth nothing any more.
        control, state: identities (`nsmd.fdstore.records.identity`) of its descriptors.
    """

    owner: str
    secrets: tuple[SecretRule, ...]
    certificate: str
    stand_ins: dict[str, str]
    requests: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    control: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftGrant:
    """Secrets that an earlier supervisor has granted. It owns its descriptors."""

    record: GrantRecord
    pidfd: int
    control: int
    state: int


@dataclass(slots=True)
class LeftGrants:
    """All of these.

    Attributes:
        over: names in the store with nothing useful.
    """

    found: list[LeftGrant] = field(default_factory=list[LeftGrant])
    over: list[str] = field(default_factory=list[str])


def sort_out(kept: Kept, left_alone: LeftAlone) -> LeftGrants:
    """Sort the grants that an earlier supervisor has left.

    Args:
        kept: descriptors by name; this takes those whose names begin with `GRANT`.
        left_alone: gets what cannot be read, and the grants of owners that cannot.
    """
    left = LeftGrants()
    for name, descriptors in kept.items():
        if not name.startswith(GRANT):
            continue
        try:
            grant = records.decode(GrantRecord, records.find(descriptors))
            if left_alone.has(grant.owner):
                left_alone.add(name, descriptors, owner=grant.owner)
            else:
                left.found.append(_take(grant, descriptors))
        except UnreadableRecordError as error:
            left_alone.add(name, descriptors, str(error))
        except RecordError as error:
            log.warning("the kept entry %s cannot be used: %s", name, error)
            records.close_all(descriptors)
            left.over.append(name)
    return left


def _take(grant: GrantRecord, descriptors: Sequence[int]) -> LeftGrant:
    """Take one entry.

    Raises:
        RecordError: it cannot be used.
    """
    by_identity = {records.identity(each): each for each in descriptors}
    pidfd = next((each for each in descriptors if pid_of(each) is not None), None)
    control, state = by_identity.get(grant.control), by_identity.get(grant.state)
    if pidfd is None or control is None or state is None:
        raise RecordError("not all of its descriptors are there")
    records.close_all(each for each in descriptors if each not in (pidfd, control, state))
    return LeftGrant(record=grant, pidfd=pidfd, control=control, state=state)
