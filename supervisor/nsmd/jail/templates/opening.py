"""Opening of the launcher of all sessions: with templates, if forking works."""

from __future__ import annotations

import logging
import platform
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

import trio

from nsm.dataclass import replace
from nsmd.fdstore.store import DescriptorStore, Kept, NoStore
from nsmd.host.source_watcher import open_source_watcher as open_watching
from nsmd.jail import BwrapLauncher, Launcher
from nsmd.jail.templates.launcher import TemplateLauncher
from nsmd.jail.templates.template_store import TemplateStore, close_all, made_of
from nsmd.model.values import Enforcement

log = logging.getLogger(__name__)


@asynccontextmanager
async def open_templates(
    cold: BwrapLauncher,
    *,
    enabled: bool = True,
    store: DescriptorStore | None = None,
    kept: Kept | None = None,
    uid: int = 0,
) -> AsyncGenerator[TemplateLauncher | BwrapLauncher]:
    """Open a launcher that forks if it can, or the given one if forking is impossible or off.

    Leaving ends all templates and their remaining sessions.

    Args:
        store, kept: keeps templates for the next supervisor, and those of the last one.
        uid: the jails' user on the host.
    """
    if not enabled:
        close_all(kept or {})
        yield cold
        return
    system_calls = cold.system_calls
    if system_calls is None:
        log.warning("no table of system calls for %s: no templates", platform.machine())
        close_all(kept or {})
        yield cold
        return
    async with open_watching() as watching, trio.open_nursery() as nursery:
        template_store = TemplateStore(store or NoStore(), partial(made_of, system_calls, uid))
        launcher = TemplateLauncher(cold, system_calls, nursery, template_store, watching)
        launcher.take_up(kept or {})
        yield launcher
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_launcher(
    bwrap: BwrapLauncher,
    home: str,
    enforcement: Enforcement,
    *,
    templates: bool,
    store: DescriptorStore | None = None,
    kept: Kept | None = None,
) -> AsyncGenerator[Launcher]:
    """Start the launcher of all sessions of a supervisor.

    Args:
        bwrap: launcher for the host's own interpreters.
        home: directory for older artifacts (`nsmd.jail.artifact`).
        enforcement: how sessions' limits are enforced; each session's policy says it.
        templates: fork sessions if possible.
        store, kept: as in `open_templates`.
    """
    bwrap.limits = replace(bwrap.limits, enforcement=enforcement)
    async with (
        bwrap.open_artifacts(home),
        open_templates(
            bwrap, enabled=templates, store=store, kept=kept, uid=bwrap.user.uid
        ) as launcher,
    ):
        yield launcher
