"""Forks sessions from one Python that is up already; runs as a long-lived process in a jail.

It starts an interpreter, imports what code usually imports, and then does nothing but fork. Each
fork gives itself namespaces, file systems and limits of its own, drops every privilege, and becomes
an agent (`sandbox_agent.serve`). Code of users runs only in there, never in this process.

The control socket is descriptor 0, SOCK_SEQPACKET; docs/agent-protocol.md, "Templates", has its
messages. End-of-file on it ends this process, not the sessions.

Runs on Python 3.9 and newer, standard library only. The jail must allow nested user namespaces, and
nothing may be mounted over /proc or below it, else the kernel refuses a fork its own /proc.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

COMMON = """
    abc argparse array ast base64 bisect calendar collections contextlib copy csv datetime
    decimal difflib enum errno fnmatch fractions functools getpass glob hashlib heapq inspect
    io itertools json linecache locale logging math numbers operator pathlib pickle platform pprint
    queue random re secrets shlex shutil signal socket string struct subprocess
    tempfile textwrap threading time timeit tokenize traceback types typing unicodedata urllib.parse
    uuid warnings weakref zlib
"""
"""What a fork has without importing it: most code begins with some of these. All are safe to fork:
none starts a thread, and what draws random numbers does so anew in a fork."""

SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Asked of numeric libraries while they are preloaded: who has threads must not be forked."""

PROTOCOL = 1
"""Of requests and answers (docs/agent-protocol.md, Templates): others may speak to this template
than those that it was installed with."""

SESSION_FD = 3
REQUEST_BYTES = 64 * 1024
FD_BYTES = struct.calcsize("i")
MAX_ERROR = 4096
MAX_REASON = 300

SCRATCH = ("/workspace", "/tmp")  # noqa: S108 - in the jail
"""Directories that modules may write to while they are preloaded. They are emptied afterwards, and
each fork mounts file systems of its own there."""

OWN_PLACES = ("/run/nsm", "/proc", "/dev", *SCRATCH)
"""Directories of the jail itself: files that are loaded from there are not the host's."""

MAX_LOADED_DIRECTORIES = 256
MAX_LOADED_BYTES = 40 * 1024
"""Bounds of the list of loaded files: the whole message must be smaller than 64 KiB."""

WENT_WELL = b"+"
WENT_WRONG = b"-"

UID = 1000
"""User and group in a session, as in every jail."""

POLICY_PATH = "/run/nsm/policy.json"
"""Where a session finds its rules."""

MAX_SCRATCH_DIRECTORIES = 64
"""Empty ones that each fork gets, since a preloaded module may count on those that it has made."""

# sched.h, sys/mount.h, sys/prctl.h, linux/capability.h, linux/sockios.h, net/if.h
CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 1 << 14, 1 << 18
MNT_DETACH = 2
PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 22, 24, 36, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
SECCOMP_MODE_FILTER = 2
CAPABILITY_VERSION_3 = 0x2008_0522
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40

NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET

LATE_NAMESPACES = CLONE_NEWCGROUP
"""What a fork makes when it is in its control group: from there on down is all that it sees."""

INODES_PER_MB = 128
"""Each takes about 1 KiB of the kernel's memory, which the size of a tmpfs does not count."""

FIRST_PID = 300
"""Of what PID 1 starts in a session. Where pids wrap around, the kernel goes on from there, too
(RESERVED_PIDS of kernel/pid.c), so none below ever comes back."""

TERMINALS = 128
"""At once in a session, of some 3,000 that all of the machine's containers have together."""

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

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

MOUNT_SETATTR = 442
"""Number of mount_setattr(2), on every architecture; Linux 5.12."""
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, AT_FDCWD, AT_RECURSIVE = 1, 2, -100, 0x8000

CLOSE_RANGE = 436
"""Number of close_range(2), on every architecture; Linux 5.9."""

set_handler: Callable[[int, Any], Any] = importlib.import_module("_signal").signal
DEFAULT_ACTION: int = importlib.import_module("_signal").SIG_DFL
"""As in the agent."""

libc = ctypes.CDLL(None, use_errno=True)
holding_lock = ctypes.PyDLL(None, use_errno=True)
"""The same; calls of it do not let go of Python's lock."""


CLONE = {"x86_64": 56, "aarch64": 220}
"""Number of clone(2) by machine; what follows the flags is zero, whatever its order is there."""


def clone(namespaces: int) -> int:
    """clone(2): a fork that is in namespaces of its own from its first instant.

    The C library's way takes a fork, an unshare and a fork, a third more time. It would also run
    what Python and libraries want to have run after a fork for the sake of threads: there are none
    here, and the agent starts interpreters with `os.fork`, which does it. The child's C library
    takes the thread id of its parent for its own; only raise(3) and abort(3) use it, and the
    latter ends the process in another way then.

    Returns:
        The process id; 0 in the child.

    Raises:
        OSError: the kernel refuses.
    """
    number = CLONE[os.uname().machine]
    flags = ctypes.c_ulong(namespaces | signal.SIGCHLD)
    nothing = ctypes.c_ulong(0)
    pid: int = holding_lock.syscall(number, flags, nothing, nothing, nothing, nothing)
    if pid < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return pid


class SetupError(Exception):
    """A step of a fork's set-up failed; the message says which, and what the kernel said."""


def call(what: str, result: int) -> None:
    """
    Raises:
        SetupError: a function of the C library returned -1.
    """
    if result < 0:
        raise SetupError(f"{what}: {os.strerror(ctypes.get_errno())}")


def prctl(what: str, option: int, *arguments: int) -> None:
    given = (*arguments, 0, 0, 0, 0)[:4]
    call(what, libc.prctl(option, *(ctypes.c_ulong(value) for value in given)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    call(
        f"mount {kind or source or 'private'} on {target}",
        libc.mount(
            source.encode() or None,
            target.encode(),
            kind.encode() or None,
            ctypes.c_ulong(flags),
            options.encode() or None,
        ),
    )


def write_file(path: str, text: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}") from error


class Filter:
    """A seccomp filter: a program in classic BPF, as the kernel takes it.

    Args:
        program: an array of `struct sock_filter`.
    """

    class _Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    def __init__(self, program: bytes) -> None:
        if not program or len(program) % 8:
            raise SetupError(f"the system call filter has {len(program)} bytes")
        self._instructions = ctypes.create_string_buffer(program, len(program))
        self._program = self._Program(len(program) // 8, ctypes.addressof(self._instructions))

    def install(self) -> None:
        """For this process and all that it starts, for ever."""
        prctl("seccomp", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(self._program))


# ---------------------------------------------------------------------------------- one session


def become_root(uid: int, gid: int) -> None:
    """Becomes user 0 of its namespaces, which mounting a devpts takes.

    Args:
        uid, gid: the template's.
    """
    write_file("/proc/self/setgroups", "deny")
    write_file("/proc/self/uid_map", f"0 {uid} 1")
    write_file("/proc/self/gid_map", f"0 {gid} 1")


def enter_group(fd: int) -> None:
    """Moves this process into the control group of a session.

    Where the kernel refuses (before 5.16, not as the one who has opened the file), the supervisor
    does it later, and says so if that fails.

    Args:
        fd: of the group's `cgroup.procs`.
    """
    with contextlib.suppress(OSError):
        os.write(fd, b"0")


def become_user() -> None:
    """Becomes an ordinary user, in a user namespace that owns none of the others."""
    call("unshare", libc.unshare(CLONE_NEWUSER))
    write_file("/proc/self/uid_map", f"{UID} 0 1")
    write_file("/proc/self/gid_map", f"{UID} 0 1")


def make_copy_on_write(path: str, size_mb: int) -> Sequence[int]:
    """Mounts an overlay over a directory: what is changed there is changed in a copy, in memory.

    The copy lies in a file system that is nowhere to be seen but through the overlay: the kernel
    believes its attributes, so code is not to set them.

    Args:
        path: of the directory, which stays as it is below.
        size_mb: what changes may take, MiB.

    Returns:
        Descriptors: the directory of what was changed, and the overlay.
    """
    hidden = "/workspace"  # as good as any; the session's own comes over it in a moment
    options = f"size={size_mb}m,nr_inodes={size_mb * INODES_PER_MB},mode=0700"
    mount("tmpfs", hidden, "tmpfs", MS_NOSUID | MS_NODEV, options)
    changed, work = f"{hidden}/changed", f"{hidden}/work"
    try:
        os.mkdir(work, 0o700)
        os.mkdir(changed, 0o700)
        os.chmod(changed, os.stat(path).st_mode & 0o777)
        try:
            # Without, the kernel mounts it all the same, and directories cannot be made anew.
            os.setxattr(changed, "user.overlay.tried", b"")
            os.removexattr(changed, "user.overlay.tried")
        except OSError as error:
            what = "files in memory have no attributes here, which takes Linux 6.6"
            raise SetupError(f"copy of {path}: {what}: {error.strerror}") from error
        descriptors = [os.open(changed, DIRECTORY)]
        # Not by its path, in which the options' own separators may occur.
        os.chdir(path)
        # userxattr: the kernel takes no other attributes from a user namespace. Linux 5.11, and
        # 6.6 for a tmpfs.
        options = f"lowerdir=.,upperdir={changed},workdir={work},userxattr"
        mount("overlay", path, "overlay", MS_NOSUID | MS_NODEV, options)
        descriptors.append(os.open(path, DIRECTORY))
        os.chdir("/")
    except OSError as error:
        raise SetupError(f"copy of {path}: {error.strerror}") from error
    call(f"umount {hidden}", libc.umount2(hidden.encode(), MNT_DETACH))
    return descriptors


def keep_mounts() -> None:
    """Has all that the template's jail shows stay as it is, and read-only.

    What is mounted on the host below a directory that a jail shows, such as the project, appears in
    the jail as well if the host's mounts are shared, as systemd has them; and writable, since that
    bwrap has made the directory read-only does not concern what came later.
    """
    wanted = struct.pack("4Q", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, MS_PRIVATE, 0)
    everything = ctypes.c_uint(AT_RECURSIVE)
    if libc.syscall(MOUNT_SETATTR, AT_FDCWD, b"/", everything, wanted, len(wanted)) == 0:
        return
    if ctypes.get_errno() != errno.ENOSYS:
        raise SetupError(f"mount_setattr: {os.strerror(ctypes.get_errno())}")
    mount("", "/", "", MS_REC | MS_PRIVATE)  # before Linux 5.12


def make_file_systems(sizes: Mapping[str, int]) -> None:
    """Mounts what a session has for itself.

    Args:
        sizes: path → MiB.
    """
    for path, size_mb in sizes.items():
        mode = "0755" if path == "/workspace" else "1777"
        options = f"size={size_mb}m,nr_inodes={size_mb * INODES_PER_MB},mode={mode}"
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options)
    # The template's own is one file system for all: in it, terminals of others would show.
    options = f"ptmxmode=0666,mode=0620,max={TERMINALS}"
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
    # After the fork into the new PID namespace, whose processes it shows.
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def make_directories(paths: Sequence[str]) -> None:
    """Make the directories that preloaded modules have made for themselves."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.mkdir(path, 0o700)


def told_by_proc() -> Sequence[str]:
    """Files of /proc that tell code, whatever its namespaces, what is not for it to know."""
    told: list[str] = []
    if os.path.exists("/proc/keys"):
        told.append("/proc/keys")  # names the keys that the host's user has in the kernel
    with contextlib.suppress(OSError), open("/proc/kallsyms", "rb") as file:
        # Where the kernel's functions are, if kernel.kptr_restrict and kernel.perf_event_paranoid
        # have been lowered; else zeros.
        if any(word.strip(b"0") for word in file.readline().split()[:1]):
            told.append("/proc/kallsyms")
    return told


def cover(paths: Sequence[str]) -> None:
    """Has files be empty."""
    for path in paths:
        mount("/dev/null", path, "", MS_BIND)


def show_policy(text: str, place: str) -> None:
    """Shows a session its rules, where its template has an empty file for them.

    The file is the session's own, whose code could change it but for the read-only mount, which is
    all that leads to it in the end.

    Args:
        place: a file system of the session's own.
    """
    original = f"{place}/.policy"
    fd = os.open(original, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    mount(original, POLICY_PATH, "", MS_BIND)
    read_only = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount("", POLICY_PATH, "", read_only)
    os.unlink(original)


def start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        number = any_socket.fileno()
        request = struct.pack("16sH14x", b"lo", IFF_UP | IFF_RUNNING)
        call("loopback", libc.ioctl(number, ctypes.c_ulong(SIOCSIFFLAGS), request))


def leave_low_pids(template_pid: int) -> None:
    """Has no process of the session get the template's process id.

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
    """Gives the session random numbers of its own where no library does that in a fork itself."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def take_variables(variables: Mapping[str, str]) -> None:
    """Sets a session's variables, and has what a Python reads of them at its start read again."""
    os.environ.update(variables)
    if "TZ" in variables:
        importlib.import_module("time").tzset()
    if any(name == "LANG" or name.startswith("LC_") for name in variables):
        c_library = importlib.import_module("_locale")
        with contextlib.suppress(c_library.Error):  # one that is not there: the template's stays
            c_library.setlocale(c_library.LC_CTYPE, "")


def limit_resources(limits: Mapping[str, int]) -> None:
    """Hard limits of everything in the session; interpreters get tighter ones from the agent."""
    processes = limits.get("processes", 256) + 2  # the agent, and one to look at input with
    wanted = {
        # Counted in the session's own user namespace since Linux 5.14.
        resource.RLIMIT_NPROC: processes,
        # The agent takes some, too, whatever code is left.
        resource.RLIMIT_NOFILE: max(256, limits.get("descriptors", 1024)),
        resource.RLIMIT_CORE: 1,  # as in the agent, with which interpreters have the next two, too
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_MEMLOCK: 64 * 1024,
        resource.RLIMIT_SIGPENDING: 1024,
    }
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def drop_privileges(last_capability: int, system_calls: Filter) -> None:
    prctl("no_new_privs", PR_SET_NO_NEW_PRIVS, 1)
    prctl("ambient capabilities", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in range(last_capability + 1):
        prctl("capability bounding set", PR_CAPBSET_DROP, capability)
    header = struct.pack("Ii", CAPABILITY_VERSION_3, 0)
    call("capset", libc.capset(header, bytes(24)))
    system_calls.install()


class Session:
    """What becomes of one fork.

    Args:
        request: as in docs/agent-protocol.md, "Templates".
    """

    def __init__(self, request: Mapping[str, Any], template: Template) -> None:
        self._request = request
        self._template = template

    def become(self, fd: int) -> NoReturn:
        """Runs in a fork of the template and never returns.

        Args:
            fd: the session's socket.
        """
        try:
            self._keep_only(fd)
            self._set_up()
            take_variables(self._request.get("variables", {}))
            limits = self._limits()
        except BaseException as error:
            self._fail(error)
        become_agent: Callable[..., NoReturn] = self._template.agent.serve
        become_agent(
            SESSION_FD,
            SESSION_FD,
            prestart=self._request["prestart"],
            programs=self._request["programs"],
            workspace="/workspace",
            limits=limits,
            host_network=self._template.host_network,
        )

    def _keep_only(self, fd: int) -> None:
        """Closes everything but the session's socket, the control socket first of all."""
        signal.set_wakeup_fd(-1)
        set_handler(signal.SIGCHLD, DEFAULT_ACTION)
        os.dup2(fd, SESSION_FD, inheritable=False)
        everything = ctypes.c_uint(0xFFFF_FFFF)
        if libc.syscall(CLOSE_RANGE, ctypes.c_uint(SESSION_FD + 1), everything, 0) < 0:
            os.closerange(SESSION_FD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for number in (0, 1, 2):
            os.dup2(null, number)
        os.close(null)

    def _set_up(self) -> None:
        os.setsid()
        become_root(self._template.uid, self._template.gid)
        call("unshare", libc.unshare(LATE_NAMESPACES))
        keep_mounts()
        copied = self._request.get("overlay")
        copy = make_copy_on_write(copied["path"], copied["size_mb"]) if copied else ()
        sizes = self._request["sizes"]
        make_file_systems(sizes)
        make_directories(self._template.directories)
        cover(self._template.told_by_proc)
        if "policy" in self._request and self._template.shows_policies:
            show_policy(self._request["policy"], next(iter(sizes)))
        socket.sethostname(self._request["hostname"])
        if not self._template.host_network:
            start_loopback()
        os.chdir("/workspace")
        os.environ["PWD"] = os.getcwd()  # as in a jail of its own
        self._send_descriptors(copy)
        leave_low_pids(self._template.pid)
        reseed()
        become_user()
        for name, value in COUNTED.items():
            write_file(f"/proc/sys/user/{name}", str(value))
        limit_resources(self._request["limits"])
        drop_privileges(self._template.last_capability, self._template.system_calls)

    @staticmethod
    def _send_descriptors(copy: Sequence[int]) -> None:
        """Gives the supervisor a handle on this process, the session's PID 1, and on its copy.

        Before descriptors are limited: one in flight counts against that limit, too.

        Args:
            copy: from `make_copy_on_write`; closed here.
        """
        descriptors = [os.pidfd_open(os.getpid()), *copy]
        try:
            with socket.socket(fileno=os.dup(SESSION_FD)) as channel:
                socket.send_fds(channel, [WENT_WELL], descriptors)
        finally:
            for fd in descriptors:
                os.close(fd)

    def _limits(self) -> Any:
        return self._template.agent.Limits(self._request["limits"])

    @staticmethod
    def _fail(error: BaseException) -> NoReturn:
        text = str(error) if isinstance(error, SetupError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            os.write(SESSION_FD, WENT_WRONG + text.encode(errors="replace")[:MAX_ERROR])
        os._exit(1)


# ---------------------------------------------------------------------------------- the template


class Template:
    """Waits for requests and forks.

    Attributes:
        agent: the module `sandbox_agent`.
        system_calls: the filter of every session.
        last_capability: the kernel's highest.
        told_by_proc: what no session may read.
        pid: of the template, in its own namespace.
        uid, gid: its user, in its own namespace.
        shows_policies: whether its jail has a place for its sessions'.
        host_network: its sessions have the network that it has, which is the host's.
        failed: modules that could not be preloaded, and why.
        directories: what preloaded modules have made for themselves, parents first.
    """

    def __init__(
        self,
        control: socket.socket,
        agent: Any,
        system_calls: Filter,
        *,
        host_network: bool = False,
    ) -> None:
        self.agent = agent
        self.host_network = host_network
        self.system_calls = system_calls
        with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
            self.last_capability = int(file.read())
        self.told_by_proc = told_by_proc()
        self.pid = os.getpid()
        self.uid, self.gid = os.getuid(), os.getgid()
        self.shows_policies = os.path.exists(POLICY_PATH)
        self.failed: Mapping[str, str] = {}
        self.directories: Sequence[str] = ()
        self._control = control
        self._message = bytearray(REQUEST_BYTES)

    def serve(self) -> tuple[Mapping[str, Any], int]:
        """Forks whenever asked, until nobody can ask any more; then it exits.

        Returns:
            In a fork only: what was asked of it, and its socket. Code of users is not to run on top
            of the template's frames.
        """
        wakeup_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        set_handler(signal.SIGCHLD, _wake_up)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            set_handler(number, DEFAULT_ACTION)
        # Orphans come here and are reaped, not to bwrap's init.
        prctl("child subreaper", PR_SET_CHILD_SUBREAPER, 1)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wakeup_fd, select.POLLIN)
        forget_lookups()
        gc.collect()
        gc.freeze()  # what all forks share is never touched by their garbage collectors
        self._announce()
        while True:
            for fd, _ in poll.poll():
                if fd == wakeup_fd:
                    os.read(wakeup_fd, REQUEST_BYTES)
                    _reap()
                elif (taken := self._take()) is not None:
                    return taken

    def _announce(self) -> None:
        """Says that requests are served, with a handle on this process."""
        pidfd = os.pidfd_open(os.getpid())
        told = {
            "ready": True,
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "groups": True,
            "failed": self.failed,
            "loaded": loaded_files(),
        }
        ready = json.dumps(told).encode()
        socket.send_fds(self._control, [ready], [pidfd])
        os.close(pidfd)

    def _take(self) -> tuple[Mapping[str, Any], int] | None:
        """One request: a message with one or two descriptors. Returns something in a fork only."""
        size, fds = self._receive()
        if not size:
            os._exit(0)
        if len(fds) in (1, 2) and self._fork(fds[0]):
            for group in fds[1:]:
                enter_group(group)
            return json.loads(self._message[:size]), fds[0]
        # It may have variables of a client. Other forks have all that is in this memory.
        self._message[:size] = bytes(size)
        for fd in fds:
            os.close(fd)
        return None

    def _receive(self) -> tuple[int, Sequence[int]]:
        """The size of a message, which is in the one buffer for all, and its descriptors."""
        room = socket.CMSG_SPACE(4 * FD_BYTES)
        size, parts, _, _ = self._control.recvmsg_into([self._message], room)
        fds: list[int] = []
        for level, kind, data in parts:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                count = len(data) // FD_BYTES
                fds += struct.unpack(f"{count}i", data[: count * FD_BYTES])
        return size, fds

    def _fork(self, fd: int) -> bool:
        """Whether this is the fork."""
        try:
            return clone(NAMESPACES & ~CLONE_NEWNET if self.host_network else NAMESPACES) == 0
        except OSError as error:
            with contextlib.suppress(OSError):  # whoever asked may not wait any more
                os.write(fd, WENT_WRONG + f"clone: {error.strerror}".encode())
            return False


def _wake_up(_number: int, _frame: object) -> None:
    """Handles SIGCHLD: the write to the wake-up descriptor is all that it takes."""


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


# ---------------------------------------------------------------------------------------- start


def claim_control() -> socket.socket:
    """Moves the control socket away from descriptor 0, which becomes /dev/null."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    return control


def load_agent(path: str) -> Any:
    """The agent's module from its file, which may be compiled whatever its name is."""
    from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
    from importlib.util import MAGIC_NUMBER, module_from_spec

    with open(path, "rb") as file:
        compiled = file.read(len(MAGIC_NUMBER)) == MAGIC_NUMBER
    kind = SourcelessFileLoader if compiled else SourceFileLoader
    spec = ModuleSpec("sandbox_agent", kind("sandbox_agent", path), origin=path)
    spec.has_location = True
    module = module_from_spec(spec)
    # Not into sys.modules: code in sessions has no use for it.
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


class UnforkableError(Exception):
    """An imported module has left behind what forks cannot have each for itself.

    Args:
        module: which it was.
        why: one line, for people.
    """

    def __init__(self, module: str, why: str) -> None:
        super().__init__(module, why)
        self.module = module
        self.why = why


def preload(wanted: Sequence[str]) -> Mapping[str, str]:
    """Imports the common modules and the wanted ones.

    Returns:
        Wanted modules that cannot be imported, and the exception of each in one line.

    Raises:
        UnforkableError: one has started a thread, or made shared memory. Only a new process is
            without it.
    """
    for name in COMMON.split():
        with contextlib.suppress(ImportError):  # a Python may be built without
            importlib.import_module(name)
    added = [name for name in SINGLE_THREADED if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    failed: dict[str, str] = {}
    for name in wanted:
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = one_line(f"{type(error).__name__}: {error}")
        if len(os.listdir("/proc/self/task")) > 1:
            why = "it starts a thread, and a process with threads cannot be forked"
            raise UnforkableError(name, why)
        if has_shared_memory():
            why = "it makes shared memory, which all sessions would share"
            raise UnforkableError(name, why)
    for name in added:
        del os.environ[name]
    return failed


def one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON]


def empty_scratch() -> Sequence[str]:
    """Removes what modules have written; returns the directories that were there."""
    directories: list[str] = []
    for top in SCRATCH:
        if not os.access(top, os.W_OK):
            continue  # as in a jail without
        for folder, folders, files in os.walk(top, topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in folders:
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    os.unlink(path)
                else:
                    os.rmdir(path)
                    directories.append(path)
    return sorted(directories)[:MAX_SCRATCH_DIRECTORIES]


def has_shared_memory() -> bool:
    """Whether there is memory that forks could write to and that all of them would have in common.

    Files outside the scratch are not: they cannot be written to in a template's jail.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, permissions, _, _, _, *path = line.split(None, 5)
            if permissions[3] != "s":
                continue
            # What has no name or lost it may be made writable later, see mprotect(2).
            if "w" in permissions or line.endswith(" (deleted)\n"):
                return True
            if path and path[0].startswith(tuple(f"{top}/" for top in SCRATCH)):
                return True
    return False


def loaded_files() -> Mapping[str, Sequence[str]]:
    """Files that this process was made of, to be watched: their names by directory.

    Mapped files come first, then modules, those of a package's top before those below: there is a
    bound on the message, and an upgrade changes the top.
    """
    paths: dict[str, None] = {}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, _, _, _, _, *mapped = line.rstrip("\n").split(None, 5)
            if mapped and mapped[0].startswith("/"):
                paths.setdefault(mapped[0].replace(" (deleted)", ""))
    modules = [getattr(module, "__file__", None) for module in tuple(sys.modules.values())]
    named = [path for path in modules if isinstance(path, str) and path.startswith("/")]
    for path in sorted(named, key=lambda path: path.count("/")):
        paths.setdefault(path)
    loaded: dict[str, list[str]] = {}
    size = 0
    for path in paths:
        directory, name = os.path.split(path)
        if directory.startswith(OWN_PLACES):
            continue
        known = directory in loaded
        # ASCII, as JSON has it, with quotes and separators.
        size += len(json.dumps(name)) + 2 + (0 if known else len(json.dumps(directory)) + 6)
        if size > MAX_LOADED_BYTES or (not known and len(loaded) >= MAX_LOADED_DIRECTORIES):
            break
        loaded.setdefault(directory, []).append(name)
    return loaded


def forget_lookups() -> None:
    """Empties the cache of attribute look-ups, which imports have filled.

    Each new look-up in a fork would throw an old one out and count one reference less to its name:
    a page of memory copied, often for that alone. It is a third of what a fork has for itself.
    """
    for name in ("_clear_internal_caches", "_clear_type_cache"):  # Python 3.13; before
        clear = getattr(sys, name, None)
        if clear is not None:
            clear()
            break


def restart_without(control: socket.socket, unforkable: UnforkableError, failed: str) -> NoReturn:
    """Replace this process by a new one that leaves a module out.

    Args:
        failed: modules that earlier processes had to leave out, and why, as JSON.
    """
    without = {**json.loads(failed), unforkable.module: unforkable.why}
    words = sys.argv[1:]
    if words[0] == "--failed":
        words = words[2:]
    os.dup2(control.fileno(), 0, inheritable=True)
    os.execv(
        sys.executable,
        [sys.executable, "-I", sys.argv[0], "--failed", json.dumps(without), *words],
    )


def main(arguments: Sequence[str]) -> NoReturn:
    """`template.py [--failed JSON] [--host-network] AGENT FILTER [MODULE ...]`: paths of the agent
    and the filter, and what to preload. `--failed` is for this program itself: modules to leave
    out, and why."""
    control = claim_control()
    try:
        failed = "{}"
        if arguments[0] == "--failed":
            _, failed, *arguments = arguments
        host_network = arguments[0] == "--host-network"
        agent_path, filter_path, *wanted = arguments[1:] if host_network else arguments
        with open(filter_path, "rb") as file:
            system_calls = Filter(file.read())
        agent = load_agent(agent_path)
        template = Template(control, agent, system_calls, host_network=host_network)
        without: Mapping[str, str] = json.loads(failed)
        try:
            now = preload([name for name in wanted if name not in without])
        except UnforkableError as error:
            restart_without(control, error, failed)
        failures = {**without, **now}
        template.failed = {name: failures[name] for name in wanted if name in failures}
        template.directories = empty_scratch()
        request, fd = template.serve()
    except Exception as error:
        text = str(error) if isinstance(error, SetupError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            control.send(json.dumps({"ready": False, "error": text[:MAX_ERROR]}).encode())
        sys.exit(text)
    Session(request, template).become(fd)


if __name__ == "__main__":
    main(sys.argv[1:])
