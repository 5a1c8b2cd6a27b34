"""Probes of namespaces and mounts, old and new ways, and of privileges."""

from __future__ import annotations

from functools import partial

from isolation.probe import Group, Probe
from isolation.weaken import STRONG, STRONG_FORK, UNFILTERED, UNFILTERED_FORK

_NEW_CALLS = """
SYS.update(json.loads('{"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431}'))
SYS.update(json.loads('{"fsmount": 432, "fspick": 433, "open_tree_attr": 467}'))
HERE, FLAG, STRING, CREATE, RECONFIGURE, FROM_EMPTY, DETACH = -100, 0, 1, 6, 7, 4, 2
"""
"""linux/mount.h; their numbers are the same on every architecture."""


def _strong(name: str, source: str, code: str, group: Group = "namespaces") -> Probe:
    return Probe(
        name=name,
        group=group,
        source=source,
        language="c",
        code=code,
        weakness=STRONG,
        fork_weakness=STRONG_FORK,
    )


_of_privileges = partial(Probe, group="privileges")

PROBES = (
    _strong(
        "time-namespaces",
        "time_namespaces(7): unshare is the only way into one, and shifts its clocks",
        """
NEWTIME = 0x80
verdict(child(call, "unshare", NEWTIME) and "made one")
""",
    ),
    _strong(
        "control-group-namespaces",
        "cgroup_namespaces(7): one hides where in the hierarchy the code is",
        """
NEWCGROUP = 0x2000000
verdict(child(call, "unshare", NEWCGROUP) and "made one")
""",
    ),
    _strong(
        "namespaces-through-a-pidfd",
        "setns(2): from Linux 5.8 on a pidfd stands for all namespaces of a process",
        """
kinds = {"net": 0x40000000, "uts": 0x4000000, "ipc": 0x8000000}
pidfd = os.pidfd_open(os.getpid())
verdict([name for name, kind in kinds.items() if child(call, "setns", pidfd, kind)])
os.close(pidfd)
""",
    ),
    _strong(
        "owner-of-the-namespaces",
        "ioctl_ns(2): NS_GET_USERNS gives the user namespace in which one would be privileged",
        """
GET_USERNS, GET_PARENT = 0xB701, 0xB702
def opened(name, request):
    with open(f"/proc/self/ns/{name}") as file:
        os.close(call("ioctl", file.fileno(), request, 0))
    return True
kinds = [(name, GET_USERNS) for name in ("net", "mnt", "uts", "ipc", "pid")]
kinds += [("user", GET_PARENT), ("pid", GET_PARENT)]
verdict([name for name, request in kinds if attempt(opened, name, request)])
""",
    ),
    _strong(
        "other-file-systems",
        "mount(2): a sysfs shows the machine's devices, a cgroup2 its groups",
        """
os.makedirs("/tmp/mounted", exist_ok=True)
def mounted(kind):
    call("mount", b"none", b"/tmp/mounted", kind.encode(), 0, None)
    call("umount2", b"/tmp/mounted", 2)
    return True
kinds = ("sysfs", "cgroup2", "proc", "devpts", "mqueue", "ramfs", "binfmt_misc", "bpf", "debugfs")
verdict([kind for kind in kinds if attempt(mounted, kind)])
os.rmdir("/tmp/mounted")
""",
    ),
    _strong(
        "lifted-sizes",
        "mount(2), MS_REMOUNT: a file system in memory gets another size",
        """
REMOUNT = 32
def lifted(path):
    before = os.statvfs(path)
    call("mount", None, path.encode(), None, REMOUNT, b"size=1g")
    size = before.f_blocks * before.f_frsize
    call("mount", None, path.encode(), None, REMOUNT, b"size=%d" % size)
    return True
verdict([path for path in STAGE["sizes"] if attempt(lifted, path)])
""",
    ),
    _strong(
        "reconfigured-file-systems",
        "fspick(2), fsconfig(2): the same by the newer way",
        _NEW_CALLS
        + """
def lifted(path):
    fd = call("fspick", HERE, path.encode(), 0)
    call("fsconfig", fd, STRING, b"size", b"1g", 0)
    call("fsconfig", fd, STRING, b"size", b"%d" % STAGE["sizes"][path], 0)
    call("fsconfig", fd, RECONFIGURE, None, None, 0)
    os.close(fd)
    return True
verdict([path for path in STAGE["sizes"] if attempt(lifted, path)])
""",
    ),
    _strong(
        "mount-by-the-new-calls",
        "fsopen(2), fsmount(2), move_mount(2): no call of the old ones is needed",
        _NEW_CALLS
        + """
os.makedirs("/tmp/mounted", exist_ok=True)
def mounted():
    fd = call("fsopen", b"tmpfs", 0)
    call("fsconfig", fd, CREATE, None, None, 0)
    tree = call("fsmount", fd, 0, 0)
    call("move_mount", tree, b"", HERE, b"/tmp/mounted", FROM_EMPTY)
    call("umount2", b"/tmp/mounted", DETACH)
    os.close(fd), os.close(tree)
    return True
verdict(attempt(mounted) and "mounted")
os.rmdir("/tmp/mounted")
""",
    ),
    _strong(
        "tree-with-other-attributes",
        "open_tree_attr(2): a copy of a mount and its attributes in one call",
        _NEW_CALLS
        + """
if [int(n) for n in os.uname().release.split(".")[:2]] >= [6, 15]:
    CLONE, no_programs = 1, struct.pack("4Q", 8, 0, 0, 0)
    tree = attempt(call, "open_tree_attr", HERE, b"/tmp", CLONE, no_programs, 32)
    if tree is not None:
        os.close(tree)
    verdict(tree is not None and "opened")
else:
    not_here("open_tree_attr")
""",
    ),
    _strong(
        "shared-mounts",
        "mount_namespaces(7): mounts that are shared show up elsewhere",
        """
SHARED, PRIVATE = 1 << 20, 1 << 18
shared = attempt(call, "mount", None, b"/tmp", None, SHARED, None) is not None
if shared:
    call("mount", None, b"/tmp", None, PRIVATE, None)
verdict(shared and "/tmp")
""",
    ),
    _strong(
        "files-by-their-number",
        "open_by_handle_at(2), CVE-2014-3519: past directories that are closed, past mounts",
        """
if [int(n) for n in os.uname().release.split(".")[:2]] >= [6, 11]:  # before, only for the host
    os.makedirs("/tmp/closed", exist_ok=True)
    handle, mount = ctypes.create_string_buffer(struct.pack("II", 128, 0), 136), ctypes.c_int()
    def opened():
        call("name_to_handle_at", -100, b"/tmp/closed", handle, ctypes.byref(mount), 0)
        root = os.open("/tmp", os.O_RDONLY)
        try:
            os.close(call("open_by_handle_at", root, handle, os.O_RDONLY | os.O_DIRECTORY))
        finally:
            os.close(root)
        return True
    verdict(attempt(opened) and "opened")
    os.rmdir("/tmp/closed")
else:
    not_here("privileges that reach that far")
""",
    ),
    _strong(
        "network-settings",
        "network_namespaces(7): /proc/sys/net belongs to the owner of the namespace",
        """
names = ["ipv4/ip_unprivileged_port_start", "ipv4/ip_forward", "ipv4/ping_group_range"]
def opened(name):
    os.close(os.open(f"/proc/sys/net/{name}", os.O_WRONLY))
    return True
verdict([name for name in names if attempt(opened, name)])
""",
    ),
    _strong(
        "capabilities-of-a-file",
        "capabilities(7): a file gives whoever executes it what its attribute says",
        """
REVISION_2, EFFECTIVE, NET_RAW = 0x2000000, 1, 1 << 13
value = struct.pack("<5I", REVISION_2 | EFFECTIVE, NET_RAW, 0, 0, 0)
open("/tmp/powerful", "w").close()
def given():
    os.setxattr("/tmp/powerful", "security.capability", value)
    return True
verdict(attempt(given) and "given")
os.unlink("/tmp/powerful")
""",
        "privileges",
    ),
    _strong(
        "ambient-capabilities",
        "capabilities(7): ambient ones survive execve without any file's attribute",
        """
AMBIENT, RAISE, NET_RAW, VERSION_3 = 47, 2, 13, 0x20080522
def raised():
    one = 1 << NET_RAW
    if libc.capset(struct.pack("Ii", VERSION_3, 0), struct.pack("6I", one, one, one, 0, 0, 0)) < 0:
        raise OSError(ctypes.get_errno(), "capset")
    if libc.prctl(AMBIENT, RAISE, NET_RAW, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")
verdict(child(raised) and "raised")
""",
        "privileges",
    ),
    _strong(
        "securebits",
        "capabilities(7): PR_SET_SECUREBITS, what user 0 means to the kernel",
        """
SET_SECUREBITS, NO_ROOT = 28, 1
def changed():
    if libc.prctl(SET_SECUREBITS, NO_ROOT, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")
verdict(child(changed) and "set")
""",
        "privileges",
    ),
    _of_privileges(
        name="state-of-the-filter",
        source="seccomp(2): it is inherited and cannot be taken off",
        language="bash",
        code="""
# Of the shell, of a program that it starts, and of one in the background.
found=; for status in /proc/$$/status /proc/self/status; do
  [ "$(sed -n 's/^Seccomp:[[:space:]]*//p' "$status")" = 2 ] || found="$found $status"
done
[ "$(sh -c 'sed -n "s/^Seccomp:[[:space:]]*//p" /proc/self/status & wait')" = 2 ] ||
  found="$found child"
verdict "$found"
""",
        weakness=UNFILTERED,
        fork_weakness=UNFILTERED_FORK,
        filtered=True,
    ),
    _of_privileges(
        name="state-of-the-agent-s-filter",
        source="seccomp(2): it is inherited and cannot be taken off",
        place="agent",
        code="""
with open("/proc/1/status") as file:
    values = dict(line.rstrip("\\n").split(":\\t") for line in file)
verdict(values["Seccomp"] != "2" and "Seccomp is " + values["Seccomp"])
""",
        weakness=UNFILTERED,
        fork_weakness=UNFILTERED_FORK,
        filtered=True,
    ),
)
