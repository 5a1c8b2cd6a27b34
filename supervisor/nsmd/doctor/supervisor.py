"""Checks of the running supervisor, if any, of what it serves over HTTP and by the bridge, and of
the files and file systems that it needs.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any

import trio

from nsm._version import __version__
from nsm.checks import HostCheck, fail, ok, rows, warn
from nsm.http import token as httptoken
from nsm.http.listen_address import Port, UnixPath, parse_listen
from nsm.wire.errors import NsmError
from nsm.wire.frames import RemoteProtocolError
from nsm.wire.messages import ClientConnection, Failure, Hello, Request, Result
from nsm.wire.status import AuditStatus, Status, SurvivalStatus, read_status
from nsmd.bridge.definitions import read_directory, render
from nsmd.doctor.system import Host
from nsmd.host.listeners import PlaceError, check_way
from nsmd.host.paths import trusted_owners
from nsmd.model.settings import Settings
from nsmd.network.connections import SystemResolver
from nsmd.network.decisions import RefusedError
from nsmd.network.upstream import find_upstream

ANSWER_TIMEOUT_S = 3.0
"""Time for a supervisor to send its hello."""

LITTLE_BYTES = 64 * 1024 * 1024
LITTLE_RUNTIME_BYTES = 1024 * 1024
FEW_INODES = 100

_REMOTE = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "afs"))
_RUNTIME_REMOTE = (
    ", where sockets of this machine do not work",
    "Set NSM_SOCKET to a path on a local disk, in a directory that is yours alone.",
)
_STATE_REMOTE = (
    ": while its server is away, no log and no audit is written",
    "Set XDG_STATE_HOME to a directory on a local disk.",
)


def check_places(host: Host) -> list[HostCheck]:
    """Check the running supervisor, if any, and the file systems it needs."""
    status, runtime = _status(host), os.path.dirname(host.socket)
    temporary = host.variables.get("TMPDIR") or "/tmp"  # noqa: S108
    return rows(
        ("supervisor", _supervisor(host)),
        ("lock", _lock(host)),
        ("log", _log(host)),
        ("audit", _audit(status.audit) if status else None),
        ("restart", _survival(status.survival) if status else None),
        # Without this one, no supervisor starts.
        ("room for runtime", _space(host, runtime, LITTLE_RUNTIME_BYTES, closed=fail)),
        ("room for state", _space(host, host.state, LITTLE_BYTES)),
        ("room for temporary files", _space(host, temporary, LITTLE_BYTES)),
        ("runtime file system", _remote(host, runtime, fail, _RUNTIME_REMOTE)),
        ("state file system", _remote(host, host.state, warn, _STATE_REMOTE)),
    )


def _remote(
    host: Host, path: str, bad: Callable[[str, str], HostCheck], words: tuple[str, str]
) -> HostCheck | None:
    """Check that a directory is on a disk of this machine."""
    kind = host.type_of(path)
    what, fix = words
    return bad(f"{path} is on {kind}{what}", fix) if kind in _REMOTE else None


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
        return fail(f"{host.socket} is not a socket", "Move it out of the way.")
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
    """Greet the supervisor there; `OSError` or `RemoteProtocolError` says that there is none."""
    with closing(_told(path)) as told:
        for message in told:
            if isinstance(message, Hello):
                return message
    raise ConnectionResetError(errno.ECONNRESET, "it hangs up")


def ask(path: str, operation: str) -> Mapping[str, Any]:
    """Ask the supervisor there. An answer that is an error is raised, else as `greet`."""
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


NAME = "MCP over HTTP"

Ask = Callable[[str], Mapping[str, Any] | None]
"""Asks the supervisor at a socket about HTTP; None if none answers."""

_LISTENS = "0A"
"""State of a listening socket in proc_pid_net(5)."""


def ask_supervisor(path: str) -> Mapping[str, Any] | None:
    """Ask the supervisor over its socket, without starting one."""
    try:
        return ask(path, "http")
    except (OSError, NsmError):
        return None  # another row says that


def check_http(host: Host, settings: Settings, *, say: Ask = ask_supervisor) -> list[HostCheck]:
    """Check HTTP; no rows if it is off."""
    if not settings.http.enabled:
        return []
    listen = settings.http.listen
    said = say(host.real(host.socket))
    return rows(
        (NAME, _possible(host, listen) if said is None else _served(host, listen, said)),
        (f"token of {NAME}", _token(host, is_needed=said is not None and bool(said["url"]))),
    )


def _served(host: Host, listen: str, said: Mapping[str, Any]) -> HostCheck:
    """Check the port with the answer of the running supervisor."""
    url, problem = said["url"], said["problem"]
    if not said["enabled"] or said["listen"] != listen:
        now = f"at {said['listen']}" if said["enabled"] else "not at all"
        return warn(f"the supervisor serves it {now}; configured is {listen}", "nsm reload")
    if url and not problem:
        return ok(url)
    other = "" if url else _who_listens(host, listen)
    return warn(
        f"{url or 'not served'}: {problem}{other and f' ({other})'}",
        "Fix that, then: nsm reload",
    )


def _possible(host: Host, listen: str) -> HostCheck:
    """Check what the next supervisor will find."""
    match parse_listen(listen):
        case UnixPath(path=path):
            try:
                check_way(os.path.dirname(host.real(path)), trusted_owners())
            except PlaceError as error:
                fix = "Give `[http] listen` a path in a directory that is yours alone."
                return warn(str(error), fix)
        case Port():
            if other := _who_listens(host, listen):
                return warn(
                    f"no supervisor answers, and {other}",
                    "If that is what keeps sessions, any command of nsm starts a supervisor, "
                    "which goes on with it. If it is not yours, take another `[http] listen`, and "
                    "run: nsm http token --rotate",
                )
    return ok(f"{listen}, once a supervisor runs")


def _who_listens(host: Host, listen: str) -> str:
    """Name the holder of a port for people; empty if there is none, or if it is no port."""
    place = parse_listen(listen)
    if not isinstance(place, Port):
        return ""
    wanted = ipaddress.ip_address(place.host)
    table = "/proc/net/tcp6" if wanted.version == 6 else "/proc/net/tcp"
    every = ipaddress.ip_address("::" if wanted.version == 6 else "0.0.0.0")  # noqa: S104
    for line in (host.read(table) or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[3] != _LISTENS:
            continue
        address, _, number = fields[1].partition(":")
        if int(number, 16) == place.number and _address(address) in (wanted, every):
            whose = "yours" if int(fields[7]) == host.uid else f"user {fields[7]}'s"
            return f"a process of {whose} listens at {listen}"
    return ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse the kernel's form: words of four bytes, each as a number in this machine's order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))


def _token(host: Host, *, is_needed: bool) -> HostCheck:
    path = os.path.join(host.state, "http-token")
    try:
        httptoken.read(host.real(path))
    except FileNotFoundError:
        if not is_needed:
            return ok(f"{path}, once it is served")
        detail = f"nobody is let in: {path} is gone"
        fix = "nsm http token: makes and prints one."
        return warn(detail, fix)
    except httptoken.TokenError as error:
        return warn(
            f"nobody is let in: {error}",
            "nsm http token --rotate: clients need the other one from then on.",
        )
    return ok(path)


MUCH_BYTES = 1 << 30
"""Total size from which on the ledger is mentioned, since nsm deletes nothing of it."""

_FIX = "Until it can be written, no program of the bridge is started."


def check_upstream(host: Host, settings: Settings) -> HostCheck | None:
    """Check the proxy that leads to other hosts; None if there is none."""
    found = find_upstream(settings.network, host.variables, host.home)
    status = _status(host)
    used = found.shown if status is None else status.upstream
    if used != found.shown:
        return warn(
            f"the supervisor uses {used or 'none'}; this shell has {found.shown or 'none'}",
            "Set `[network] upstream` in config.toml, then `nsm reload`. Or give the supervisor "
            "the variables: `systemctl --user import-environment HTTPS_PROXY NO_PROXY`, then "
            "`nsm shutdown`; the next command starts another.",
        )
    try:
        for url in found.urls:
            trio.run(found.check, url, SystemResolver())
    except RefusedError as refused:
        return warn(refused.detail.rstrip("."), "Sessions, boxes and builds reach no host.")
    return ok(f"{used}: it answers") if used else None


def check_bridge(host: Host, settings: Settings) -> list[HostCheck]:
    """Check the bridge. If it is off, only clients that should have programs of it are
    mentioned.
    """
    on = settings.bridge.enabled
    return rows(
        ("programs of the bridge", _definitions(host) if on else None),
        ("audit of the bridge", _bridge_audit(host) if on else None),
        ("programs over HTTP", _over_http(host, settings) if settings.http.enabled else None),
    )


def _definitions(host: Host) -> HostCheck:
    found = read_directory(host.real(host.tools), host.real(host.home))
    names = ", ".join(found.programs) or "none"
    if not found.problems:
        return ok(names)
    wrong = "\n".join(render(problem) for problem in found.problems)
    return warn(
        f"{names}; files with mistakes:\n{wrong}",
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


def _bridge_audit(host: Host) -> HostCheck:
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
        return fail(f"{path} is not your file", f"Move it out of the way: ls -l {path}. {_FIX}")
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
