"""Things that are found and opened before the event loop begins, and kinds of kept records."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from nsm import paths
from nsm.dataclass import dataclass
from nsmd.app.instance import Instance
from nsmd.boxes.box import BOX, BoxRecord
from nsmd.config.reload import Load
from nsmd.environments.artifacts.metadata import with_variable
from nsmd.environments.artifacts.sources import sources_of
from nsmd.fdstore import records
from nsmd.fdstore.handover import Leaving
from nsmd.fdstore.records import KeptEntries, SessionRecord, SpecRecord, UnreadableRecordError
from nsmd.fdstore.running_holders import SilentHolders
from nsmd.fdstore.store import DescriptorStore
from nsmd.fdstore.store_choice import open_store
from nsmd.host.descriptors import Shares, raise_limit, share_out
from nsmd.host.listeners import HOLDER_SOCKET
from nsmd.host.processes import children_of
from nsmd.jail import BwrapLauncher
from nsmd.jail.host import GitSettings
from nsmd.jail.templates.template_store import PREFIX as TEMPLATE
from nsmd.jail.templates.template_store import TemplateRecord
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
