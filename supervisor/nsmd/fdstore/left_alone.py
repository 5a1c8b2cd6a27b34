"""Kept entries that this version of nsm cannot read. They are left as they are, for one that can.

This process holds copies, so that they outlive a holder that is killed, and a reload.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

from nsmd.fdstore import records
from nsmd.fdstore.records import RecordError, UnreadableRecordError
from nsmd.fdstore.store import KEPT_PREFIXES, DescriptorStore, Kept

log = logging.getLogger(__name__)

R = TypeVar("R")

_NOUNS = {"session-": "session", "box-": "box", "port-": "open port", "secrets-": "secret"}
"""Words for people."""


class LeftAlone:
    """Entries of the descriptor store that this nsm cannot read, and copies of their descriptors.

    Args:
        store: the store.
        kept: all kept descriptors; this takes the kinds that this version does not know.
    """

    def __init__(self, store: DescriptorStore, kept: Kept | None = None) -> None:
        self._store = store
        self._entries: dict[str, Sequence[int]] = {}
        self._whys: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        for name, descriptors in (kept or {}).items():
            if not name.startswith(KEPT_PREFIXES):
                self.add(name, descriptors, "this nsm knows no such kind of entry")

    def __repr__(self) -> str:
        return f"<LeftAlone {', '.join(self._entries)}>"

    def add(self, name: str, descriptors: Sequence[int], why: str = "", *, owner: str = "") -> None:
        """Leave an entry alone. Its descriptors are owned from now on.

        Args:
            why: why it cannot be read; empty if it only belongs to one that cannot.
            owner: id of its session or box; empty for none.
        """
        self._entries[name] = tuple(descriptors)
        if owner:
            self._owners[name] = owner
        if why:
            log.warning("%s is left alone: %s", name, why)
            self._whys[name] = why

    def sort_out(
        self,
        kept: Kept,
        prefix: str,
        kind: type[R],
        owner: Callable[[R], str],
        take: Callable[[R, list[int]], Collection[int]],
    ) -> None:
        """Have the entries of one kind taken over, as far as this nsm can read them.

        Entries whose owner is left alone are, too. Useless ones are dropped.

        Args:
            prefix: beginning of the names of this kind in the store.
            owner: returns the id of a record's session or box.
            take: gets a record and its descriptors, and returns those that it owns from now on:
                none if that has ended. It raises `RecordError` if something is missing.
        """
        for name, given in kept.items():
            if not name.startswith(prefix):
                continue
            descriptors = list(given)
            try:
                record = records.decode(kind, records.find(descriptors))
                if self.has(owner(record)):
                    self.add(name, descriptors, owner=owner(record))
                    continue
                taken = take(record, descriptors)
            except UnreadableRecordError as error:
                self.add(name, descriptors, str(error))
                continue
            except RecordError as error:
                log.warning("the kept entry %s cannot be used: %s", name, error)
                taken = ()
            records.close_all(each for each in descriptors if each not in taken)
            if not taken:
                self._store.drop(name)

    def has_entry(self, name: str) -> bool:
        """Return whether that entry is left alone."""
        return name in self._entries

    def has(self, owner: str) -> bool:
        """Return whether a session or box is left alone, so that what belongs to it is, too."""
        return owner in self._owners.values()

    def drop(self, owner: str) -> None:
        """Drop all entries of a session that is gone."""
        for name in [name for name, its in self._owners.items() if its == owner]:
            self._store.drop(name)
            records.close_all(self._entries.pop(name))
            self._whys.pop(name, None)
            del self._owners[name]

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        yield from list(self._entries.items())

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
