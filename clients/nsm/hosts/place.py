"""The directory of a host on this machine: its socket, and how to get there.

The socket is OpenSSH's and leads to the supervisor of that host. A file beside it says which host
that is, so that the path is all that a client has to remember.
"""

from __future__ import annotations

import os

from nsm import paths

TYPE_CHECKING = False  # `typing` itself takes 8 ms to import; checkers know this name
if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm.hosts.address import RemoteHost

FACTS = "host.json"
"""The file that says which host a directory is for."""


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


def client_socket(host: str | None = None) -> str:
    """The socket that a client connects to.

    Args:
        host: `ssh://...`, or a name in config.toml; None for ``NSM_HOST``, and this machine where
            that is not set. Empty for this machine.

    Raises:
        PathError: the path is unusable.
        HostError: nobody knows that host.
    """
    found = wanted_host(host)
    return paths.socket_path() if found is None else socket_of(found)


def wanted_host(host: str | None = None) -> RemoteHost | None:
    """The host that a client wants, as `client_socket` is told; None for this machine."""
    wanted = os.environ.get("NSM_HOST", "") if host is None else host
    if not wanted:
        return None
    from nsm.hosts.address import find_host  # noqa: PLC0415  # most clients stay on this machine

    return find_host(wanted)


def socket_of(host: RemoteHost) -> str:
    """The socket of a host; its directory is made if it is missing. A `PathError` if that is not
    safe."""
    directory = hosts_dir()
    for each in (os.path.dirname(directory), directory):
        paths.ensure_private_dir(each)
    directory = os.path.join(directory, host.key)
    paths.ensure_private_dir(directory)
    path = os.path.join(directory, "control.sock")
    # ssh makes its own socket under a longer name first, and renames it.
    paths.check_socket_path(os.path.join(directory, "ssh." + 16 * "x"))
    import json  # noqa: PLC0415  # most clients stay on this machine

    facts = json.dumps(host.facts()).encode()
    place = os.path.join(directory, FACTS)
    if _content(place) != facts:
        paths.replace_file(place, facts)
    return path


def hosts_dir() -> str:
    """The directory of all hosts' directories."""
    return os.path.join(paths.runtime_dir(), "hosts")


def leads_elsewhere(path: str) -> bool:
    """Tell whether a socket is that of a host."""
    return os.path.exists(os.path.join(os.path.dirname(path), FACTS))


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
