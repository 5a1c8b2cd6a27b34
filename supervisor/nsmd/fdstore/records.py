"""Records of kept descriptors, in sealed memory files that are kept with them, and what becomes of
the entries that an earlier supervisor has left.

A record is `nsm-record VERSION SHA256\\n` and JSON. It is written once, whole, before it is stored,
so it cannot be torn; the checksum is there in case somebody passes us something else. After a
change in a session's life, a record with a higher revision is stored beside the old one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, TypeVar, cast

from nsm.dataclass import dataclass, field
from nsm.wire import decode as decoding
from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.store import KEPT_PREFIXES, DescriptorStore, Kept
from nsmd.host.processes import pid_of
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec, NetworkRule, Tenancy

log = logging.getLogger(__name__)

VERSION = 1
"""Version of the format; older programs do not understand a higher one. New fields alone do not
raise it.
"""

MAX_RECORD_BYTES = 16 * 1024 * 1024

_MAGIC = b"nsm-record "

R = TypeVar("R")


class RecordError(Exception):
    """A kept entry cannot be used; the message says why, for people."""


class UnreadableRecordError(RecordError):
    """This nsm cannot read the record; another version may, so its entry is left alone."""


class NewerRecordError(UnreadableRecordError):
    """A newer nsm has written it."""


def _readable_policy(plain: Any) -> Policy | None:
    """Read a policy; None if another version wrote it in a way that this one cannot read.

    It only describes the jail, which exists: its session works without.
    """
    try:
        return decoding.decode(Policy, plain)
    except (ValueError, RecursionError) as error:
        log.warning("the policy of a kept session cannot be read: %s", error)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecRecord:
    """Facts that sessions of one kind share.

    Attributes:
        policy: policy of their jails; None if it cannot be read.
    """

    spec: JailSpec
    policy: Annotated[Policy | None, decoding.Converted(Any, _readable_policy)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """One session that belongs to a client.

    Attributes:
        revision: number of the record; the highest of a session counts.
        spec: name of its `SpecRecord` in the store.
        token: secret for resuming at the agent; 32 hex digits.
        pid: host process id of the jail's PID 1, in the PID namespace of the writer.
        starter: process id of the program that made the jail, a child of the supervisor; 0 for
            none.
        channel, listener, changed, shown: identities (`identity`) of its descriptors; None if it
            has none.
        created_s: start, on the system's monotonic clock.
        boot: id of the boot in which that clock runs.
        taken_up: number of supervisors that have taken it over.
        applied: applied changes of its overlay, as in `ProjectCopy`.
        template, outdated: as `template_pid` and `outdated` of `Jail`.
    """

    id: str
    revision: int
    spec: str
    tenancy: Tenancy
    token: str
    capabilities: tuple[str, ...]
    pid: int
    starter: int = 0
    channel: str
    listener: str | None = None
    changed: str | None = None
    shown: str | None = None
    network: NetworkRule
    group: str | None = None
    created_s: float
    boot: str = ""
    executions: int = 0
    taken_up: int = 0
    applied: dict[str, int] = field(default_factory=dict[str, int])
    template: int = 0
    outdated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """End of a session; `at_s` and `boot` as `created_s` and `boot` of a `SessionRecord`."""

    scope: str
    name: str
    reason: str
    at_s: float
    boot: str = ""
    lost: bool = False


@cache
def boot_id() -> str:
    """Id of this boot of the machine; empty if the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def identity(descriptor: int) -> str:
    """Return a key that tells a socket or directory from all others that are open now.

    Raises:
        OSError: it is not open.
    """
    status = os.fstat(descriptor)
    return f"{status.st_dev:x}:{status.st_ino:x}"


def spec_name(data: bytes) -> str:
    """Name of a `SpecRecord` in the store."""
    return f"spec-{hashlib.sha256(data).hexdigest()[:24]}"


def encode(record: object) -> bytes:
    """Encode a record.

    Raises:
        TypeError: it holds a value without a plain form.
    """
    body = json.dumps(to_plain(record), separators=(",", ":"), ensure_ascii=True).encode()
    return b"%s%d %s\n%s" % (_MAGIC, VERSION, hashlib.sha256(body).hexdigest().encode(), body)


def to_plain(value: object) -> Any:
    """A value as JSON has it. Fields that have their default are left out.

    Raises:
        TypeError: it is, or holds, something that has no such form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        names, defaults, read = _fields(type(value))
        for name, default, given in zip(names, defaults, read(value), strict=True):
            if default is MISSING or given != default:
                found[name] = given if type(given) in _PLAIN else to_plain(given)
        return found
    if isinstance(value, tuple | list):
        several = cast("tuple[object, ...]", value)
        return [each if type(each) in _PLAIN else to_plain(each) for each in several]
    if isinstance(value, frozenset):
        return sorted(to_plain(each) for each in cast("frozenset[object]", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {str(key): to_plain(each) for key, each in items}
    raise TypeError(f"{type(value).__name__} has no plain form")


_PLAIN = frozenset((str, int, float, bool, type(None)))


@cache
def _fields(kind: Any) -> tuple[Sequence[str], Sequence[object], Callable[[object], Any]]:
    """Names of a class's fields, their defaults, and a function that reads all of them."""
    known = [each for each in fields(kind) if each.init]
    names = [each.name for each in known]
    read = attrgetter(*names) if len(names) > 1 else _one_by(names)
    return names, [each.default for each in known], read


def _one_by(names: Sequence[str]) -> Callable[[object], Any]:
    return lambda value: [getattr(value, name) for name in names]


def decode(kind: type[R], data: bytes) -> R:
    """Decode a record.

    Raises:
        UnreadableRecordError: another version has written it, it is damaged, or something else.
    """
    head, separator, body = data.partition(b"\n")
    parts = head.split(b" ")
    if not data.startswith(_MAGIC) or not separator or len(parts) != 3:
        raise UnreadableRecordError("it does not begin as a record does")
    if not parts[1].isdigit() or len(parts[1]) > 9:
        raise UnreadableRecordError("its version is not a number")
    if int(parts[1]) > VERSION:
        raise NewerRecordError(
            f"it has version {int(parts[1])}, and this nsm understands up to {VERSION}"
        )
    if hashlib.sha256(body).hexdigest().encode() != parts[2]:
        raise UnreadableRecordError("it is damaged: its checksum is another")
    try:
        return decoding.decode(kind, json.loads(body))
    except (ValueError, RecursionError) as error:
        raise UnreadableRecordError(f"in the record, {error}") from error


def is_record(data: bytes) -> bool:
    """Return whether the content of a memory file is a record, of any version."""
    return data.startswith(_MAGIC)


def outline(data: bytes) -> Mapping[str, Any]:
    """Plain values of a record that may be unreadable; empty if there are none."""
    try:
        plain = json.loads(data.partition(b"\n")[2])
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", plain) if isinstance(plain, dict) else {}


def outline_of(descriptors: Iterable[int]) -> Mapping[str, Any]:
    """Plain values of the last record of an entry that has some."""
    found: Mapping[str, Any] = {}
    for data in map(read_file, descriptors):
        if data is not None:
            found = outline(data) or found
    return found


def read_file(descriptor: int) -> bytes | None:
    """Read a kept memory file; None if the descriptor is something else."""
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) < 0:
            return None
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, min(size, MAX_RECORD_BYTES), 0)
    except OSError:
        return None


def kept_entry(name: str, record: object, *descriptors: int) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield an entry to store: descriptors with their record, which lasts until the next step of
    the iteration. It has none while there is no free descriptor, as `Refill` says.

    Args:
        record: encoded, if it is bytes.
    """
    data = record if isinstance(record, bytes) else encode(record)
    try:
        file = memory_file(data)
    except OSError:
        yield name, ()
        return
    try:
        yield name, [file, *descriptors]
    finally:
        os.close(file)


def keep(store: DescriptorStore, entries: Iterable[tuple[str, Sequence[int]]]) -> bool:
    """Store entries as `kept_entry` yields them; returns whether there were descriptors for all."""
    whole = True
    for name, descriptors in entries:
        if descriptors:
            store.keep(name, descriptors)
        else:
            log.warning("%s would not outlive the supervisor: there is no free descriptor", name)
            whole = False
    return whole


def newest(kind: type[R], descriptors: Iterable[int]) -> R:
    """Read the record of an entry: that of the highest revision, if there are several.

    Raises:
        RecordError: there is none.
        UnreadableRecordError: none can be read, or a newer nsm has written one of them.
    """
    found: list[R] = []
    damaged: UnreadableRecordError | None = None
    for data in map(read_file, descriptors):
        try:
            if data is not None and is_record(data):
                found.append(decode(kind, data))
        except NewerRecordError:
            raise
        except UnreadableRecordError as error:
            damaged = error
    if found:
        return max(found, key=lambda each: getattr(each, "revision", 0))
    raise damaged or RecordError("there is no record of it")


def by_identity(descriptors: Iterable[int]) -> dict[str, int]:
    """Find descriptors by their `identity`."""
    return {identity(each): each for each in descriptors}


def matched(descriptors: Sequence[int], *identities: str) -> list[int]:
    """Find the pidfd of an entry's process, then the descriptors with these identities.

    Raises:
        RecordError: one of them is not there.
    """
    pidfds = [each for each in descriptors if pid_of(each) is not None]
    known = by_identity(descriptors)
    if not pidfds or not all(each in known for each in identities):
        raise RecordError("not all of its descriptors were kept")
    return [pidfds[0], *(known[each] for each in identities)]


def close_all(descriptors: Iterable[int]) -> None:
    """Close descriptors, also if some are closed already."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def discard_unusable(_name: str, _descriptors: Sequence[int], _error: RecordError) -> None:
    """Answer that nobody needs an entry that cannot be used."""


def _if_unreadable(_name: str, _descriptors: Sequence[int], error: RecordError) -> str | None:
    return "" if isinstance(error, UnreadableRecordError) else None


_NOUNS = {"session-": "session", "box-": "box", "port-": "open port", "secrets-": "secret"}
"""Words for people."""


class KeptEntries:
    """Entries that an earlier supervisor has left in the descriptor store. What this nsm cannot
    read is left alone, for one that can: this process holds its descriptors, so that they outlive a
    holder that is killed, and a reload.

    Args:
        kept: all kept descriptors; kinds that this version does not know are left alone.
    """

    def __init__(self, store: DescriptorStore, kept: Kept | None = None) -> None:
        self.store = store
        self.kept: Kept = kept or {}
        self._alone: dict[str, Sequence[int]] = {}
        self._whys: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        for name, descriptors in self.kept.items():
            if not name.startswith(KEPT_PREFIXES):
                self.leave(name, descriptors, "this nsm knows no such kind of entry")

    def __repr__(self) -> str:
        return f"<KeptEntries, left alone: {', '.join(self._alone)}>"

    def take_over(
        self,
        prefix: str,
        kind: type[R],
        take: Callable[[R, list[int]], Collection[int]],
        *,
        owner: Callable[[R], str] = lambda _: "",
        unusable: Callable[[str, Sequence[int], RecordError], str | None] = _if_unreadable,
    ) -> None:
        """Have the entries of one kind taken over, as far as this nsm can read them.

        Names that are equal up to a dot are one entry. Entries whose owner is left alone are, too.
        Useless ones are dropped.

        Args:
            take: gets a record and its descriptors, and returns those that it owns from now on:
                none if that has ended. It raises `RecordError` if something is missing.
            unusable: gets name, descriptors and error of an entry that cannot be used. Returns None
                if it is over, else it is left alone for an owner with this id; empty for none.
        """
        entries: dict[str, dict[str, Sequence[int]]] = {}
        for name, given in self.kept.items():
            if name.startswith(prefix):
                entries.setdefault(name.partition(".")[0], {})[name] = given
        for name, parts in entries.items():
            descriptors = [each for given in parts.values() for each in given]
            why, whose = "", None
            taken: Collection[int] = ()
            try:
                record = newest(kind, descriptors)
                if self.has(owner(record)):
                    whose = owner(record)
                else:
                    taken = take(record, descriptors)
            except RecordError as error:
                why, whose = str(error), unusable(name, descriptors, error)
                if whose is None:
                    log.warning("the kept entry %s cannot be used: %s", name, error)
            if whose is not None:
                for part, given in parts.items():
                    self.leave(part, given, why, owner=whose)
                continue
            close_all(each for each in descriptors if each not in taken)
            if not taken:
                for part in parts:
                    self.store.drop(part)

    def drop_kind(self, prefix: str) -> None:
        """Drop all entries of one kind."""
        for name, descriptors in self.kept.items():
            if name.startswith(prefix):
                close_all(descriptors)
                self.store.drop(name)

    def leave(
        self, name: str, descriptors: Sequence[int], why: str = "", *, owner: str = ""
    ) -> None:
        """Leave an entry alone. Its descriptors are owned from now on.

        Args:
            why: why it cannot be read; empty if it only belongs to one that cannot.
            owner: id of its session or box; empty for none.
        """
        self._alone[name] = tuple(descriptors)
        if owner:
            self._owners[name] = owner
        if why:
            log.warning("%s is left alone: %s", name, why)
            self._whys[name] = why

    def has_entry(self, name: str) -> bool:
        """Return whether that entry is left alone."""
        return name in self._alone

    def has(self, owner: str) -> bool:
        """Return whether a session or box is left alone, so that what belongs to it is, too."""
        return owner in self._owners.values()

    def drop(self, owner: str) -> None:
        """Drop all entries of a session that is gone."""
        for name in [name for name, its in self._owners.items() if its == owner]:
            self.store.drop(name)
            close_all(self._alone.pop(name))
            self._whys.pop(name, None)
            del self._owners[name]

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield what is left alone, as `Refill`."""
        yield from list(self._alone.items())

    @property
    def problem(self) -> str:
        """Numbers of what is left alone, by kind, and a reason, for people; else empty."""
        things = {name.partition(".")[0]: why for name, why in self._whys.items()}
        if not things:
            return ""
        nouns = Counter(
            next(
                (noun for prefix, noun in _NOUNS.items() if name.startswith(prefix)), "other thing"
            )
            for name in things
        )
        told = ", ".join(f"{count} x {noun}" for noun, count in nouns.items())
        return (
            f"another version of nsm made what this one cannot read, and leaves alone: {told} "
            f"({next(iter(things.values()))})"
        )
