"""Probes of parts of the kernel that only the filter of system calls keeps code from."""

from __future__ import annotations

from isolation.probe import Probe
from isolation.weaken import UNFILTERED, UNFILTERED_FORK, Weakness, pretending_ioctls

MODULES_BY_IOCTL = (0x8940, 0x8941, 0x8982, 0x8983, 0x89A0, 0x89A1, 0x89A2, 0x89A3)
"""SIOCGIFBR to SIOCSIFBR, SIOCGIFVLAN, SIOCSIFVLAN, and from SIOCBRADDBR on."""

REACHED = """
def reached(refusal, name, *arguments):
    "Whether the kernel's own code has answered, and not the filter."
    try:
        result = call(name, *arguments)
    except OSError as error:
        return error.errno != refusal
    return result >= 0
def closed(fd):
    os.close(fd)
    return True
"""


def _filtered(name: str, source: str, code: str) -> Probe:
    return Probe(
        name=name,
        group="kernel",
        source=source,
        language="c",
        code=REACHED + code,
        weakness=UNFILTERED,
        fork_weakness=UNFILTERED_FORK,
        filtered=True,
    )


PROBES = (
    _filtered(
        "key-for-another-session",
        "keyrings(7): a user's keyring belongs to all his processes",
        """
USER_KEYRING, UNLINK = -4, 9
def left():
    key = call("add_key", b"user", b"nsm-probe", b"x", 1, USER_KEYRING)
    attempt(call, "keyctl", UNLINK, key, USER_KEYRING)
    return key
verdict(attempt(left) and "left a key")
""",
    ),
    _filtered(
        "keyring-of-whoever-started-it",
        "session-keyring(7): it is inherited from the login",
        """
GET_KEYRING_ID, SESSION_KEYRING = 0, -3
verdict(reached(errno.EPERM, "keyctl", GET_KEYRING_ID, SESSION_KEYRING, 0) and "asked for it")
""",
    ),
    _filtered(
        "bpf",
        "bpf(2): verifier and maps have a long row of holes",
        """
MAP_CREATE, TOO_LONG = 0, 1 << 20
# From Linux 6.5 on, the kernel looks at the size before it looks at who asks.
if [int(n) for n in os.uname().release.split(".")[:2]] >= [6, 5]:
    verdict(reached(errno.EPERM, "bpf", MAP_CREATE, bytes(128), TOO_LONG) and "reached")
else:
    not_here("a kernel that tells the filter's refusal from its own")
""",
    ),
    _filtered(
        "performance-counters",
        "CVE-2013-2094, and a side channel on the machine",
        """
SOFTWARE, TASK_CLOCK, NO_KERNEL = 1, 1, 0b1100000
attributes = struct.pack("IIQQQQQ", SOFTWARE, 64, TASK_CLOCK, 0, 0, 0, NO_KERNEL) + bytes(16)
fd = attempt(call, "perf_event_open", attributes, 0, -1, -1, 0)
verdict(fd is not None and closed(fd) and "counts")
""",
    ),
    _filtered(
        "page-faults-in-user-space",
        "userfaultfd(2): stops the kernel in the middle of a copy",
        """
USER_MODE_ONLY = 1
fd = attempt(call, "userfaultfd", USER_MODE_ONLY)
verdict(fd is not None and closed(fd) and "handles page faults")
""",
    ),
    _filtered(
        "io-uring",
        "io_uring(7): its operations are seen by no filter",
        """
fd = attempt(call, "io_uring_setup", 1, ctypes.create_string_buffer(120))
verdict(fd is not None and closed(fd) and "has a ring")
""",
    ),
    _filtered(
        "numbers-of-files",
        "CVE-2014-3519, Docker's shocker",
        """
handle = ctypes.create_string_buffer(struct.pack("II", 128, 0), 8 + 128)
mount = ctypes.c_int()
told = attempt(call, "name_to_handle_at", -100, b"/usr", handle, ctypes.byref(mount), 0)
verdict(told is not None and f"/usr is {bytes(handle[8:16]).hex()}")
""",
    ),
    _filtered(
        "asynchronous-io",
        "io_setup(2): fs.aio-max-nr is one quota for the whole machine",
        """
DESTROY = {"x86_64": 207, "aarch64": 1}[os.uname().machine]
context = ctypes.c_ulong()
made = attempt(call, "io_setup", 1, ctypes.byref(context)) is not None
if made:
    call(DESTROY, context)
verdict(made and "took a share")
""",
    ),
    _filtered(
        "pages-lent-to-a-pipe",
        "vmsplice(2): pages that stay pinned as long as the pipe is not read",
        """
reader, writer = os.pipe()
page = ctypes.create_string_buffer(4096)
vector = struct.pack("PN", ctypes.addressof(page), 4096)
lent = attempt(call, "vmsplice", writer, vector, 1, 0)
os.close(reader), os.close(writer)
verdict(lent and f"{lent} bytes")
""",
    ),
    _filtered(
        "watch-of-a-file-system",
        "fanotify_init(2): from Linux 5.13 on without privileges",
        """
REPORT_FID = 0x200
fd = attempt(call, "fanotify_init", REPORT_FID, os.O_RDONLY)
verdict(fd is not None and closed(fd) and "watches")
""",
    ),
    _filtered(
        "order-of-kernel-addresses",
        "kcmp(2): tells which of two objects has the lower address in the kernel",
        """
FILE = 0
verdict(reached(errno.EPERM, "kcmp", os.getpid(), os.getpid(), FILE, 0, 1) and "compared")
""",
    ),
    _filtered(
        "memory-moved-between-nodes",
        "move_pages(2), migrate_pages(2); Docker's and Flatpak's lists have them",
        """
verdict([name for name, arguments in {
    "move_pages": (0, 0, None, None, None, 0),
    "migrate_pages": (os.getpid(), 0, None, None),
}.items() if reached(errno.EPERM, name, *arguments)])
""",
    ),
    _filtered(
        "advice-on-another-s-memory",
        "process_madvise(2): has another process's memory swapped out",
        """
COLD = 20
pidfd = os.pidfd_open(os.getpid())
advised = reached(errno.EPERM, "process_madvise", pidfd, struct.pack("PN", 0, 0), 1, COLD, 0)
os.close(pidfd)
verdict(advised and "advised")
""",
    ),
    _filtered(
        "descriptor-of-another",
        "pidfd_getfd(2): takes a descriptor out of a process that is not asked",
        """
mark = os.open("/workspace", os.O_RDONLY)
pid = os.fork()
if pid == 0:
    signal.pause()
pidfd = os.pidfd_open(pid)
taken = attempt(call, "pidfd_getfd", pidfd, mark, 0)
os.kill(pid, signal.SIGKILL), os.waitpid(pid, 0), os.close(pidfd), os.close(mark)
verdict(taken is not None and closed(taken) and "taken")
""",
    ),
    _filtered(
        "segments",
        "modify_ldt(2): CVE-2017-17053; 16-bit code has its own ways",
        """
READ = 0
if "modify_ldt" in SYS:
    verdict(reached(errno.EPERM, "modify_ldt", READ, ctypes.create_string_buffer(16), 16)
            and "reached")
else:
    not_here("segments")
""",
    ),
    _filtered(
        "ports",
        "iopl(2), ioperm(2): instructions that speak with devices",
        """
if "ioperm" in SYS:
    # To give back what one does not have takes no privilege.
    verdict([name for name, arguments in {"iopl": (0,), "ioperm": (0x80, 1, 0)}.items()
             if reached(errno.EPERM, name, *arguments)])
else:
    not_here("ports")
""",
    ),
    _filtered(
        "state-of-the-clock",
        "adjtimex(2), clock_adjtime(2): the rate of the machine's clock",
        """
state = ctypes.create_string_buffer(256)  # mode 0: asks and sets nothing
verdict([name for name, arguments in {"adjtimex": (state,), "clock_adjtime": (0, state)}.items()
         if reached(errno.EPERM, name, *arguments)])
""",
    ),
    _filtered(
        "quotas",
        "quotactl(2), quotactl_fd(2): Docker's and Flatpak's lists have them",
        """
GET_FORMAT = 0x800004 << 8
root = os.open("/workspace", os.O_RDONLY)
told = ctypes.create_string_buffer(8)
ways = {"quotactl": (GET_FORMAT, b"/dev/null", 0, told), "quotactl_fd": (root, GET_FORMAT, 0, told)}
verdict([name for name, arguments in ways.items() if reached(errno.EPERM, name, *arguments)])
os.close(root)
""",
    ),
    _filtered(
        "core-scheduling",
        "prctl(2), PR_SCHED_CORE: keeps the other thread of a processor core idle",
        """
def share():
    if libc.prctl(62, 1, 0, 0, 0) < 0 and ctypes.get_errno() == errno.EPERM:
        raise OSError(errno.EPERM, "refused")
verdict(child(share) and "reached")
""",
    ),
    _filtered(
        "huge-pages",
        "mmap(2), MAP_HUGETLB: taken from the administrator's reserve; no limit counts them",
        """
PRIVATE, ANONYMOUS, HUGETLB = 2, 0x20, 0x40000
libc.mmap.restype = ctypes.c_void_p
def mapped(size_bits):
    flags = PRIVATE | ANONYMOUS | HUGETLB | size_bits << 26
    place = libc.mmap(None, ctypes.c_size_t(1 << 30), 3, flags, -1, 0)
    if place != ctypes.c_void_p(-1).value:
        libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(1 << 30))
        return True
    return ctypes.get_errno() != errno.EPERM
verdict([f"2^{bits}" for bits in (0, 21, 30) if mapped(bits)])
""",
    ),
    _filtered(
        "huge-pages-in-a-file",
        "memfd_create(2), MFD_HUGETLB: the same reserve, without a mapping",
        """
fd = attempt(call, "memfd_create", b"probe", 4)
verdict(fd is not None and closed(fd) and "has a file")
""",
    ),
    _filtered(
        "secret-memory",
        "memfd_secret(2): keeps the machine from hibernating; not even root can look into it",
        """
if [int(n) for n in os.uname().release.split(".")[:2]] >= [6, 5]:  # on unless switched off
    fd = attempt(call, "memfd_secret", 0)
    verdict(fd is not None and closed(fd) and "has a file")
else:
    not_here("secret memory")
""",
    ),
    _filtered(
        "file-systems-by-number",
        "ustat(2): how full each file system of the host is, mounted here or not",
        """
if "ustat" in SYS:
    with open("/proc/self/mountinfo") as file:
        shown = {line.split()[2] for line in file}
    buffer = ctypes.create_string_buffer(64)
    numbers = [(0, minor) for minor in range(64)] + [(8, 1), (254, 0), (259, 1)]
    told = [f"{major}:{minor}" for major, minor in numbers
            if attempt(call, "ustat", os.makedev(major, minor), buffer) is not None]
    verdict(sorted(set(told) - shown))
else:
    not_here("ustat")
""",
    ),
    _filtered(
        "mounts-by-number",
        "statmount(2), listmount(2): mounts, also of other namespaces, by their numbers",
        """
if [int(n) for n in os.uname().release.split(".")[:2]] >= [6, 8]:
    root = (1 << 64) - 1
    told = ctypes.create_string_buffer(4096)
    request = struct.pack("IIQQ", 24, 0, root, 0)
    verdict(reached(errno.ENOSYS, "listmount", request, told, 16, 0) and "listed")
else:
    not_here("listmount")
""",
    ),
    _filtered(
        "terminal-injection",
        "CVE-2017-5226, and CVE-2019-10063 with more bits: characters into a terminal's input",
        """
IOCTL = SYS["ioctl"]
TIOCSTI = 0x5412
def pushed(upper):
    "In a session of its own, of which the terminal is the controlling one."
    os.setsid()
    leader, terminal = os.openpty()
    libc.ioctl(terminal, ctypes.c_ulong(0x540E), 0)
    if not reached(errno.EPERM, IOCTL, terminal, TIOCSTI | upper << 32, b"x"):
        raise OSError(errno.EPERM, "refused")
verdict([hex(upper) for upper in (0, 1, 0xFFFFFFFF) if child(pushed, upper)])
""",
    ),
    _filtered(
        "console-selection",
        "CVE-2023-1523: TIOCLINUX pastes what is selected on the console; with more bits, too",
        """
TIOCLINUX, PASTE = 0x541C, 3
leader, terminal = os.openpty()
verdict([hex(upper) for upper in (0, 1, 0xFFFFFFFF)
         if reached(errno.EPERM, "ioctl", terminal, TIOCLINUX | upper << 32, bytes([PASTE]))])
os.close(leader), os.close(terminal)
""",
    ),
    _filtered(
        "line-disciplines",
        "ioctl_tty(2), TIOCSETD: each loads a module; CVE-2017-2636, CVE-2023-6546",
        """
TIOCSETD, N_TTY = 0x5423, 0
leader, terminal = os.openpty()
verdict([hex(upper) for upper in (0, 1) if reached(
    errno.EPERM, "ioctl", terminal, TIOCSETD | upper << 32, struct.pack("i", N_TTY))])
os.close(leader), os.close(terminal)
""",
    ),
    _filtered(
        "leases",
        "fcntl(2), F_SETLEASE: whoever opens the file on the host waits for 45 s",
        """
import fcntl
fd = os.open("/tmp/leased", os.O_RDONLY | os.O_CREAT, 0o600)
got = attempt(fcntl.fcntl, fd, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0
os.close(fd), os.unlink("/tmp/leased")
verdict(got and "holds one")
""",
    ),
    _filtered(
        "lingering-sockets",
        "socket(7), SO_LINGER: passed over a Unix socket, the last close of one waits for years",
        """
import socket
with socket.socket() as lingers:
    lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))
    got = lingers.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
verdict(got == struct.pack("ii", 1, 1) and "lingers")
""",
    ),
    _filtered(
        "limits-of-another",
        "prlimit(2) of a process of the same user",
        """
pid = os.fork()
if pid == 0:
    signal.pause()
CORE = 4
done = attempt(call, "prlimit64", pid, CORE, struct.pack("QQ", 0, 0), None)
os.kill(pid, signal.SIGKILL), os.waitpid(pid, 0)
verdict(done is not None and "set")
""",
    ),
    _filtered(
        "tracer-of-filtered-calls",
        "ptrace(2), PTRACE_O_TRACESECCOMP: whoever is told of a filtered call can let it through",
        """
ATTACH, DETACH, SEIZE, SET_OPTIONS, OLD_SET_OPTIONS, TRACE_SECCOMP = 16, 17, 0x4206, 0x4200, 21, 128
def traces(request):
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        if request == SEIZE:
            return attempt(call, "ptrace", SEIZE, pid, 0, TRACE_SECCOMP) is not None
        call("ptrace", ATTACH, pid, 0, 0)
        os.waitpid(pid, 0)
        return attempt(call, "ptrace", request, pid, 0, TRACE_SECCOMP) is not None
    finally:
        os.kill(pid, signal.SIGKILL), os.waitpid(pid, 0)
verdict([hex(request) for request in (SEIZE, SET_OPTIONS, OLD_SET_OPTIONS) if traces(request)])
""",
    ),
    _filtered(
        "listener-of-filtered-calls",
        "seccomp_unotify(2): what a listener continues is made, whatever other filters trace",
        """
LISTENER, RECEIVE, SEND, CONTINUE = 8, 0xC0502100, 0xC0182101, 1
TO_LISTENER, ALLOW = 0x7FC00000, 0x7FFF0000
ours, its = socket.socketpair()
pid = os.fork()
if pid == 0:
    lines = struct.pack("HBBIHBBIHBBIHBBI", 0x20, 0, 0, 0, 0x15, 0, 1, SYS["setns"],
                        6, 0, 0, TO_LISTENER, 6, 0, 0, ALLOW)
    kept = ctypes.create_string_buffer(lines)
    program = struct.pack("HxxxxxxP", 4, ctypes.addressof(kept))
    fd = attempt(call, "seccomp", 1, LISTENER, program)
    if fd is None:
        os._exit(1)
    socket.send_fds(its, [b"x"], [fd])
    os._exit(0 if reached(errno.ENOSYS, "setns", -1, 0) else 1)
its.close()
for fd in socket.recv_fds(ours, 1, 1)[1]:
    notice = ctypes.create_string_buffer(80)
    call("ioctl", fd, RECEIVE, notice)
    call("ioctl", fd, SEND, struct.pack("QqiI", struct.unpack_from("Q", notice)[0], 0, 0, CONTINUE))
    os.close(fd)
ours.close()
verdict(os.waitpid(pid, 0)[1] == 0 and "setns was made")
""",
    ),
    _filtered(
        "socket-options",
        "tcp(7), udp(7): parts of the kernel that any user loads and sets up; CVE-2023-0461",
        """
ipv4, stream, datagram = socket.AF_INET, socket.SOCK_STREAM, socket.SOCK_DGRAM
allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xFFFFFFFF))
socket_filter = struct.pack("HxxxxxxP", 1, ctypes.addressof(allow))
address = struct.pack("HH", ipv4, 0) + bytes([127, 0, 0, 1]) + bytes(120)
options = {
    "TCP_ULP": (stream, 6, 31, b"tls"),
    "TCP_CONGESTION": (stream, 6, 13, b"reno"),
    "TCP_MD5SIG": (stream, 6, 14, address + struct.pack("BBHI", 0, 0, 0, 0) + bytes(80)),
    "TCP_AO_ADD_KEY": (stream, 6, 38, bytes(8)),
    "UDP_ENCAP": (datagram, 17, 100, struct.pack("i", 2)),
    "SO_ATTACH_FILTER": (datagram, 1, 26, socket_filter),
    "SO_ATTACH_REUSEPORT_CBPF": (datagram, 1, 51, socket_filter),
    "SO_ATTACH_BPF": (datagram, 1, 50, struct.pack("i", -1)),
}
def reached_option(kind, level, option, value):
    with socket.socket(ipv4, kind) as one:
        given = (one.fileno(), level, option, value, len(value))
        return reached(errno.ENOPROTOOPT, "setsockopt", *given)
verdict([name for name, arguments in options.items() if reached_option(*arguments)])
""",
    ),
    Probe(
        name="modules-by-ioctl",
        group="kernel",
        source="sock_ioctl of Linux loads bridge and 8021q before it looks at who asks",
        language="c",
        code=REACHED
        + f"""
with socket.socket() as one:
    verdict([hex(request) for request in {MODULES_BY_IOCTL}
             if reached(errno.EPERM, "ioctl", one.fileno(), request, bytes(128))])
""",
        weakness=Weakness(system_calls=pretending_ioctls(*MODULES_BY_IOCTL)),
        filtered=True,
    ),
    _filtered(
        "keys-of-a-file-system",
        "fscrypt: every user may add keys to a file system of the host, shown read-only or not",
        """
ADD, REMOVE, REMOVE_OF_ALL = 0xC0506617, 0xC0406618, 0xC0406619
root = os.open("/workspace", os.O_RDONLY)
verdict([hex(request) for request in (ADD, REMOVE, REMOVE_OF_ALL)
         if reached(errno.EPERM, "ioctl", root, request, bytes(128))])
os.close(root)
""",
    ),
    _filtered(
        "scheduling-of-another",
        "sched_setaffinity(2), setpriority(2): processes of the same user, a fork's too, get slow",
        """
PROCESS, GROUP, USER, IDLE, DISK_IDLE = 0, 1, 2, 5, 3 << 13
IOPRIO_GET = {"x86_64": 252, "aarch64": 31}[os.uname().machine]
pid = os.fork()
if pid == 0:
    signal.pause()
def state():
    return (os.sched_getaffinity(pid), os.getpriority(PROCESS, pid), os.sched_getscheduler(pid),
            call(IOPRIO_GET, 1, pid))
ways = {
    "sched_setaffinity": (pid, 8, struct.pack("Q", 1 << max(os.sched_getaffinity(pid)))),
    "setpriority": (PROCESS, pid, 5),
    "setpriority of a user": (USER, os.getuid(), 6),
    "setpriority of a group": (GROUP, os.getpgid(pid), 7),
    "ioprio_set": (1, pid, DISK_IDLE),
    "sched_setscheduler": (pid, IDLE, struct.pack("i", 0)),
    "sched_setparam": (pid, struct.pack("i", 0)),
    "sched_setattr": (pid, struct.pack("IIQiIQQQ", 48, IDLE, 0, 0, 0, 0, 0, 0), 0),
}
before, changed = state(), []
for way, arguments in ways.items():
    attempt(call, way.split()[0], *arguments)
    if state() != before:
        before, changed = state(), [*changed, way]
os.kill(pid, signal.SIGKILL), os.waitpid(pid, 0)
verdict(changed)
""",
    ),
    _filtered(
        "old-personalities",
        "personality(2): CVE-2009-1895; code in what is data, a page at 0, less randomness",
        """
kinds = {"READ_IMPLIES_EXEC": 0x400000, "MMAP_PAGE_ZERO": 0x100000, "UNAME26": 0x20000}
verdict([name for name, kind in kinds.items() if child(call, "personality", kind)])
""",
    ),
    _filtered(
        "old-entry",
        "seccomp(2), caveats: int 0x80 reaches other system calls by the same numbers",
        """
import mmap
if os.uname().machine == "x86_64":
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")  # mov eax, 20 (getpid); int 0x80; ret
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if function() == os.getpid() else 1)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV:
        not_here("a kernel that runs 32-bit programs")
    else:
        verdict(not os.WIFSIGNALED(status) and "ran")
else:
    not_here("another entry")
""",
    ),
)
