"""Facts for all parts, gathered once before the event loop begins."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from nsm import paths
from nsmd.app.instance import Instance
from nsmd.bridge.bridge import BridgePaths
from nsmd.config.reload import Load
from nsmd.environments.artifacts.metadata import with_said
from nsmd.environments.artifacts.sources import sources_of
from nsmd.environments.host_presets import find_environments
from nsmd.environments.nix.program import NixFinder
from nsmd.fdstore.store import DescriptorStore, Kept
from nsmd.fdstore.store_choice import Leaving, open_store
from nsmd.host.descriptors import Shares, raise_limit, share_out
from nsmd.host.locales import passed_on
from nsmd.host.processes import children_of
from nsmd.host.unix_listener import KEEPER
from nsmd.jail import BwrapLauncher, Launcher
from nsmd.jail.templates import open_launcher
from nsmd.manager.projects import Unreadable
from nsmd.model.limits import session_limits
from nsmd.model.settings import Settings
from nsmd.model.values import Enforcement, Environment, Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Facts for all parts, gathered before the event loop begins.

    Attributes:
        listener: bound, listening, non-blocking.
        socket_path: where.
        home: the user's home directory.
        private: directories of our own that no jail ever shows.
        variables: of this process, which lead to the service manager.
        open_launcher: while its block lasts, what it gives starts jails; told what keeps their
            sessions to their limits.
        unreadable: why the jails' user cannot be shown a directory; None if it can.
        no_way: why that user cannot go to a file by its own path; None if it can.
        jail: facts about jails here, for `nsm status`.
        shares: how many descriptors there are, and what for.
        load_settings: reads `config.toml` again; blocks, as the next one.
        find_environments: looks at the host; blocks, so it is called in a thread.
        sources: of further environments, as the supervisor's own variables name them.
        sandbox_directory: of artifacts, where they name none.
        nix: finds nix when it is needed.
        built_directory: for what it builds.
        shell_directory: for what nix says of projects' shells.
        audit_path: of the audit's file.
        bridge: where its definitions are, and its own audit.
        metrics_path: of the Unix socket for metrics.
        ends_directory: for names of sessions and how they ended.
        announce: called once the socket answers.
        store: keeps sessions' descriptors, whatever becomes of this process.
        kept: what it, or the program that this process was before, had kept of earlier ones.
        leave: ends this process for `leave` and `reload`.
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
    load_settings: Load
    find_environments: Callable[[Settings], Sequence[Environment]]
    sources: Sources
    sandbox_directory: str
    nix: NixFinder
    built_directory: str
    shell_directory: str
    audit_path: str
    bridge: BridgePaths
    metrics_path: str
    ends_directory: str
    announce: Callable[[], None]
    store: DescriptorStore
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
    load_settings: Load,
    announce: Callable[[], None],
    command: list[str],
) -> Startup:
    """Look at the host and at what an earlier supervisor has left.

    Args:
        settings: as the file says; what the host's metadata says is added.
        instance: listener, lock, and what was kept.
        variables: of this process.
        search_path: where programs of the host are looked for.
        load_settings: reads the file again.
        announce: as in `Startup`.
        command: the program that this process becomes at a reload.

    Raises:
        OSError: the descriptors that are kept cannot be had.
    """
    sources = sources_of(variables) or Sources()
    settings = with_said(settings, sources.metadata)

    def load_again() -> tuple[Settings | None, Sequence[str]]:
        wanted, problems = load_settings()
        return None if wanted is None else with_said(wanted, sources.metadata), problems

    shares = share_out(raise_limit(), settings.http.descriptors)
    launcher = BwrapLauncher.for_host(
        search_path, settings.defaults.jail_uid, limits=session_limits(settings)
    )
    store, kept = open_store(
        variables, os.path.join(paths.runtime_dir(), KEEPER), instance.kept, instance.handed
    )
    return Startup(
        settings=settings,
        listener=instance.listener,
        socket_path=instance.listener.getsockname(),
        home=paths.home(),
        private=(paths.runtime_dir(), paths.state_dir(), paths.config_dir()),
        variables=variables,
        open_launcher=partial(
            open_launcher,
            launcher,
            os.path.join(paths.runtime_dir(), "wrapper-home"),
            templates=settings.defaults.templates,
            store=store,
            kept=kept,
        ),
        unreadable=launcher.user.why_unreadable,
        no_way=launcher.user.why_no_way,
        jail={"kind": "bubblewrap", "uid": launcher.user.uid},
        shares=shares,
        load_settings=load_again,
        find_environments=lambda settings: find_environments(
            settings,
            search_path,
            unreadable=launcher.user.why_unreadable,
            variables=passed_on(variables),
        ),
        sources=sources,
        sandbox_directory=os.path.join(paths.config_dir(), "sandboxes"),
        nix=NixFinder(search_path, variables, paths.home()),
        built_directory=os.path.join(paths.state_dir(), "environments"),
        shell_directory=os.path.join(paths.state_dir(), "devshells"),
        audit_path=_audit_path(),
        bridge=BridgePaths(
            definitions=paths.tools_dir(),
            ledger=paths.bridge_audit_path(),
            home=paths.home(),
            variables=variables,
        ),
        metrics_path=os.path.join(paths.runtime_dir(), "metrics.sock"),
        ends_directory=os.path.join(paths.runtime_dir(), "sessions"),
        announce=announce,
        store=store,
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


def _audit_path() -> str:
    """The audit's file; its directory is made where it can be."""
    try:
        paths.ensure_private_dir(paths.state_dir())
    except OSError as error:
        logging.getLogger(__name__).warning("no state is kept: %s", error)
    return paths.audit_path()
