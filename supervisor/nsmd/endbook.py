"""How sessions ended is kept, too: whoever calls next under a name is to be told, once, whichever
supervisor that is."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import trio

from nsmd.history import Ended
from nsmd.keeping import boot_id
from nsmd.survival import records
from nsmd.survival.records import EndRecord, RecordError
from nsmd.survival.store import DescriptorStore, Kept

log = logging.getLogger(__name__)

MAX_KEPT = 64
"""Ends that a later supervisor is told of, the latest ones; each takes a descriptor there."""

END = "state-end-"


class EndBook:
    """See the module; `nsmd.history.EndedSessions` writes it.

    Args:
        store: keeps what it is given.
    """

    def __init__(self, store: DescriptorStore) -> None:
        self._store = store
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def __repr__(self) -> str:
        return f"<EndBook of {len(self._kept)} ends>"

    def keep(self, scope: str, name: str, ended: Ended) -> None:
        """A session of that name has ended."""
        if self._store.kind == "none":
            return
        record = EndRecord(
            scope=scope,
            name=name,
            reason=ended.reason,
            at_s=ended.at_s - trio.current_time() + time.monotonic(),
            boot=boot_id(),
            lost=ended.lost,
        )
        key = _key(scope, name)
        if self._kept.pop(key, None) is not None:
            self._store.drop(key)  # a store may add what it is given
        data = self._kept[key] = records.encode(record)
        if len(self._kept) > MAX_KEPT:
            oldest, _ = self._kept.popitem(last=False)
            self._store.drop(oldest)
        try:
            with ExitStack() as owned:
                self._store.keep(key, [_file(data, owned)])
        except OSError as error:
            log.warning("the end of %s would be forgotten with the supervisor: %s", name, error)

    def forget(self, scope: str, name: str) -> None:
        """It was told, or is of no interest any more."""
        key = _key(scope, name)
        if self._kept.pop(key, None) is not None:
            self._store.drop(key)

    def everything(self) -> Iterator[tuple[str, Sequence[int]]]:
        """All that is to be kept, as `SessionBook.everything`."""
        for key, data in list(self._kept.items()):
            with ExitStack() as owned:
                yield key, [_file(data, owned)]

    def take_up(self, kept: Kept, tell: Callable[[str, str, Ended], None]) -> None:
        """Go on with what an earlier supervisor has left.

        Args:
            kept: names that begin with `END` are owned from now on.
            tell: gets scope, name and end of each, the earliest first.
        """
        found: list[tuple[str, EndRecord, bytes]] = []
        for key, descriptors in kept.items():
            if key.startswith(END):
                best = _latest(descriptors)
                if best is None:
                    self._store.drop(key)
                else:
                    found.append((key, *best))
        now_s, current_s = time.monotonic(), trio.current_time()
        for key, record, data in sorted(found, key=lambda each: each[1].at_s):
            self._kept[key] = data
            age_s = max(0.0, now_s - record.at_s) if record.boot == boot_id() else 0.0
            ended = Ended(reason=record.reason, at_s=current_s - age_s, lost=record.lost)
            tell(record.scope, record.name, ended)


def _key(scope: str, name: str) -> str:
    return END + hashlib.sha256(f"{scope}\0{name}".encode(errors="replace")).hexdigest()[:24]


def _latest(descriptors: Sequence[int]) -> tuple[EndRecord, bytes] | None:
    best: tuple[EndRecord, bytes] | None = None
    for descriptor in descriptors:
        data = records.read_file(descriptor)
        os.close(descriptor)
        if data is None:
            continue
        try:
            record = records.decode(EndRecord, data)
        except RecordError as error:
            log.warning("how a session ended cannot be read: %s", error)
            continue
        if best is None or record.at_s > best[0].at_s:
            best = record, data
    return best


def _file(data: bytes, owned: ExitStack) -> int:
    descriptor = records.memory_file(data)
    owned.callback(os.close, descriptor)
    return descriptor
