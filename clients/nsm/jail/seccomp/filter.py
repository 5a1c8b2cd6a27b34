"""The filter of system calls for code in jails, as a classic BPF program; pure.

It is a list of what is refused. Namespaces, an empty set of capabilities and an agent that is not
dumpable hold without it; it is there for the day when the kernel has a hole in one of these, and
for the few things that they don't cover. What interpreters, compilers, debuggers and git need is
let through.

The kernel remembers which calls are let through whatever their arguments (Linux 5.11 and newer),
so that the length of the list costs those nothing. For the rules that a program has to follow see
seccomp(2) and Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence

from nsm.dataclass import dataclass
from nsm.jail.seccomp import syscalls

# bpf(4) and linux/bpf_common.h: all values are 32 bits.
LOAD, JUMP, RETURN, AND = 0x20, 0x05, 0x06, 0x54
EQUAL, AT_LEAST, ANY_BIT = 0x15, 0x35, 0x45

# linux/seccomp.h: verdicts, and where a call's data lies.
ALLOW, TRACE, ERRNO, KILL_PROCESS = 0x7FFF0000, 0x7FF00000, 0x00050000, 0x80000000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_ of linux/audit.h, by `platform.machine()`. Both are little-endian, so that the lower
half of an argument comes first.
"""


def line(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """A `struct sock_filter`; `yes` and `no` are the instructions that a comparison skips."""
    return struct.pack("<HBBI", code, yes, no, value)


def load_argument(index: int, *, upper: bool = False) -> bytes:
    """Load the lower or the upper half of an argument.

    Most arguments are an int to the kernel, which then ignores the upper half, as we must.
    """
    return line(LOAD, ARGUMENTS + 8 * index + 4 * upper)


def result(verdict: int) -> bytes:
    return line(RETURN, verdict)


NOTHING = 0
"""The error of a call that does nothing and says that it has succeeded."""


def refuse(error: int) -> bytes:
    return result(ERRNO | error)


def run_if(comparison: int, value: int, *block: bytes) -> bytes:
    """Run `block` if what was loaded last compares so."""
    body = b"".join(block)
    return line(comparison, value, no=len(body) // 8) + body


def run_if_one_of(values: Sequence[int], *block: bytes) -> bytes:
    body = b"".join(block)
    tests = [line(EQUAL, value, yes=len(values) - place) for place, value in enumerate(values)]
    return b"".join([*tests, line(JUMP, len(body) // 8), body])


def run_unless_one_of(values: Sequence[int], *block: bytes) -> bytes:
    body = b"".join(block)
    over = len(body) // 8
    tests = [
        line(EQUAL, value, yes=len(values) - 1 - place + over) for place, value in enumerate(values)
    ]
    return b"".join([*tests, body])


def only_of(machine: str) -> bytes:
    """End a process that comes by another architecture's entry, whose numbers mean other calls
    (int 0x80 on x86_64, 32-bit ARM); else load the number of the call.
    """
    own = run_unless_one_of([ARCHITECTURES[machine]], result(KILL_PROCESS))
    return line(LOAD, ARCHITECTURE) + own + line(LOAD, NUMBER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """System calls that are refused whatever their arguments.

    Attributes:
        error: error of these calls. With ENOSYS programs do as on older kernels.
    """

    why: str
    calls: tuple[str, ...]
    error: int = errno.EPERM


REFUSALS = (
    Refusal(
        why="Flags are behind a pointer, where no filter can look; libc falls back to clone.",
        calls=("clone3",),
        error=errno.ENOSYS,
    ),
    Refusal(
        why="Other mounts and namespaces are ways around read-only binds and network namespaces.",
        calls=(
            *("mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr"),
            *("move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
        ),
    ),
    Refusal(
        why="They tell of mounts and namespaces that /proc of a jail does not show.",
        calls=("statmount", "listmount", "listns"),
        error=errno.ENOSYS,
    ),
    Refusal(
        why="Files are opened by their number, past all mounts, by whoever owns the file system.",
        calls=("name_to_handle_at", "open_by_handle_at"),
    ),
    Refusal(
        why="Keyrings belong to a user; that of the host's has his other programs' keys in it.",
        calls=("add_key", "request_key", "keyctl"),
    ),
    Refusal(
        why="Large parts of the kernel with a long row of holes, and nothing that code here needs.",
        calls=(
            *("bpf", "perf_event_open", "userfaultfd", "fanotify_init", "fanotify_mark"),
            *("lookup_dcookie", "modify_ldt", "nfsservctl", "uselib", "_sysctl"),
        ),
    ),
    Refusal(
        why="It runs system calls that pass by filters; everybody falls back to plain ones.",
        calls=("io_uring_setup", "io_uring_enter", "io_uring_register"),
        error=errno.ENOSYS,
    ),
    Refusal(
        why="Memory that it gives is hidden from the kernel itself, and keeps the whole machine "
        "from hibernating as long as it is there.",
        calls=("memfd_secret",),
        error=errno.ENOSYS,
    ),
    Refusal(
        why="Tells how full a file system is by its number, also of those that no mount here "
        "shows; libc has no function for it any more.",
        calls=("ustat",),
        error=errno.ENOSYS,
    ),
    Refusal(
        why="It pins memory that no limit counts; write does the same.",
        calls=("vmsplice",),
        error=errno.ENOSYS,
    ),
    Refusal(
        why="All users share one quota (fs.aio-max-nr), and a jail could take it from the host's "
        "databases; theirs in here fall back to threads.",
        calls=("io_setup",),
        error=errno.ENOSYS,
    ),
    Refusal(
        why="Reach into other processes, for which debuggers don't need them. ptrace and "
        "process_vm_readv and _writev, which they need, are guarded by the same check as "
        "/proc/PID/mem: other processes of the session only, not the agent.",
        calls=("kcmp", "pidfd_getfd", "process_madvise", "migrate_pages", "move_pages"),
    ),
    Refusal(
        why="The machine is not a jail's to set up.",
        calls=(
            *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
            *("create_module", "get_kernel_syms", "query_module", "reboot", "swapon", "swapoff"),
            *("syslog", "acct", "quotactl", "quotactl_fd", "sethostname", "setdomainname"),
            *("vhangup", "iopl", "ioperm"),
            *("settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
        ),
    ),
)
"""Calls that an architecture does not have are passed over there; the tests know which."""


# ------------------------------------------------------------------- calls judged by an argument

# linux/sched.h
_CLONE_FS, _CLONE_FILES, _CLONE_SYSVSEM = 0x200, 0x400, 0x40000
_NEW_NAMESPACES = (
    0x00020000  # CLONE_NEWNS
    | 0x02000000  # CLONE_NEWCGROUP
    | 0x04000000  # CLONE_NEWUTS
    | 0x08000000  # CLONE_NEWIPC
    | 0x10000000  # CLONE_NEWUSER
    | 0x20000000  # CLONE_NEWPID
    | 0x40000000  # CLONE_NEWNET
)

# asm-generic/ioctls.h
_TIOCSTI, _TIOCLINUX, _TIOCCONS, _TIOCSETD = 0x5412, 0x541C, 0x541D, 0x5423

# linux/fcntl.h; the second is in Linux 6.19 and newer.
_F_SETLEASE, _F_SETDELEG = 1024, 1040

# linux/mman.h, linux/memfd.h, linux/shm.h: of hugetlbfs. The size of the pages is in other bits.
_MAP_HUGETLB, _MFD_HUGETLB, _SHM_HUGETLB = 0x40000, 0x4, 0o4000

# linux/ptrace.h, asm/ptrace-abi.h
_PTRACE_SETOPTIONS, _PTRACE_SEIZE = 0x4200, 0x4206
_PTRACE_OPTIONS = (
    0x7F  # SYSGOOD, and the events of fork, vfork, clone, exec, the end of vfork, and exit
    | 0x100000  # EXITKILL
)
_PTRACE_OF_DEBUGGERS = (
    0,  # TRACEME
    *(1, 2, 3, 4, 5, 6),  # PEEKTEXT, PEEKDATA, PEEKUSER, POKETEXT, POKEDATA, POKEUSER
    *(7, 8, 9, 24),  # CONT, KILL, SINGLESTEP, SYSCALL
    *(12, 13, 14, 15, 18, 19),  # GETREGS, SETREGS, and those of FPREGS and FPXREGS
    *(16, 17),  # ATTACH, DETACH
    *(25, 30),  # GET_THREAD_AREA, ARCH_PRCTL
    *(0x4201, 0x4202, 0x4203),  # GETEVENTMSG, GETSIGINFO, SETSIGINFO
    *(0x4204, 0x4205),  # GETREGSET, SETREGSET
    *(0x4207, 0x4208, 0x420E),  # INTERRUPT, LISTEN, GET_SYSCALL_INFO
)
"""Requests of gdb and strace without options, as their sources have them."""

# linux/seccomp.h
_SECCOMP_FILTER_FLAG_NEW_LISTENER = 0x8

# linux/resource.h, linux/ioprio.h: of a process, and of a group of them.
_PRIO_PROCESS, _PRIO_PGRP = 0, 1
_IOPRIO_WHO_PROCESS, _IOPRIO_WHO_PGRP = 1, 2

# linux/prctl.h
_PR_SCHED_CORE = 62

# linux/personality.h; the last one asks and sets nothing.
_PER_LINUX, _ADDR_NO_RANDOMIZE, _PERSONALITY_QUERY = 0, 0x40000, 0xFFFFFFFF

# linux/sockios.h
_BRIDGES_AND_VLANS = (
    *(0x8940, 0x8941),  # SIOCGIFBR, SIOCSIFBR
    *(0x8982, 0x8983),  # SIOCGIFVLAN, SIOCSIFVLAN
    *(0x89A0, 0x89A1, 0x89A2, 0x89A3),  # SIOCBRADDBR, _DELBR, _ADDIF, _DELIF
)

# linux/fscrypt.h: FS_IOC_ADD_ENCRYPTION_KEY, _REMOVE_ENCRYPTION_KEY, _REMOVE_..._ALL_USERS
_KEYS_OF_FILE_SYSTEMS = (0xC0506617, 0xC0406618, 0xC0406619)

# asm-generic/socket.h, linux/netlink.h
_SOL_SOCKET, _SO_LINGER, _SOL_NETLINK = 1, 13, 270
_BPF_OF_SOCKETS = (26, 50, 51, 52)  # SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF

# linux/tcp.h, linux/udp.h
_TCP_OPTIONS = (
    *(1, 2, 3),  # TCP_NODELAY, _MAXSEG, _CORK
    *(4, 5, 6, 7, 8, 9),  # _KEEPIDLE, _KEEPINTVL, _KEEPCNT, _SYNCNT, _LINGER2, _DEFER_ACCEPT
    *(10, 12, 16, 17, 18),  # _WINDOW_CLAMP, _QUICKACK, _THIN_LINEAR_..., _THIN_DUPACK, _USER_...
    *(23, 25, 27),  # _FASTOPEN, _NOTSENT_LOWAT, _SAVE_SYN
    *(30, 34, 36, 37),  # _FASTOPEN_CONNECT, _FASTOPEN_NO_COOKIE, _INQ, _TX_DELAY
)
_UDP_OPTIONS = (1, 101, 102, 103, 104)  # UDP_CORK, _NO_CHECK6_TX and _RX, _SEGMENT, _GRO

# linux/socket.h, linux/net.h, linux/in.h. The socket module leaves out what its host lacks.
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW, _SOCK_TYPE_MASK = 1, 2, 3, 0xF
_IPPROTO_IP, _IPPROTO_ICMP, _IPPROTO_TCP, _IPPROTO_UDP = 0, 1, 6, 17
_IPPROTO_IPV6, _IPPROTO_ICMPV6 = 41, 58
_NETLINK_ROUTE = 0


def _no_huge_pages(argument: int, flag: int) -> tuple[bytes, ...]:
    """Huge pages are few, reserved by the administrator for one program (a database, a virtual
    machine), and there for whoever comes first; neither rlimits nor memory.max count them."""
    return (load_argument(argument), run_if(ANY_BIT, flag, refuse(errno.EPERM)))


def _only_own(process: int, group: int) -> tuple[bytes, ...]:
    """Have a call do nothing and succeed unless it names the caller or its group, by number 0."""
    return (
        load_argument(0),
        run_unless_one_of([process, group], refuse(NOTHING)),
        load_argument(1),
        run_unless_one_of([0], refuse(NOTHING)),
    )


_RULES: Mapping[str, tuple[bytes, ...]] = {
    # First, since it is called most. Transparent huge pages need no flag.
    "mmap": _no_huge_pages(3, _MAP_HUGETLB),
    "memfd_create": _no_huge_pages(1, _MFD_HUGETLB),
    "shmget": _no_huge_pages(2, _SHM_HUGETLB),
    # Who has a group of its own leaves the other thread of its processor core idle: half of the
    # machine, whatever its share of processor time.
    "prctl": (
        load_argument(0),
        run_if(EQUAL, _PR_SCHED_CORE, refuse(errno.EPERM)),
    ),
    # In a namespace of its own, code has privileges that undo read-only binds, and the kernel
    # has many holes that take such privileges to reach.
    "clone": (
        load_argument(0),
        run_if(ANY_BIT, _NEW_NAMESPACES, refuse(errno.EPERM)),
    ),
    # It fails (ENOSYS), except in a process whose tracer has asked to be told of it: nsm's own,
    # from outside, while it carries a fork of the session into namespaces of its own.
    "setns": (result(TRACE),),
    # So that no code becomes such a tracer of its own children (PTRACE_O_TRACESECCOMP, for which
    # there is an old request, too). Requests that no debugger makes fail as unknown ones do.
    "ptrace": (
        load_argument(0),
        run_if_one_of(
            [_PTRACE_SETOPTIONS, _PTRACE_SEIZE],
            load_argument(3),
            run_if(ANY_BIT, 0xFFFFFFFF & ~_PTRACE_OPTIONS, refuse(errno.EPERM)),
            result(ALLOW),
        ),
        run_unless_one_of(_PTRACE_OF_DEBUGGERS, refuse(errno.EIO)),
    ),
    # So that no code has the call made by a listener: the answer of a second filter that asks one
    # would win over the one for `setns` here (seccomp_unotify(2)).
    "seccomp": (
        load_argument(1),
        run_if(ANY_BIT, _SECCOMP_FILTER_FLAG_NEW_LISTENER, refuse(errno.EINVAL)),
    ),
    # Forks of a session have numbers in it, and the same user. Whoever changes how something else
    # than the calling thread or its group is scheduled is told that it was done: threads have
    # numbers of their own, and libraries bind or lower them out of politeness. A thread names even
    # itself by its number in pthread_setschedparam(3), and ZeroMQ ends the program if that fails.
    **dict.fromkeys(
        ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
        (load_argument(0), run_unless_one_of([0], refuse(NOTHING))),
    ),
    "setpriority": _only_own(_PRIO_PROCESS, _PRIO_PGRP),
    "ioprio_set": _only_own(_IOPRIO_WHO_PROCESS, _IOPRIO_WHO_PGRP),
    # What it may stop sharing is what threads share.
    "unshare": (
        load_argument(0, upper=True),
        run_unless_one_of([0], refuse(errno.EPERM)),
        load_argument(0),
        run_if(
            ANY_BIT,
            0xFFFFFFFF & ~(_CLONE_FS | _CLONE_FILES | _CLONE_SYSVSEM),
            refuse(errno.EPERM),
        ),
    ),
    # Whoever has the same user may lower another's limits, dumpable or not: without descriptors
    # the agent ends. So only its own, which is pid 0; others' may be read.
    "prlimit64": (
        load_argument(0),
        run_if(EQUAL, 0, result(ALLOW)),
        load_argument(2),
        run_unless_one_of([0], refuse(errno.EPERM)),
        load_argument(2, upper=True),
        run_unless_one_of([0], refuse(errno.EPERM)),
    ),
    # Input or output put into a terminal that somebody else reads, as in CVE-2017-5226 and, with
    # other bits in the upper half, CVE-2019-10063; and line disciplines, each a module to load.
    # Bridges and VLANs are modules, too, which the kernel loads before it looks at who asks. Keys
    # of an encrypted file system are the host's, also where it is shown read-only.
    "ioctl": (
        load_argument(1),
        run_if_one_of(
            [
                *(_TIOCSTI, _TIOCLINUX, _TIOCCONS, _TIOCSETD),
                *_BRIDGES_AND_VLANS,
                *_KEYS_OF_FILE_SYSTEMS,
            ],
            refuse(errno.EPERM),
        ),
    ),
    # A lease on a file of the project makes the host's programs wait that open it: 45 s each.
    "fcntl": (
        load_argument(1),
        run_if_one_of([_F_SETLEASE, _F_SETDELEG], refuse(errno.EPERM)),
    ),
    # Debuggers turn off address randomization. The others bring back old systems' weaknesses.
    "personality": (
        load_argument(0),
        run_unless_one_of(
            [_PER_LINUX, _ADDR_NO_RANDOMIZE, _PERSONALITY_QUERY], refuse(errno.EPERM)
        ),
    ),
    # Other families are rarely used and often broken, and AF_VSOCK knows no network namespace. Of
    # netlink there is what getifaddrs(3) takes. Other types and protocols, and those that do not go
    # together, make the kernel look for modules, such as SCTP, SMC or L2TP.
    "socket": (
        load_argument(0),
        run_if(EQUAL, _AF_UNIX, result(ALLOW)),
        run_if(
            EQUAL,
            _AF_NETLINK,
            load_argument(2),
            run_unless_one_of([_NETLINK_ROUTE], refuse(errno.EPROTONOSUPPORT)),
            result(ALLOW),
        ),
        run_unless_one_of([_AF_INET, _AF_INET6], refuse(errno.EAFNOSUPPORT)),
        load_argument(1),
        line(AND, _SOCK_TYPE_MASK),
        run_if(
            EQUAL,
            _SOCK_STREAM,
            load_argument(2),
            run_unless_one_of([_IPPROTO_IP, _IPPROTO_TCP], refuse(errno.EPROTONOSUPPORT)),
            result(ALLOW),
        ),
        run_unless_one_of([_SOCK_DGRAM, _SOCK_RAW], refuse(errno.ESOCKTNOSUPPORT)),
        load_argument(2),
        run_unless_one_of(
            [_IPPROTO_IP, _IPPROTO_ICMP, _IPPROTO_UDP, _IPPROTO_ICMPV6],
            refuse(errno.EPROTONOSUPPORT),
        ),
    ),
    # Whoever closes a socket that lingers waits, for years, where the other end does not read. It
    # may be passed over a Unix socket, also to somebody who has not asked for one, and its last
    # close is then the supervisor's. Programs ask for it out of politeness, so they are told that
    # it was done; what it is asked for lies behind a pointer.
    # Other options give a socket to a part of the kernel with a history of holes (TLS, IPsec, BPF),
    # or have it load modules (upper protocols, algorithms of signatures and of congestion control).
    "setsockopt": (
        load_argument(1),
        run_if(
            EQUAL,
            _SOL_SOCKET,
            load_argument(2),
            run_if(EQUAL, _SO_LINGER, refuse(NOTHING)),
            run_if_one_of(_BPF_OF_SOCKETS, refuse(errno.ENOPROTOOPT)),
            result(ALLOW),
        ),
        run_if(
            EQUAL,
            _IPPROTO_TCP,
            load_argument(2),
            run_unless_one_of(_TCP_OPTIONS, refuse(errno.ENOPROTOOPT)),
            result(ALLOW),
        ),
        run_if(
            EQUAL,
            _IPPROTO_UDP,
            load_argument(2),
            run_unless_one_of(_UDP_OPTIONS, refuse(errno.ENOPROTOOPT)),
            result(ALLOW),
        ),
        run_unless_one_of([_IPPROTO_IP, _IPPROTO_IPV6, _SOL_NETLINK], refuse(errno.ENOPROTOOPT)),
    ),
    # AF_TIPC has pairs, too.
    "socketpair": (
        load_argument(0),
        run_unless_one_of([_AF_UNIX], refuse(errno.EAFNOSUPPORT)),
    ),
}
"""Instructions for these calls. A call that passes all of them is permitted."""


# ------------------------------------------------------------------------------------ the program


_NUMBERS = {"x86_64": syscalls.X86_64, "aarch64": syscalls.AARCH64}


def filter_program(machine: str) -> bytes | None:
    """The program as an array of `struct sock_filter`.

    Args:
        machine: as `platform.machine()` names it.

    Returns:
        None for a machine whose system calls nobody has put into a table.
    """
    numbers = _NUMBERS.get(machine)
    if numbers is None:
        return None
    lines = [
        only_of(machine),
        # Newer than this list. x32, the other way into x86_64, has bit 30 set.
        run_if(AT_LEAST, syscalls.NEWEST + 1, refuse(errno.ENOSYS)),
    ]
    for name, rule in _RULES.items():
        lines.append(run_if(EQUAL, numbers[name], *rule, result(ALLOW)))
    for refusal in REFUSALS:
        calls = [numbers[name] for name in refusal.calls if name in numbers]
        if calls:
            lines.append(run_if_one_of(calls, refuse(refusal.error)))
    return b"".join([*lines, result(ALLOW)])
