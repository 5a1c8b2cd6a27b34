"""The project of a client, as a host has it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
