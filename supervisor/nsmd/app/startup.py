"""Facts for all parts, gathered once before the event loop begins."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from nsm import paths
from nsm.dataclass import dataclass
from nsmd.app.instance import Instance
from nsmd.boxes.box import BOX, BoxRecord
from nsmd.bridge.bridge import BridgePaths
from nsmd.config.reload import Load
from nsmd.environments.artifacts.metadata import with_said
from nsmd.environments.artifacts.sources import sources_of
from nsmd.environments.devices.equipment import DeviceFinder
from nsmd.environments.devices.nodes import device_host
from nsmd.environments.host_presets import find_environments, find_python_in
from nsmd.environments.nix.program import NixFinder
from nsmd.environments.packages.installer_run import InstallerRun
from nsmd.fdstore import records
from nsmd.fdstore.handover import Leaving
from nsmd.fdstore.records import SessionRecord, SpecRecord, UnreadableRecordError
from nsmd.fdstore.running_holders import SilentHolders
from nsmd.fdstore.store import DescriptorStore, Kept
from nsmd.fdstore.store_choice import open_store
from nsmd.host.descriptors import Shares, raise_limit, share_out
from nsmd.host.listeners import HOLDER_SOCKET
from nsmd.host.locales import passed_on
from nsmd.host.processes import children_of
from nsmd.jail import BwrapLauncher, Launcher
from nsmd.jail.host import GitSettings
from nsmd.jail.templates import open_launcher
from nsmd.jail.templates.template_store import PREFIX as TEMPLATE
from nsmd.jail.templates.template_store import TemplateRecord
from nsmd.manager.projects import Unreadable
from nsmd.model.limits import session_limits
from nsmd.model.settings import Settings
from nsmd.model.values import Enforcement, Environment, Sources
from nsmd.network.secrets.grant import GRANT, GrantRecord
from nsmd.ports.relay_process import RELAY, RelayRecord
from nsmd.ports.session_ports import PORT, PortRecord
from nsmd.restart.kept_sessions import SESSION, SPEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Facts for all parts, gathered before the event loop begins.

    Attributes:
        listener: bound, listening, non-blocking.
        private: directories of our own that no jail ever shows.
        variables: those of this process that lead to the service manager.
        unreadable, no_way: return why a jail's user cannot read a directory, or reach a file by its
            path; None if it can.
        jail: facts about jails here, for `nsm status`.
        config_path, agreements_path, imports_path: there may be no such file.
        load_settings, find_environments, find_python: block.
        sources: sources of further environments, from the supervisor's own variables.
        sandbox_directory: directory of artifacts, if the variables name none.
        announce: called once the socket answers.
        crashed: called with an error that ends this process; returns its exit code.
        silent: holders that do not answer and may have sessions, too; None if there is none.
        kept: descriptors from earlier supervisors, from the store or from before a reload.
        leave: ends this process for a `leave` or `reload`.
        again: this process was a supervisor before it became this program.
        inherited: process ids of children of the program that this process was before.
    """

    settings: Settings
    listener: socket.socket
    socket_path: str
    home: str
    private: Sequence[str]
    variables: Mapping[str, str]
    open_launcher: Callable[[Enforcement], AbstractAsyncContextManager[Launcher]]
    unreadable: Unreadable
    no_way: Unreadable
    jail: Mapping[str, Any]
    shares: Shares
    config_path: str
    load_settings: Load
    find_environments: Callable[[Settings], Sequence[Environment]]
    find_python: Callable[..., Environment]
    devices: DeviceFinder
    agreements_path: str
    imports_path: str
    sources: Sources
    sandbox_directory: str
    nix: NixFinder
    installation: InstallerRun
    built_directory: str
    shell_directory: str
    audit_path: str
    bridge: BridgePaths
    metrics_path: str
    ends_directory: str
    announce: Callable[[], None]
    crashed: Callable[[BaseException], int]
    store: DescriptorStore
    silent: SilentHolders | None
    kept: Kept
    leave: Leaving
    again: bool = False
    inherited: Collection[int] = ()


def gather(
    settings: Settings,
    instance: Instance,
    variables: Mapping[str, str],
    *,
    search_path: str,
    config_path: str,
    load_settings: Load,
    announce: Callable[[], None],
    crashed: Callable[[BaseException], int],
    command: list[str],
) -> Startup:
    """Look at the host and at what an earlier supervisor has left.

    Args:
        settings: as the file says; the host's metadata is added.
        instance: listener, lock and kept descriptors.
        variables: variables of this process.
        search_path: directories in which to find programs of the host.
        config_path: as in `Startup`.
        load_settings: reads the file again.
        announce, crashed: as in `Startup`.
        command: the program that this process becomes at a reload.

    Raises:
        OSError: the kept descriptors cannot be read.
    """
    sources = sources_of(variables) or Sources()
    settings = with_said(settings, sources.metadata)
    shares = share_out(raise_limit(), settings.http.descriptors)
    launcher = BwrapLauncher.for_host(
        search_path, settings.defaults.jail_uid, limits=session_limits(settings)
    )
    launcher.git = GitSettings(search_path, variables)
    store, kept, silent = open_store(
        variables, os.path.join(paths.runtime_dir(), HOLDER_SOCKET), instance.kept, instance.handed
    )
    return Startup(
        settings=settings,
        listener=instance.listener,
        socket_path=instance.listener.getsockname(),
        home=paths.home(),
        private=(paths.runtime_dir(), paths.state_dir(), paths.data_dir(), paths.config_dir()),
        variables=variables,
        open_launcher=_opening_launcher(launcher, settings, store, kept),
        unreadable=launcher.user.why_unreadable,
        no_way=launcher.user.why_no_way,
        jail={"kind": "bubblewrap", "uid": launcher.user.uid},
        shares=shares,
        config_path=config_path,
        load_settings=partial(_load_again, load_settings, sources.metadata),
        find_environments=partial(
            find_environments,
            search_path=search_path,
            unreadable=launcher.user.why_unreadable,
            variables=passed_on(variables),
        ),
        find_python=partial(
            find_python_in,
            search_path=search_path,
            unreadable=launcher.user.why_unreadable,
            variables=passed_on(variables),
        ),
        devices=DeviceFinder(device_host(launcher.user)),
        agreements_path=os.path.join(paths.state_dir(), "project-environments.json"),
        imports_path=os.path.join(paths.state_dir(), "imports.json"),
        sources=sources,
        sandbox_directory=os.path.join(paths.config_dir(), "sandboxes"),
        nix=NixFinder(search_path, variables, paths.home()),
        installation=InstallerRun(
            store=os.path.join(paths.data_dir(), "envs"),
            lock_directories=(
                os.path.join(paths.config_dir(), "locks"),
                os.path.join(paths.data_dir(), "locks"),
            ),
            search_path=search_path,
            home=paths.home(),
            jail_uid=settings.defaults.jail_uid,
            variables=variables,
            hosts=settings.packages.hosts,
            timeout_s=settings.packages.build_timeout_seconds,
        ),
        built_directory=os.path.join(paths.state_dir(), "environments"),
        shell_directory=os.path.join(paths.state_dir(), "devshells"),
        audit_path=_audit_path(),
        bridge=BridgePaths(
            definitions=paths.tools_dir(),
            ledger=paths.bridge_audit_path(),
            variables=variables,
        ),
        metrics_path=os.path.join(paths.runtime_dir(), "metrics.sock"),
        ends_directory=os.path.join(paths.runtime_dir(), "sessions"),
        announce=announce,
        crashed=crashed,
        store=store,
        silent=silent,
        kept=kept,
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


def _load_again(load_settings: Load, metadata: str | None) -> tuple[Settings | None, Sequence[str]]:
    """Read the settings, and add the host's metadata."""
    settings, problems = load_settings()
    return None if settings is None else with_said(settings, metadata), problems


def _opening_launcher(
    launcher: BwrapLauncher, settings: Settings, store: DescriptorStore, kept: Kept
) -> Callable[[Enforcement], AbstractAsyncContextManager[Launcher]]:
    return partial(
        open_launcher,
        launcher,
        os.path.join(paths.runtime_dir(), "wrapper-home"),
        templates=settings.defaults.templates,
        store=store,
        kept=kept,
    )


def _audit_path() -> str:
    """Path of the audit's file; makes its directory if it can."""
    try:
        paths.ensure_private_dir(paths.state_dir())
    except OSError as error:
        logging.getLogger(__name__).warning("no state is kept: %s", error)
    return paths.audit_path()


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
