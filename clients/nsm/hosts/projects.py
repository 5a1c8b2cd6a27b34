"""The project of a client, as a host has it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.hosts.place import wanted_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm.hosts.address import RemoteHost


def path_there(host: RemoteHost, path: str) -> str | None:
    """The directory of a host in which a project of this machine lies; None for none."""
    if host.project == "none":
        return None
    best = ""
    for here, _ in host.directories:
        if len(here) > len(best) and os.path.commonpath((here, path)) == os.path.normpath(here):
            best = here
    if not best:
        return path
    return os.path.normpath(os.path.join(dict(host.directories)[best], os.path.relpath(path, best)))


def entry_there(
    variables: Mapping[str, str], directory: str | None
) -> tuple[dict[str, str], str | None]:
    """The variables of an editor's entry and its working directory, as the host of ``NSM_HOST``
    has them.
    """
    host = wanted_host()
    assert host is not None, "the caller has looked"
    changed = dict(variables)
    for name in ("PROJECT_DIR", "CLAUDE_PROJECT_DIR"):
        if path := changed.pop(name, ""):
            there = path_there(host, os.path.abspath(os.path.expanduser(path)))
            if there is not None:
                changed[name] = there
    # Another machine has no use for the place of a socket, or for variables about ours.
    for name in ("NSM_SOCKET", "NSM_AUTOSTART"):
        changed.pop(name, None)
    return changed, None if directory is None else path_there(host, directory)
