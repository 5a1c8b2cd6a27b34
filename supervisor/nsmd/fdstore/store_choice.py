"""Choice of the descriptor store, and the descriptors of earlier supervisors."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from contextlib import suppress

from nsmd.fdstore import running_holders
from nsmd.fdstore.handover import HandedOver
from nsmd.fdstore.holder_store import HolderStore
from nsmd.fdstore.running_holders import SilentHolders
from nsmd.fdstore.store import DescriptorStore, Kept
from nsmd.fdstore.systemd_store import SystemdStore, systemd_keeps

log = logging.getLogger(__name__)


def open_store(
    variables: Mapping[str, str], holder_path: str, passed: Kept, handed: HandedOver | None
) -> tuple[DescriptorStore, Kept, SilentHolders | None]:
    """Open the descriptor store, and collect all that earlier supervisors left.

    Blocks while holders send that, some ms; for 5 s if one does not answer.

    Args:
        passed: descriptors that the service manager gave back.

    Returns:
        The store; what was left, which the store has, too; and holders that do not answer and may
        have more.

    Raises:
        OSError: a holder's socket cannot be moved, or not all that holders have can be received.
    """
    kept: dict[str, list[int]] = {name: list(fds) for name, fds in passed.items()}
    holders, silent = running_holders.find(holder_path)
    whole = passed.keys() | (handed.kept.keys() if handed is not None else set[str]())
    if lacking := {name for each in holders for name in each.lacking} - whole:
        for each in holders:
            each.close()
        raise OSError(
            errno.EMFILE,
            f"there is no room for what is kept of sessions and others ({len(lacking)}), which "
            "live on for now. Raise the limit on open files (ulimit -n)",
        )
    for each in holders:
        _add(kept, each.kept)
    if handed is not None:
        others, kept = kept, {name: list(fds) for name, fds in handed.kept.items()}
        _add(kept, others)
    most = systemd_keeps(variables)
    store: DescriptorStore
    if most is not None:
        store, more = SystemdStore(variables["NOTIFY_SOCKET"], most, passed), holders
        settled = handed.kept.keys() if handed is not None and handed.settled else set[str]()
        for name in kept.keys() - passed.keys():
            tell = store.has if name in settled else store.keep
            tell(name, kept[name])
    else:
        own, more = next(iter(holders), None), holders[1:]
        store = HolderStore(holder_path, found=own)
        for name in kept.keys() - (own.kept.keys() if own is not None else ()):
            store.keep(name, kept[name])
    if more:
        store.settle(kept.items)
    for each in more:
        if store.problem:  # it keeps its copies for the next supervisor
            each.link.close()
        elif not each.ended:
            HolderStore(each.path, found=each).end()
    return store, kept, silent


def _add(kept: dict[str, list[int]], more: Kept) -> None:
    """Merge two stores' descriptors; if both kept one, the second copy is closed."""
    for name, descriptors in more.items():
        if name in kept:
            _close({name: descriptors})
        else:
            kept[name] = list(descriptors)


def _close(kept: Kept) -> None:
    for descriptors in kept.values():
        for fd in descriptors:
            with suppress(OSError):
                os.close(fd)
