"""One session: a fork sets itself up, drops its privileges, and becomes an agent."""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import fcntl
import os
import resource
import struct
import sys

from sandbox.limits import FIXED_LIMITS, at_most
from sandbox.linux import DEFAULT_ACTION, set_handler, set_variables
from sandbox.template.kernel import (
    CAPABILITY_VERSION_3,
    CLONE_NEWCGROUP,
    CLONE_NEWUSER,
    CLOSE_RANGE,
    IFF_RUNNING,
    IFF_UP,
    PR_CAP_AMBIENT,
    PR_CAP_AMBIENT_CLEAR_ALL,
    PR_CAPBSET_DROP,
    PR_SET_NO_NEW_PRIVS,
    SIGCHLD,
    SIOCSIFFLAGS,
    SetupError,
    call,
    libc,
    set_option,
    write_file,
)
from sandbox.template.mounts import (
    POLICY_PATH,
    cover,
    keep_mounts,
    make_copy_on_write,
    make_directories,
    make_file_systems,
    make_root,
    show_policy,
    told_by_proc,
    write_files,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    from sandbox.template.kernel import Filter


SESSION_FD = 3

REQUESTS_FD, GROUP_FD = 4, 5
"""In a session of an image: for workers of its Python."""

MAX_ERROR = 4096

WENT_WELL = b"+"
WENT_WRONG = b"-"

UID = 1000
"""User and group in a session, as in every jail."""

LATE_NAMESPACES = CLONE_NEWCGROUP
"""Namespaces that a fork makes once it is in its control group, which is then the top of what it
sees.
"""

FIRST_PID = 300
"""First process id of a session's programs. Where pids wrap around, the kernel continues from
there, too (RESERVED_PIDS of kernel/pid.c), so none below ever comes back.
"""

COUNTED = {
    # Nothing that code starts gets namespaces of its own: in one it would have privileges.
    "max_user_namespaces": 0,
    "max_mnt_namespaces": 0,
    "max_net_namespaces": 0,
    "max_pid_namespaces": 0,
    # The host's user has 128 for all its processes.
    "max_inotify_instances": 16,
    # And some 10,000 to 1,000,000 of these; a big project has thousands of directories.
    "max_inotify_watches": 16384,
}
"""Limits below /proc/sys/user of a session's own user namespace."""


def become_root(uid: int, gid: int) -> None:
    """Become user 0 in its namespaces, as mounting a devpts takes; the ids are the template's."""
    write_file("/proc/self/setgroups", "deny")
    write_file("/proc/self/uid_map", f"0 {uid} 1")
    write_file("/proc/self/gid_map", f"0 {gid} 1")


def enter_group(fd: int) -> None:
    """Move this process into the control group of a session, by its `cgroup.procs`.

    Where the kernel refuses (before 5.16, not as the one who has opened the file), the supervisor
    does it later, and says so if that fails.
    """
    with contextlib.suppress(OSError):
        os.write(fd, b"0")


def become_user() -> None:
    """Become an ordinary user, in a user namespace that owns none of the others."""
    call("unshare", libc.unshare(CLONE_NEWUSER))
    write_file("/proc/self/uid_map", f"{UID} 0 1")
    write_file("/proc/self/gid_map", f"{UID} 0 1")


def start_loopback(*, names: bool = False) -> None:
    """Start the loopback, perhaps with addresses for `sandbox.names`."""
    any_socket = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)  # as in `Interpreter.start`
    request = struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING)
    number = any_socket.fileno()
    call("loopback", libc.ioctl(number, ctypes.c_ulong(SIOCSIFFLAGS), request))
    any_socket.close()
    if names:
        with contextlib.suppress(OSError):  # then its agent says so
            add_range()


def add_range() -> None:
    """Give the loopback of a network namespace the addresses that `sandbox.names` gives to names,
    and have everybody in it listen on ports below 1024.

    It takes `_socket`, `os` and `struct`, and nothing else of this module: for other jails, a
    program outside of them has it, too.
    """

    def of_four(kind: int, value: bytes) -> bytes:
        return struct.pack("HH", 4 + len(value), kind) + value

    newaddr, newroute, lo = 20, 24, 1
    four, six = bytes((198, 18, 0, 1)), bytes.fromhex("fd6e736d" + "0" * 22 + "01")
    address_4 = struct.pack("BBBBI", _socket.AF_INET, 16, 0, 0, lo) + of_four(2, four)
    address_6 = struct.pack("BBBBI", _socket.AF_INET6, 128, 0, 0, lo)
    # Such a route comes with IPv4 addresses of a loopback only: local, in the table of these.
    route_6 = struct.pack("8BI", _socket.AF_INET6, 112, 0, 0, 255, 3, 254, 2, 0)
    wanted = (
        (newaddr, address_4 + of_four(1, four)),
        (newaddr, address_6 + of_four(1, six)),
        (newroute, route_6 + of_four(1, six[:-1] + b"\0") + of_four(4, struct.pack("I", lo))),
    )
    netlink = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, 0)
    for kind, body in wanted:
        netlink.send(struct.pack("IHHII", 16 + len(body), kind, 0x405, 1, 0) + body)
        error = struct.unpack_from("i", netlink.recv(4096), 16)[0]
        if error and body[0] == _socket.AF_INET:  # IPv6 may be off
            raise OSError(-error, "addresses for names")
    netlink.close()
    # Where no encoding can be imported any more.
    fd = os.open("/proc/sys/net/ipv4/ip_unprivileged_port_start", os.O_WRONLY | os.O_CLOEXEC)
    os.write(fd, b"0")
    os.close(fd)


def leave_low_pids(template_pid: int) -> None:
    """Have no process of the session get the template's process id.

    Some random number generators, OpenSSL's among them, take a process for a fork if its id is
    another one than when they were seeded. The template's is 2 in its namespace, and so would be
    that of each session's interpreter: all would draw the same numbers.
    """
    try:
        write_file("/proc/sys/kernel/ns_last_pid", str(FIRST_PID - 1))
    except SetupError:  # a kernel without CONFIG_CHECKPOINT_RESTORE
        pid = 0
        while pid <= template_pid:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)


def reseed() -> None:
    """Give the session random numbers of its own where no library does that in a fork itself."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def take_variables(variables: Sequence[bytes]) -> bool:
    """Set a session's variables, each `NAME=VALUE`, and have what a Python reads of them at its
    start read again. Return True if PATH was set, so that programs may be in other places."""
    if not variables:
        return False
    named = dict(os.fsdecode(variable).split("=", 1) for variable in variables)
    set_variables(named)
    return "PATH" in named


def session_limits(limits: Mapping[str, int]) -> Mapping[int, int]:
    """Hard limits of everything in the session; interpreters get tighter ones from the agent.

    They are made before the fork, which may not have more than its template.
    """
    wanted = {
        # Counted in the session's own user namespace since Linux 5.14. Two more: the agent, and one
        # that holds the standard input of code.
        resource.RLIMIT_NPROC: limits.get("processes", 256) + 2,
        # The agent takes some, too, whatever code is left.
        resource.RLIMIT_NOFILE: max(256, limits.get("descriptors", 1024)),
        **FIXED_LIMITS,
    }
    return {kind: at_most(kind, value) for kind, value in wanted.items()}


def limit_resources(limits: Mapping[int, int]) -> None:
    for kind, value in limits.items():
        resource.prlimit(0, kind, (value, value))


def drop_privileges(last_capability: int, system_calls: Filter) -> None:
    set_option("no_new_privs", PR_SET_NO_NEW_PRIVS, 1)
    set_option("ambient capabilities", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    drop = libc.prctl
    for capability in range(last_capability + 1):
        if drop(PR_CAPBSET_DROP, capability, 0, 0, 0):
            call("capability bounding set", -1)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    call("capset", libc.capset(header, bytes(24)))
    system_calls.install()


class TemplateFacts:
    """Values of a template for all sessions that are forked from it.

    Attributes:
        told_by_proc: files of /proc that no session may read.
        pid: process id of the template, in its own namespace.
        uid, gid: its user, in its own namespace.
        shows_policies: its jail has a path for its sessions' policies.
        host_network: its sessions have the network that it has, which is the host's.
        requests: socket for requests of workers of an image's Python; None without.
        directories: directories that preloaded modules have made, parents first.
        font_lists: matplotlib's lists of fonts, by path.
    """

    def __init__(self, agent: Any, system_calls: Filter, *, host_network: bool) -> None:
        self.agent = agent
        self.host_network = host_network
        self.system_calls = system_calls
        with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
            self.last_capability = int(file.read())
        self.told_by_proc = told_by_proc()
        self.pid = os.getpid()
        self.uid, self.gid = os.getuid(), os.getgid()
        self.shows_policies = os.path.exists(POLICY_PATH)
        self.worker: Any = None
        self.requests: socket.socket | None = None
        self.directories: Sequence[str] = ()
        self.font_lists: Mapping[str, bytes] = {}
        # Its sessions start there, and have the same variables as in a jail of their own.
        os.environ["PWD"] = "/workspace"  # noqa: S105
        self.variables = frozenset(b"%b=%b" % pair for pair in os.environb.items())
        self.environment = dict(os.environ)


class ForkedSession:
    """Session for one request, prepared before the forks that become it: one for each such request.

    That is the first part of the request (docs/contributing/agent-protocol.md, "Templates"). Raise
    ValueError if a limit is not valid.
    """

    def __init__(self, request: Mapping[str, Any], template: TemplateFacts) -> None:
        self._request = request
        self._template = template
        self._agent = self._prepare_agent()
        self._layers: list[Sequence[int]] = []
        self._limits = session_limits(request["limits"])
        self._workers: tuple[int, int, Mapping[str, str], bool] | None = None

    def _prepare_agent(self) -> Any:
        agent = self._template.agent
        return agent.prepare(
            programs=self._request["programs"],
            workspace="/workspace",
            limits=agent.Limits(self._request["limits"]),
        )

    def become(self, fd: int, own: bytes, group: int) -> NoReturn:
        """Become a session, in a fork of the template; never return.

        Args:
            own: the rest of the request, which is for this fork only.
            group: descriptor of its control group's `cgroup.procs`; negative without.
        """
        policy, *variables = own.split(b"\0")
        try:
            self._keep_only(fd, group)
            self._set_up(policy)
            if take_variables([each for each in variables if each not in self._template.variables]):
                self._agent = self._prepare_agent()
        except BaseException as error:
            self._fail(error)
        become_agent: Callable[..., NoReturn] = self._template.agent.serve
        become_agent(
            self._agent,
            SESSION_FD,
            SESSION_FD,
            prestart=self._request["prestart"],
            rehearse=self._request["rehearse"],
            host_network=self._template.host_network,
            worker=self._template.worker,
            layers=self._layers,
            workers=self._workers,
        )

    def _keep_only(self, fd: int, group: int) -> None:
        """Close everything but the session's socket, the control socket first of all."""
        set_handler(SIGCHLD, DEFAULT_ACTION)
        kept = [fd]
        if self._template.requests is not None:
            more = [each for each in (self._template.requests.fileno(), group) if each >= 0]
            # Above the numbers that they get.
            kept += [fcntl.fcntl(each, fcntl.F_DUPFD, GROUP_FD + 1) for each in more]
            self._workers = (
                REQUESTS_FD,
                GROUP_FD if group >= 0 else -1,
                self._template.environment,
                bool(self._request.get("root")),
            )
        for number, each in enumerate(kept, SESSION_FD):
            os.dup2(each, number, inheritable=False)
        first = SESSION_FD + len(kept)
        everything = ctypes.c_uint(0xFFFF_FFFF)
        if libc.syscall(CLOSE_RANGE, ctypes.c_uint(first), everything, 0) < 0:
            os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.close(null)

    def _set_up(self, policy: bytes) -> None:
        os.setsid()
        become_root(self._template.uid, self._template.gid)
        call("unshare", libc.unshare(LATE_NAMESPACES))
        keep_mounts()
        copied = self._request.get("overlay")
        copy = make_copy_on_write(copied["path"], copied["size_mb"]) if copied else ()
        keeps = bool(self._request["limits"].get("undo"))
        if keeps and copy:
            self._layers.append([os.dup(fd) for fd in copy])
        if root := self._request.get("root"):
            layers = make_root(**root)
            if keeps:
                self._layers.append(layers)
            else:
                for fd in layers:
                    os.close(fd)
        sizes = self._request["sizes"]
        make_file_systems(sizes)
        make_directories(self._template.directories)
        write_files(self._template.font_lists)
        cover(self._template.told_by_proc)
        if policy and self._template.shows_policies:
            show_policy(policy, next(iter(sizes)))
        _socket.sethostname(self._request["hostname"])
        if not self._template.host_network:
            start_loopback(names=bool(self._request.get("names")))
        os.chdir("/workspace")
        self._send_descriptors(copy)
        leave_low_pids(self._template.pid)
        reseed()
        become_user()
        for name, value in COUNTED.items():
            write_file(f"/proc/sys/user/{name}", str(value))
        limit_resources(self._limits)
        drop_privileges(self._template.last_capability, self._template.system_calls)

    @staticmethod
    def _send_descriptors(copy: Sequence[int]) -> None:
        """Give the supervisor a handle on this process, the session's PID 1, and on its copy, which
        is closed here.

        Before descriptors are limited: one in flight counts against that limit, too.
        """
        descriptors = [os.pidfd_open(os.getpid()), *copy[:2]]
        try:
            channel = _socket.socket(fileno=SESSION_FD)
            packed = struct.pack(f"{len(descriptors)}i", *descriptors)
            rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)
            channel.sendmsg([WENT_WELL], [rights])
            channel.detach()
        finally:
            for fd in (descriptors[0], *copy):
                os.close(fd)

    @staticmethod
    def _fail(error: BaseException) -> NoReturn:
        text = str(error) if isinstance(error, SetupError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            os.write(SESSION_FD, WENT_WRONG + text.encode(errors="replace")[:MAX_ERROR])
        os._exit(1)
