"""The bridge: definitions of programs, and the file that calls are written down in."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nsm.checks import Check
from nsmd.bridge.definitions_index import read_directory, render
from nsmd.doctor.host import Host
from nsmd.model.settings import Settings

MUCH_BYTES = 1 << 30
"""Of all that was ever written down: worth a word, since nsm deletes nothing of it."""

_FIX = "Until it can be written, no program of the bridge is started."


def check_bridge(host: Host, settings: Settings) -> Iterator[Check]:
    """Nothing where it is off, but of who was to have programs of it."""
    if settings.bridge.enabled:
        yield _definitions(host)
        yield _audit(host)
    if settings.http.enabled and settings.http.programs:
        yield from _over_http(host, settings)


def _definitions(host: Host) -> Check:
    name = "programs of the bridge"
    found = read_directory(host.real(host.tools), host.real(host.home))
    names = ", ".join(found.programs) or "none"
    if not found.problems:
        return Check(name=name, status="ok", detail=names)
    wrong = "\n".join(render(problem) for problem in found.problems)
    return Check(
        name=name,
        status="warn",
        detail=f"{names}; files that describe none:\n{wrong}",
        fix="Correct them; `nsm bridge check` looks again. The others can be started meanwhile.",
    )


def _over_http(host: Host, settings: Settings) -> Iterator[Check]:
    """Nothing where all is there: a client over HTTP is not told of what it was to have."""
    there = read_directory(host.real(host.tools), host.real(host.home)).programs
    missing = [
        name for name in settings.http.programs if not settings.bridge.enabled or name not in there
    ]
    if missing:
        why = "no file describes" if settings.bridge.enabled else "the bridge is off:"
        yield Check(
            name="programs over HTTP",
            status="warn",
            detail=f"`[http] programs`: {why} {', '.join(missing)}",
            fix="Correct it, or see `nsm bridge check`."
            if settings.bridge.enabled
            else "Set `[bridge] enabled = true`; then `nsm reload --config`.",
        )


def _audit(host: Host) -> Check:
    name, path = "audit of the bridge", os.path.join(host.state, "audit.log")
    try:
        found = os.lstat(host.real(path))
    except FileNotFoundError:
        return Check(name=name, status="ok", detail=f"{path}, once something is asked for")
    except OSError as error:
        return Check(
            name=name,
            status="fail",
            detail=f"{path} cannot be looked at: {error.strerror}",
            fix=f"See what is in its way: ls -ld {host.state}. {_FIX}",
        )
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return Check(
            name=name,
            status="fail",
            detail=f"{path} is no file of yours",
            fix=f"Move it out of the way: ls -l {path}. {_FIX}",
        )
    if not os.access(host.real(path), os.W_OK):
        return Check(
            name=name,
            status="fail",
            detail=f"{path} may not be written by you (mode {stat.S_IMODE(found.st_mode):04o})",
            fix=f"chmod 600 {path}. {_FIX}",
        )
    own = [each for each in host.names(host.state) if each.startswith("audit.log")]
    size = sum(_size(host.real(os.path.join(host.state, each))) for each in own)
    detail = f"{path}, {size >> 20} MiB in all"
    if size > MUCH_BYTES:
        return Check(
            name=name,
            status="warn",
            detail=detail,
            fix=f"nsm deletes none of it. Move old ones away, if you may: ls {path}.*",
        )
    return Check(name=name, status="ok", detail=detail)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
