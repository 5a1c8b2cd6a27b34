"""What keeps descriptors from now on, what was kept of earlier supervisors, and how one leaves."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from nsmd.survival import keeperstore
from nsmd.survival.handing import HandedOver, hand_over
from nsmd.survival.keeperstore import KeeperError, KeeperStore
from nsmd.survival.store import DescriptorStore, Kept, NoStore
from nsmd.survival.systemdstore import SystemdStore, systemd_keeps

log = logging.getLogger(__name__)


def open_store(
    variables: Mapping[str, str], keeper_path: str, passed: Kept, handed: HandedOver | None
) -> tuple[DescriptorStore, Kept]:
    """What keeps descriptors from now on, and all that was kept of earlier supervisors.

    Blocks for as long as a keeper gives them, some ms; for 10 s where one is stopped.

    Args:
        variables: of this process.
        keeper_path: of the keeper's socket.
        passed: what the service manager gave back.
    """
    kept: dict[str, list[int]] = {name: list(fds) for name, fds in passed.items()}
    found, problem = None, ""
    try:
        found = keeperstore.take(keeper_path)
    except KeeperError as error:
        problem = str(error)
        log.warning("%s; what it holds stays there", problem)
    if found is not None:
        _add(kept, found.kept)
    if handed is not None:
        # Nothing of it can be missing there, and what others have of it are copies.
        _close(kept)
        kept = {name: list(fds) for name, fds in handed.kept.items()}
    most = systemd_keeps(variables)
    if most is not None:
        if found is not None:
            _empty(keeper_path, found)
        store = SystemdStore(variables["NOTIFY_SOCKET"], most, passed)
        for name in kept.keys() - passed.keys():
            store.keep(name, kept[name])
        return store, kept
    if problem:
        return NoStore(problem), kept
    return KeeperStore(keeper_path, found=found), kept


def _add(kept: dict[str, list[int]], more: Kept) -> None:
    """What two kept is one of them's; the other's copies are closed."""
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


def _empty(path: str, found: keeperstore.Found) -> None:
    """End a keeper that is needed no more, since systemd keeps what it had."""
    KeeperStore(path, found=found).end()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Ends this process and leaves all sessions to whoever keeps them, or to its next program.

    Attributes:
        listener, own, lock: as in `HandedOver`.
        store: what keeps the rest.
        command: the next program, as it is installed by then.
    """

    listener: int
    own: tuple[int, int] | None
    lock: int
    store: DescriptorStore
    command: list[str]

    def __call__(self, how: str) -> NoReturn:
        """Leave.

        Args:
            how: "reload" to become `command`; else this process ends.
        """
        self.store.settle()
        if how != "reload":
            os._exit(0)
        handed = HandedOver(
            listener=self.listener, own=self.own, lock=self.lock, kept=self.store.contents()
        )
        try:
            variables = os.environ | hand_over(handed)
            for command in (self.command, [sys.executable, "-P", "-m", "nsmd"]):
                with suppress(OSError):
                    os.execve(command[0], command, variables)  # noqa: S606
            log.critical("%s can't be started; sessions stay with the %s", *self._last_words())
        finally:
            os._exit(1)  # whoever keeps the sessions gives them to the next supervisor

    def _last_words(self) -> tuple[str, str]:
        return self.command[0], self.store.kind
