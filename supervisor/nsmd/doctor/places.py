"""Checks of the supervisor's socket, lock, directories and free space."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any

from nsm._version import __version__
from nsm.checks import HostCheck, fail, ok, rows, warn
from nsm.wire.connection import ClientConnection
from nsm.wire.errors import NsmError
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.messages import Failure, Hello, Request, Result
from nsm.wire.status import AuditStatus, Status, SurvivalStatus, read_status
from nsmd.doctor.host import Host

ANSWER_TIMEOUT_S = 3.0
"""Time for a supervisor to send its hello."""

LITTLE_BYTES = 64 * 1024 * 1024
LITTLE_RUNTIME_BYTES = 1024 * 1024
FEW_INODES = 100

_REMOTE = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "afs"))


def check_places(host: Host) -> list[HostCheck]:
    """Check the running supervisor, if any, and the file systems it needs."""
    status, runtime = _status(host), os.path.dirname(host.socket)
    temporary = host.variables.get("TMPDIR") or "/tmp"  # noqa: S108
    return rows(
        ("supervisor", _supervisor(host)),
        ("lock", _lock(host)),
        ("log", _log(host)),
        ("audit", _audit(status.audit) if status else None),
        ("survival", _survival(status.survival) if status else None),
        # Without this one, no supervisor starts.
        ("room for runtime", _space(host, runtime, LITTLE_RUNTIME_BYTES, closed=fail)),
        ("room for state", _space(host, host.state, LITTLE_BYTES)),
        ("room for temporary files", _space(host, temporary, LITTLE_BYTES)),
        ("runtime file system", _runtime_file_system(runtime, host.type_of(runtime))),
        ("state file system", _state_file_system(host.state, host.type_of(host.state))),
    )


def _runtime_file_system(path: str, kind: str) -> HostCheck | None:
    if kind not in _REMOTE:
        return None
    return fail(
        f"{path} is on {kind}, where sockets of this machine do not work",
        "Set NSM_SOCKET to a path on a local disk, in a directory that is yours alone.",
    )


def _state_file_system(path: str, kind: str) -> HostCheck | None:
    if kind not in _REMOTE:
        return None
    return warn(
        f"{path} is on {kind}: while its server is away, no log and no audit is written",
        "Set XDG_STATE_HOME to a directory on a local disk.",
    )


def _supervisor(host: Host) -> HostCheck:
    path = host.real(host.socket)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return ok("none runs; the first command starts one")
    except OSError as error:
        return fail(
            f"{host.socket} cannot be looked at: {error.strerror}",
            "Set NSM_SOCKET to a path in a directory that is yours alone.",
        )
    if not stat.S_ISSOCK(status.st_mode):
        return fail(f"{host.socket} is no socket", "Move it out of the way.")
    if status.st_uid not in {host.uid, 0} or status.st_mode & 0o077:
        return fail(
            f"{host.socket} belongs to user {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):04o}; expected yours alone, 0600",
            f"Remove it, if you did not put it there: rm {host.socket}",
        )
    try:
        theirs = greet(path)
    except ConnectionRefusedError:
        return ok(f"none runs; it left {host.socket} behind, which the next one replaces")
    except (OSError, RemoteProtocolError) as error:
        return warn(
            f"one listens on {host.socket}, and does not answer: {error}",
            "See its log; if it hangs, end it, and the next command starts another: its "
            "sessions are taken up.",
        )
    detail = f"{theirs.program_version}, process {theirs.pid}"
    if theirs.program_version != host.version:
        return warn(
            f"{detail}; the program installed now is {host.version}", "nsm reload: sessions stay."
        )
    return ok(f"{detail}, the same as the program installed now")


def greet(path: str) -> Hello:
    """Greet the supervisor that listens there.

    Raises:
        OSError, RemoteProtocolError: there is no supervisor.
    """
    with closing(_told(path)) as told:
        for message in told:
            if isinstance(message, Hello):
                return message
    raise ConnectionResetError(errno.ECONNRESET, "it hangs up")


def ask(path: str, operation: str) -> Mapping[str, Any]:
    """Ask the supervisor there.

    Raises:
        OSError, RemoteProtocolError: there is no supervisor.
        NsmError: the answer is an error.
    """
    with closing(_told(path, Request(1, operation, {}))) as told:
        for message in told:
            if isinstance(message, Result):
                return message.result
            if isinstance(message, Failure):
                raise message.error
    raise ConnectionResetError(errno.ECONNRESET, "it hangs up")


def _told(path: str, request: Request | None = None) -> Generator[object]:
    """Send a request and yield the messages until the connection ends."""
    connection = ClientConnection()
    ours = Hello(name="nsm doctor", program_version=__version__, rights=("read",))
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(ANSWER_TIMEOUT_S)
        link.connect(path)
        link.sendall(connection.send(ours))
        while data := link.recv(65536):
            connection.receive_data(data)
            while (message := connection.next_message()) is not None:
                if isinstance(message, Hello) and request is not None:
                    link.sendall(connection.send(request))
                yield message


def _lock(host: Host) -> HostCheck | None:
    """Check whether somebody holds the supervisor's lock while nobody listens."""
    try:
        found = os.lstat(host.real(host.lock))
    except OSError:
        return None
    if host.exists(host.socket):
        return None
    for line in (host.read("/proc/locks") or "").splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[5].endswith(f":{found.st_ino}") and fields[1] == "FLOCK":
            return fail(
                f"process {fields[4]} holds {host.lock}, and nothing listens on "
                f"{host.socket}: its socket was removed, and it has not made it again",
                f"Make way for the next one, which goes on with its sessions: kill -9 {fields[4]}",
            )
    return None


def _log(host: Host) -> HostCheck | None:
    log = os.path.join(host.state, "supervisor.log")
    if not os.path.lexists(place := host.real(log)):
        return None
    if os.path.isfile(place) and os.access(place, os.W_OK):
        return ok(log)
    return warn(
        f"{log} cannot be written: what the supervisor says is lost",
        f"Move it away, and the supervisor makes a new one: mv {log} {log}.old",
    )


def _status(host: Host) -> Status | None:
    """Ask the supervisor for its status; None if none answers: another row has the reason."""
    try:
        return read_status(ask(host.real(host.socket), "status"))
    except (OSError, NsmError, RemoteProtocolError):
        return None


def _audit(audit: AuditStatus) -> HostCheck:
    if not audit.enabled:
        return ok("off, as configured")
    if audit.problem or audit.dropped:
        why = audit.problem or "there was no room or no time for them"
        return warn(
            f"{audit.dropped} lines of {audit.path} are lost: {why}",
            f"See if it is yours and there is room: ls -l {audit.path}; df -h {audit.path}",
        )
    return ok(audit.path)


def _survival(survival: SurvivalStatus) -> HostCheck:
    if survival.unread and not survival.problem:
        return warn(
            survival.unread,
            "Install a version that can read it, then: nsm reload. Or end the sessions: nsm ps, "
            "nsm kill",
        )
    if survival.kind != "none" and not survival.problem:
        who = "systemd" if survival.kind == "systemd" else "a holder process"
        return ok(f"{who} keeps the sessions when the supervisor is killed")
    return warn(
        survival.problem or "sessions end with the supervisor",
        "The log has the reason. `nsm reload` restarts the supervisor and keeps its sessions.",
    )


def _space(
    host: Host, path: str, little: int, *, closed: Callable[[str, str], HostCheck] = warn
) -> HostCheck:
    # A missing directory will be made below one that exists.
    where = host.real(path)
    while not os.path.isdir(where) and os.path.dirname(where) != where:
        where = os.path.dirname(where)
    try:
        found = os.statvfs(where)
    except OSError as error:
        return fail(
            f"{path} cannot be looked at: {error.strerror}",
            f"Make it a directory that is yours: ls -ld {path}",
        )
    if not os.access(where, os.R_OK | os.W_OK | os.X_OK):
        mode = stat.S_IMODE(os.stat(where).st_mode)
        return closed(f"{where} cannot be written by you (mode {mode:04o})", f"chmod u+rwx {where}")
    free = found.f_bavail * found.f_frsize
    detail = f"{free >> 20} MiB in {path}"
    if found.f_flag & os.ST_RDONLY:
        return warn(
            f"{path} is read-only",
            "Mount it writable; without, nothing is kept there, and no supervisor starts where "
            "its socket cannot be.",
        )
    if free < little:
        return warn(
            f"{detail}; less than {little >> 20} MiB",
            f"Make room: df -h {path}. Meanwhile sessions run, and log and audit lose lines.",
        )
    if found.f_files and found.f_favail < FEW_INODES:
        return warn(f"{detail}, and {found.f_favail} more files", f"Make room: df -i {path}")
    return ok(detail)
