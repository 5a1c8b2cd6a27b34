"""Where the supervisor is reached and keeps things: socket, lock, directories, free space."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from nsm._version import __version__
from nsm.checks import Check
from nsm.wire.connection import ClientConnection
from nsm.wire.errors import NsmError
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.messages import Failure, Hello, Request, Result
from nsm.wire.status import AuditStatus, Status, SurvivalStatus
from nsmd.doctor.host import Host

ANSWER_TIMEOUT_S = 3.0
"""For a supervisor to introduce itself."""

RUNTIME = "room for runtime"
"""The directory without which no supervisor starts."""

LITTLE_BYTES = 64 * 1024 * 1024
LITTLE_RUNTIME_BYTES = 1024 * 1024
FEW_INODES = 100

_REMOTE = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "afs"))


def check_places(host: Host) -> Iterator[Check]:
    """The supervisor that runs, if any, and the file systems it needs."""
    yield _supervisor(host)
    yield from _lock(host)
    yield from _records(host)
    runtime = os.path.dirname(host.socket)
    for name, path, little in (
        (RUNTIME, runtime, LITTLE_RUNTIME_BYTES),
        ("room for state", host.state, LITTLE_BYTES),
        ("room for temporary files", host.variables.get("TMPDIR") or "/tmp", LITTLE_BYTES),  # noqa: S108
    ):
        yield _space(host, name, path, little)
    if (kind := host.type_of(runtime)) in _REMOTE:
        yield Check(
            name="runtime file system",
            status="fail",
            detail=f"{runtime} is on {kind}, where sockets of this machine do not work",
            fix="Set NSM_SOCKET to a path on a local disk, in a directory that is yours alone.",
        )
    if (kind := host.type_of(host.state)) in _REMOTE:
        yield Check(
            name="state file system",
            status="warn",
            detail=f"{host.state} is on {kind}: while its server is away, no log and no audit is "
            "written",
            fix="Set XDG_STATE_HOME to a directory on a local disk.",
        )


def _supervisor(host: Host) -> Check:
    name, path = "supervisor", host.real(host.socket)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return Check(name=name, status="ok", detail="none runs; the first command starts one")
    except OSError as error:
        return Check(
            name=name,
            status="fail",
            detail=f"{host.socket} cannot be looked at: {error.strerror}",
            fix="Set NSM_SOCKET to a path in a directory that is yours alone.",
        )
    if not stat.S_ISSOCK(status.st_mode):
        return Check(
            name=name,
            status="fail",
            detail=f"{host.socket} is no socket",
            fix="Move it out of the way.",
        )
    if status.st_uid not in {host.uid, 0} or status.st_mode & 0o077:
        return Check(
            name=name,
            status="fail",
            detail=f"{host.socket} belongs to user {status.st_uid}, mode "
            f"{stat.S_IMODE(status.st_mode):04o}; expected yours alone, 0600",
            fix=f"Remove it, if you did not put it there: rm {host.socket}",
        )
    try:
        theirs = greet(path)
    except ConnectionRefusedError:
        detail = f"none runs; it left {host.socket} behind, which the next one replaces"
        return Check(name=name, status="ok", detail=detail)
    except (OSError, RemoteProtocolError) as error:
        return Check(
            name=name,
            status="warn",
            detail=f"one listens on {host.socket}, and does not answer: {error}",
            fix="See its log; if it hangs, end it, and the next command starts another: its "
            "sessions are taken up.",
        )
    detail = f"{theirs.program_version}, process {theirs.pid}"
    if theirs.program_version != host.version:
        return Check(
            name=name,
            status="warn",
            detail=f"{detail}; the program installed now is {host.version}",
            fix="nsm reload: sessions stay.",
        )
    return Check(name=name, status="ok", detail=f"{detail}, the same as the program installed now")


def greet(path: str) -> Hello:
    """Greet the supervisor that listens there.

    Raises:
        OSError, RemoteProtocolError: nobody who introduces itself as a supervisor.
    """
    with closing(_told(path)) as told:
        for message in told:
            if isinstance(message, Hello):
                return message
    raise ConnectionResetError(errno.ECONNRESET, "it hangs up")


def ask(path: str, operation: str) -> Mapping[str, Any]:
    """Ask the supervisor there.

    Raises:
        OSError, RemoteProtocolError: nobody answers as a supervisor.
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


def _lock(host: Host) -> Iterator[Check]:
    """Check whether somebody holds the supervisor's lock while nobody listens."""
    try:
        found = os.lstat(host.real(host.lock))
    except OSError:
        return
    if host.exists(host.socket):
        return
    for line in (host.read("/proc/locks") or "").splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[5].endswith(f":{found.st_ino}") and fields[1] == "FLOCK":
            yield Check(
                name="lock",
                status="fail",
                detail=f"process {fields[4]} holds {host.lock}, and nothing listens on "
                f"{host.socket}: its socket was removed, and it has not made it again",
                fix=f"Make way for the next one, which goes on with its sessions: kill -9 "
                f"{fields[4]}",
            )


def _records(host: Host) -> Iterator[Check]:
    """Rows on the log, the audit, and what keeps sessions when the supervisor is killed.

    Only a running supervisor knows the state of the last two.
    """
    log = os.path.join(host.state, "supervisor.log")
    if os.path.lexists(place := host.real(log)):
        if os.path.isfile(place) and os.access(place, os.W_OK):
            yield Check(name="log", status="ok", detail=log)
        else:
            yield Check(
                name="log",
                status="warn",
                detail=f"{log} cannot be written: what the supervisor says is lost",
                fix=f"Move it away, and the supervisor makes a new one: mv {log} {log}.old",
            )
    try:
        told = Status.from_wire(ask(host.real(host.socket), "status"))
    except (OSError, NsmError, RemoteProtocolError):
        return  # the row of the supervisor has the reason
    if (audit := told.audit) is not None:
        yield _audit(audit)
    if (survival := told.survival) is not None:
        yield _survival(survival)


def _audit(audit: AuditStatus) -> Check:
    name = "audit"
    if not audit.enabled:
        return Check(name=name, status="ok", detail="off, as configured")
    if audit.problem or audit.dropped:
        why = audit.problem or "there was no room or no time for them"
        return Check(
            name=name,
            status="warn",
            detail=f"{audit.dropped} lines of {audit.path} are lost: {why}",
            fix=f"See if it is yours and there is room: ls -l {audit.path}; df -h {audit.path}",
        )
    return Check(name=name, status="ok", detail=audit.path)


def _survival(survival: SurvivalStatus) -> Check:
    name = "survival"
    if survival.kind != "none" and not survival.problem:
        who = "systemd" if survival.kind == "systemd" else "a holder process"
        detail = f"{who} keeps the sessions when the supervisor is killed"
        return Check(name=name, status="ok", detail=detail)
    why = f": {survival.problem}" if survival.problem else ""
    return Check(
        name=name,
        status="warn",
        detail=f"sessions may end with the supervisor{why}",
        fix="The log has the reason. `nsm reload` restarts the supervisor and keeps its sessions.",
    )


def _space(host: Host, name: str, path: str, little: int) -> Check:
    # A directory that is not there yet comes below one that is.
    where = host.real(path)
    while not os.path.isdir(where) and os.path.dirname(where) != where:
        where = os.path.dirname(where)
    try:
        found = os.statvfs(where)
    except OSError as error:
        return Check(
            name=name,
            status="fail",
            detail=f"{path} cannot be looked at: {error.strerror}",
            fix=f"Make it a directory that is yours: ls -ld {path}",
        )
    if not os.access(where, os.R_OK | os.W_OK | os.X_OK):
        mode = stat.S_IMODE(os.stat(where).st_mode)
        return Check(
            name=name,
            status="fail" if name == RUNTIME else "warn",
            detail=f"{where} cannot be written by you (mode {mode:04o})",
            fix=f"chmod u+rwx {where}",
        )
    free = found.f_bavail * found.f_frsize
    detail = f"{free >> 20} MiB in {path}"
    if found.f_flag & os.ST_RDONLY:
        return Check(
            name=name,
            status="warn",
            detail=f"{path} is read-only",
            fix="Mount it writable; without, nothing is kept there, and no supervisor starts where "
            "its socket cannot be.",
        )
    if free < little:
        return Check(
            name=name,
            status="warn",
            detail=f"{detail}; less than {little >> 20} MiB",
            fix=f"Make room: df -h {path}. Meanwhile sessions run, and log and audit lose lines.",
        )
    if found.f_files and found.f_favail < FEW_INODES:
        return Check(
            name=name,
            status="warn",
            detail=f"{detail}, and {found.f_favail} more files",
            fix=f"Make room: df -i {path}",
        )
    return Check(name=name, status="ok", detail=detail)
