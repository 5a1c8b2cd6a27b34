"""Checks of the bridge: definitions of programs, and the ledger of calls."""

from __future__ import annotations

import os
import stat

from nsm.checks import HostCheck, fail, ok, rows, warn
from nsmd.bridge.definitions import read_directory, render
from nsmd.doctor.host import Host
from nsmd.model.settings import Settings

MUCH_BYTES = 1 << 30
"""Total size from which on the ledger is mentioned, since nsm deletes nothing of it."""

_FIX = "Until it can be written, no program of the bridge is started."


def check_bridge(host: Host, settings: Settings) -> list[HostCheck]:
    """Check the bridge. If it is off, only clients that should have programs of it are
    mentioned.
    """
    on = settings.bridge.enabled
    return rows(
        ("programs of the bridge", _definitions(host) if on else None),
        ("audit of the bridge", _audit(host) if on else None),
        ("programs over HTTP", _over_http(host, settings) if settings.http.enabled else None),
    )


def _definitions(host: Host) -> HostCheck:
    found = read_directory(host.real(host.tools), host.real(host.home))
    names = ", ".join(found.programs) or "none"
    if not found.problems:
        return ok(names)
    wrong = "\n".join(render(problem) for problem in found.problems)
    return warn(
        f"{names}; files that describe none:\n{wrong}",
        "Correct them; `nsm bridge check` looks again. The others can be started meanwhile.",
    )


def _over_http(host: Host, settings: Settings) -> HostCheck | None:
    """Check the programs for clients over HTTP; None if all exist. Such a client gets no other
    error.
    """
    wanted = settings.http.programs
    if wanted and not settings.bridge.enabled:
        return warn(
            f"`[http] programs`: the bridge is off: {', '.join(wanted)}",
            "Set `[bridge] enabled = true`; then `nsm reload --config`.",
        )
    there = read_directory(host.real(host.tools), host.real(host.home)).programs
    if not (missing := [name for name in wanted if name not in there]):
        return None
    return warn(
        f"`[http] programs`: no file describes {', '.join(missing)}",
        "Correct it, or see `nsm bridge check`.",
    )


def _audit(host: Host) -> HostCheck:
    path = os.path.join(host.state, "audit.log")
    try:
        found = os.lstat(host.real(path))
    except FileNotFoundError:
        return ok(f"{path}, once something is asked for")
    except OSError as error:
        return fail(
            f"{path} cannot be looked at: {error.strerror}",
            f"See what is in its way: ls -ld {host.state}. {_FIX}",
        )
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return fail(f"{path} is no file of yours", f"Move it out of the way: ls -l {path}. {_FIX}")
    if not os.access(host.real(path), os.W_OK):
        return fail(
            f"{path} may not be written by you (mode {stat.S_IMODE(found.st_mode):04o})",
            f"chmod 600 {path}. {_FIX}",
        )
    own = [each for each in host.names(host.state) if each.startswith("audit.log")]
    size = sum(_size(host.real(os.path.join(host.state, each))) for each in own)
    detail = f"{path}, {size >> 20} MiB in all"
    if size > MUCH_BYTES:
        return warn(detail, f"nsm deletes none of it. Move old ones away, if you may: ls {path}.*")
    return ok(detail)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
