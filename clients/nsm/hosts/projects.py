"""The project of a client, as a host has it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.hosts.place import socket_of, wanted_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm.hosts.address import RemoteHost


def path_there(host: RemoteHost, path: str) -> str | None:
    """The directory of a host in which a project of this machine lies; None for none.

    A directory that is not here is one of the host.
    """
    if host.project == "none":
        return None
    if is_brought(host, path):
        from nsm.hosts.copies import place_there  # noqa: PLC0415  # of two ways

        return place_there(host, path)
    best = ""
    for here, _ in host.directories:
        if len(here) > len(best) and os.path.commonpath((here, path)) == os.path.normpath(here):
            best = here
    if not best:
        return path
    return os.path.normpath(os.path.join(dict(host.directories)[best], os.path.relpath(path, best)))


def is_brought(host: RemoteHost, path: str) -> bool:
    """Tell whether a project is to be copied to a host."""
    return host.project == "copy" and os.path.isdir(path)


def bring_entry() -> str:
    """Bring the project of an editor's entry to the host of ``NSM_HOST``; returns why not, or
    nothing.
    """
    host = wanted_host()
    path = os.environ.get("PROJECT_DIR") or os.environ.get("CLAUDE_PROJECT_DIR") or os.getcwd()
    path = os.path.abspath(os.path.expanduser(path))
    if host is None or not is_brought(host, path):
        return ""
    from nsm.hosts.copies import bring  # noqa: PLC0415  # of two ways
    from nsm.wire.errors import NsmError  # noqa: PLC0415

    try:
        bring(socket_of(host), path)
    except (NsmError, OSError) as error:
        return str(error)
    return ""


def entry_there(
    variables: Mapping[str, str], directory: str | None
) -> tuple[dict[str, str], str | None]:
    """The variables of an editor's entry and its working directory, as the host of ``NSM_HOST``
    has them.
    """
    host = wanted_host()
    assert host is not None, "the caller has looked"
    changed = dict(variables)
    if directory is not None and is_brought(host, directory):
        # An editor's roots would be places of this machine.
        changed.setdefault("PROJECT_DIR", changed.get("CLAUDE_PROJECT_DIR") or directory)
    for name in ("PROJECT_DIR", "CLAUDE_PROJECT_DIR"):
        if path := changed.pop(name, ""):
            there = path_there(host, os.path.abspath(os.path.expanduser(path)))
            if there is not None:
                changed[name] = there
    # Another machine has no use for the place of a socket, or for variables about ours.
    for name in ("NSM_SOCKET", "NSM_AUTOSTART"):
        changed.pop(name, None)
    return changed, None if directory is None else path_there(host, directory)
