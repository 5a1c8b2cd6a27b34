"""Probes of namespaces, mounts, capabilities, users and the network."""

from __future__ import annotations

from functools import partial

from isolation.probe import Probe
from isolation.weaken import (
    HOST_DIRECTORY,
    KEEPS_PRIVILEGES,
    MORE_NAMESPACES,
    NO_FILTER,
    NO_NETWORK_NAMESPACE,
    ROOT_OF_ITS_NAMESPACES,
    STRONG,
    STRONG_FORK,
    Weakness,
    as_root_of_its_namespace,
    with_more,
    with_mount,
    without,
)

_of_namespaces = partial(Probe, group="namespaces")
_of_network = partial(Probe, group="network")
_of_privileges = partial(Probe, group="privileges")

PROBES = (
    _of_namespaces(
        name="nested-user-namespaces",
        source="a nested user namespace undoes read-only binds",
        code="""
NEWUSER, NEWNS = 0x10000000, 0x20000
def child(flags):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.unshare(flags) == 0 else 1)
    return os.waitpid(pid, 0)[1] == 0
made = [hex(flags) for flags in (NEWUSER, NEWUSER | NEWNS) if child(flags)]
def cloned(*arguments):
    pid = libc.syscall(*arguments)
    if pid == 0:
        os._exit(0)
    return pid > 0 and os.waitpid(pid, 0)[1] == 0
SIGCHLD, CLONE3 = 17, 435
CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)
if CLONE and cloned(CLONE, ctypes.c_ulong(NEWUSER | SIGCHLD), None, None, None, None):
    made.append("clone")
if cloned(CLONE3, struct.pack("11Q", NEWUSER, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, 0), 88):
    made.append("clone3")
program = attempt(lambda: subprocess.run(["unshare", "--user", "true"], capture_output=True))
verdict(made or (program is not None and program.returncode == 0 and "unshare(1) works"))
""",
        weakness=Weakness(arguments=without("--disable-userns", "--seccomp")),
        fork_weakness=Weakness(template=NO_FILTER + MORE_NAMESPACES),
        held_twice={
            "filter": Weakness(arguments=without("--seccomp")),
            "disable-userns": Weakness(arguments=without("--disable-userns")),
        },
        fork_held_twice={"limits": Weakness(template=MORE_NAMESPACES)},
    ),
    _of_namespaces(
        name="more-namespaces",
        source="mount, PID, network and other namespaces need no more",
        code="""
kinds = {"mnt": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000, "uts": 0x4000000}
def child(action):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if action() == 0 else 1)
    return os.waitpid(pid, 0)[1] == 0
made = [kind for kind, flag in kinds.items() if child(lambda: libc.unshare(flag))]
entered = [kind for kind in kinds if child(
    lambda: libc.setns(os.open(f"/proc/self/ns/{kind}", os.O_RDONLY), 0))]
verdict(made + entered)
""",
        weakness=STRONG,
        fork_weakness=STRONG_FORK,
    ),
    _of_namespaces(
        name="mounts",
        source="mount(2), pivot_root(2), chroot(2)",
        code="""
REMOUNT, BIND, DETACH = 32, 4096, 2
OPEN_TREE, MOVE_MOUNT, FSOPEN, MOUNT_SETATTR = 428, 429, 430, 442
ways = {
    "remount": lambda: libc.mount(None, b"/project", None, REMOUNT | BIND, None),
    "remount of /": lambda: libc.mount(None, b"/", None, REMOUNT, None),
    "tmpfs": lambda: libc.mount(b"x", b"/tmp", b"tmpfs", 0, None),
    "bind": lambda: libc.mount(b"/workspace", b"/tmp", None, BIND, None),
    "umount": lambda: libc.umount2(b"/project", DETACH),
    "pivot_root": lambda: libc.pivot_root(b"/workspace", b"/workspace"),
    "chroot": lambda: libc.chroot(b"/workspace"),
    "open_tree": lambda: libc.syscall(OPEN_TREE, -100, b"/project", 1),
    "fsopen": lambda: libc.syscall(FSOPEN, b"tmpfs", 0),
    "mount_setattr": lambda: libc.syscall(
        MOUNT_SETATTR, -100, b"/project", 0, struct.pack("4Q", 0, 1, 0, 0), 32),
}
def works(way):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if way() >= 0 else 1)
    return os.waitpid(pid, 0)[1] == 0
verdict([name for name, way in ways.items() if works(way)])
""",
        spoils=True,
        weakness=STRONG,
        fork_weakness=STRONG_FORK,
    ),
    _of_namespaces(
        name="own-namespaces",
        source="namespaces(7)",
        code="""
verdict([name for name, link in STAGE["namespaces"].items()
         if os.readlink(f"/proc/self/ns/{name}") == link])
""",
        weakness=NO_NETWORK_NAMESPACE,
    ),
    _of_namespaces(
        name="host-name",
        source="uts_namespaces(7)",
        code="""
verdict(os.uname().nodename != "nsm" and os.uname().nodename)
""",
        weakness=Weakness(arguments=without("--unshare-uts", "--hostname")),
        fork_weakness=Weakness(
            arguments=without("--unshare-uts"),
            template="""
space["NAMESPACES"] &= ~space["CLONE_NEWUTS"]
space["_socket"].sethostname = lambda name: None
""",
        ),
    ),
    _of_privileges(
        name="capabilities",
        source="capabilities(7)",
        place="agent",
        code="""
with open("/proc/self/status") as file:
    sets = [line.split() for line in file if line.startswith("Cap")]
verdict([name for name, bits in sets if int(bits, 16)])
""",
        weakness=STRONG,
        fork_weakness=Weakness(template=KEEPS_PRIVILEGES),
    ),
    _of_privileges(
        name="no-new-privileges",
        source="prctl(2), PR_SET_NO_NEW_PRIVS",
        place="agent",
        code="""
with open("/proc/1/status") as file:
    values = dict(line.rstrip("\\n").split(":\\t") for line in file)
verdict(values["NoNewPrivs"] != "1" and "NoNewPrivs is " + values["NoNewPrivs"])
""",
        # bwrap cannot leave it out, so the weakened jail shows a status that says otherwise.
        weakness=Weakness(
            arguments=with_more(lambda stage: ["--ro-bind", stage.status, "/proc/1/status"])
        ),
        fork_weakness=Weakness(
            arguments=with_more(lambda stage: ["--ro-bind", stage.status, "/run/status"]),
            template=with_mount("/run/status", "/proc/1/status"),
        ),
    ),
    _of_privileges(
        name="become-root",
        source="root is not a jailer",
        code="""
def child(action):
    pid = os.fork()
    if pid == 0:
        try:
            action()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
ways = {"setuid": lambda: os.setuid(0), "setgid": lambda: os.setgid(0),
        "setgroups": lambda: os.setgroups([0]), "chown": lambda: os.chown("/workspace", 0, 0)}
broken = [name for name, way in ways.items() if child(way)]
verdict(broken + [f"uid {id}" for id in (os.getuid(), os.getgid()) if id == 0])
""",
        weakness=Weakness(arguments=as_root_of_its_namespace),
        fork_weakness=Weakness(template=ROOT_OF_ITS_NAMESPACES),
    ),
    Probe(
        name="kernel-settings",
        group="kernel",
        source="as host root, a jail writes /proc/sys/kernel/core_pattern",
        code="""
names = ["sys/kernel/core_pattern", "sys/kernel/hostname", "sys/kernel/modprobe", "sysrq-trigger"]
names += ["sys/vm/overcommit_memory", "sys/user/max_user_namespaces"]
def choose_pid():
    "Whoever may open this one may not write to it."
    return os.write(os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY), b"400")
if attempt(choose_pid):
    names.append("sys/kernel/ns_last_pid")
# Opening asks for the permission; nothing is written.
verdict([n for n in names if attempt(os.open, f"/proc/{n}", os.O_WRONLY) is not None])
""",
        weakness=Weakness(
            arguments=with_more(
                lambda stage: [*("--bind", stage.status, "/proc/sys/kernel/core_pattern")]
            )
        ),
        fork_weakness=Weakness(template=with_mount("/tmp/data", "/proc/sys/kernel/core_pattern")),
    ),
    _of_network(
        name="host-loopback",
        source="ip(7): services of the host that listen on its loopback",
        code="""
def connect(family, address):
    with socket.socket(family) as one:
        one.settimeout(5)
        one.connect(address)
        return True
places = [("127.0.0.1", STAGE["tcp_port"]), ("localhost", STAGE["tcp_port"])]
verdict([place for place in places if attempt(connect, socket.AF_INET, place)])
""",
        weakness=NO_NETWORK_NAMESPACE,
    ),
    _of_network(
        name="host-loopback-from-bash",
        source="ip(7): services of the host that listen on its loopback",
        language="bash",
        code="""
port=$(printf '%d' "$TCP_PORT"); found=
if (exec 9<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then found="connected to $port"; fi
verdict "$found"
""",
        weakness=NO_NETWORK_NAMESPACE,
    ),
    _of_network(
        name="abstract-sockets",
        source="only the network namespace stops abstract sockets",
        code="""
def connect():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\\0" + STAGE["abstract_name"])
        return True
verdict(attempt(connect) and "connected")
""",
        weakness=NO_NETWORK_NAMESPACE,
    ),
    _of_network(
        name="path-sockets",
        source="a socket under any visible bind can be connected",
        code="""
def connect():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(STAGE["socket_path"])
        return True
verdict(attempt(connect) and "connected")
""",
        weakness=HOST_DIRECTORY,
    ),
    _of_network(
        name="interfaces",
        source="proc(5), /proc/net",
        code="""
with open("/proc/net/dev") as file:
    names = [line.split(":")[0].strip() for line in file][2:]
with open("/proc/net/tcp") as file:
    listeners = file.read().splitlines()[1:]
verdict([name for name in names if name != "lo"] + listeners)
""",
        weakness=NO_NETWORK_NAMESPACE,
    ),
    _of_network(
        name="raw-sockets",
        source="packet(7), raw(7)",
        code="""
kinds = {"packet": (socket.AF_PACKET, socket.SOCK_RAW), "raw": (socket.AF_INET, socket.SOCK_RAW)}
verdict([name for name, (family, kind) in kinds.items()
         if attempt(socket.socket, family, kind, 1)])
""",
        weakness=STRONG,
        fork_weakness=STRONG_FORK,
    ),
)
