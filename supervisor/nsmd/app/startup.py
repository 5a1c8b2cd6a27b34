"""Things that are found and opened before the event loop begins: the descriptor store with all that
earlier supervisors left, the launcher of jails; and the kinds of kept records.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from nsm import paths
from nsm.dataclass import dataclass
from nsmd.app.instance import Instance
from nsmd.boxes.box import BOX, BoxRecord
from nsmd.config.reload import Load
from nsmd.environments.artifacts.discovery import sources_of
from nsmd.environments.artifacts.metadata import with_variable
from nsmd.fdstore import records
from nsmd.fdstore.handover import HandedOver, Leaving
from nsmd.fdstore.holder_store import HolderStore
from nsmd.fdstore.records import KeptEntries, SessionRecord, SpecRecord, UnreadableRecordError
from nsmd.fdstore.running_holders import SilentHolders, find_holders
from nsmd.fdstore.store import DescriptorStore, Kept
from nsmd.fdstore.systemd_store import SystemdStore, systemd_keeps
from nsmd.host.descriptors import Shares, raise_limit, share_out
from nsmd.host.listeners import HOLDER_SOCKET
from nsmd.host.processes import children_of
from nsmd.jail import BwrapLauncher
from nsmd.jail.host import GitSettings
from nsmd.jail.templates.template import PREFIX as TEMPLATE
from nsmd.jail.templates.template import TemplateRecord
from nsmd.model.limits import session_limits
from nsmd.model.settings import Settings
from nsmd.model.values import Sources
from nsmd.network.secrets.grant import GRANT, GrantRecord
from nsmd.ports.session_ports import PORT, RELAY, PortRecord, RelayRecord
from nsmd.restart.kept_sessions import SESSION, SPEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Beginning of the event loop; its variables are `os.environ`.

    Attributes:
        settings: as the file says, with the host's metadata; `load_settings` reads them again.
        listener: bound, listening, non-blocking.
        announce: called once the socket answers.
        crashed: called with an error that ends this process; returns its exit code.
        silent: holders that do not answer and may have sessions, too; None if there is none.
        entries: what earlier supervisors have left, in the store or before a reload.
        leave: ends this process for a `leave` or `reload`.
        again: this process was a supervisor before it became this program.
        inherited: process ids of children of the program that this process was before.
    """

    settings: Settings
    load_settings: Load
    config_path: str
    search_path: str
    sources: Sources
    shares: Shares
    jails: BwrapLauncher
    listener: socket.socket
    announce: Callable[[], None]
    crashed: Callable[[BaseException], int]
    store: DescriptorStore
    silent: SilentHolders | None
    entries: KeptEntries
    leave: Leaving
    again: bool
    inherited: Collection[int]


def start_up(
    settings: Settings,
    instance: Instance,
    *,
    search_path: str,
    config_path: str,
    load_settings: Load,
    announce: Callable[[], None],
    crashed: Callable[[BaseException], int],
    command: list[str],
) -> Startup:
    """Open everything that an earlier supervisor has left, and all that must come before threads.

    Args:
        command: the program that this process becomes at a reload.

    Raises:
        OSError: the kept descriptors cannot be read.
    """
    shares = share_out(raise_limit(), settings.http.descriptors)
    sources = sources_of(os.environ) or Sources()

    def load_again() -> tuple[Settings | None, Sequence[str]]:
        found, problems = load_settings()
        return None if found is None else with_variable(found, sources.metadata), problems

    settings = with_variable(settings, sources.metadata)
    jails = BwrapLauncher.for_host(
        search_path, settings.defaults.jail_uid, limits=session_limits(settings)
    )
    jails.git = GitSettings(search_path, os.environ)
    holder_path = os.path.join(paths.runtime_dir(), HOLDER_SOCKET)
    store, kept, silent = open_store(os.environ, holder_path, instance.kept, instance.handed)
    return Startup(
        settings=settings,
        load_settings=load_again,
        config_path=config_path,
        search_path=search_path,
        sources=sources,
        shares=shares,
        jails=jails,
        listener=instance.listener,
        announce=announce,
        crashed=crashed,
        store=store,
        silent=silent,
        entries=KeptEntries(store, kept),
        leave=Leaving(
            listener=instance.listener,
            own=instance.own,
            lock=instance.lock,
            store=store,
            command=command,
        ),
        again=instance.handed is not None,
        inherited=children_of(os.getpid()) if instance.handed is not None else (),
    )


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
    holders, silent = find_holders(holder_path)
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
            records.close_all(descriptors)
        else:
            kept[name] = list(descriptors)


KINDS: Mapping[str, type[Any]] = {
    SESSION: SessionRecord,
    SPEC: SpecRecord,
    TEMPLATE: TemplateRecord,
    BOX: BoxRecord,
    PORT: PortRecord,
    RELAY: RelayRecord,
    GRANT: GrantRecord,
}
"""By the beginnings of the names in the store."""


def unreadable(kept: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return why this version cannot use what is kept, by name. Specifications are not named: the
    sessions that need them are.
    """
    found: dict[str, str] = {}
    specs: dict[str, str] = {}
    for name, text in kept:
        kind = next((KINDS[prefix] for prefix in KINDS if name.startswith(prefix)), None)
        try:
            if kind is None:
                raise UnreadableRecordError("this version knows no such kind of entry")  # noqa: TRY301
            record = records.decode(kind, text.encode())
        except UnreadableRecordError as error:
            found[name] = str(error)
            continue
        if isinstance(record, SessionRecord):
            specs[name] = record.spec
    found |= {name: found[spec] for name, spec in specs.items() if spec in found}
    return {name: why for name, why in found.items() if not name.startswith((SPEC, TEMPLATE))}
