"""Probes of the agent and its files, of other processes, and of what interpreters come to know."""

from __future__ import annotations

from functools import partial

from isolation.probe import Probe
from isolation.stage import LIMIT_VARIABLES
from isolation.weaken import (
    DUMPABLE,
    GENEROUS,
    HOST_DIRECTORY,
    HOST_PROC,
    NOT_CLOSED,
    NOT_FIRST,
    ONE_PIDS,
    TALKATIVE,
    UNFILTERED,
    UNFILTERED_FORK,
    Weakness,
    both,
    with_more,
    without,
    wrapped_agent,
)

_SHARING = Weakness(
    agent=lambda source: wrapped_agent(
        source, b"import mmap\nspace['more'] = mmap.mmap(-1, 1 << 20)"
    )
)

_CONNECTED = Weakness(
    agent=lambda source: wrapped_agent(
        source,
        b"""
import fcntl, os, socket
def to_supervisor():
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            with socket.socket(fileno=os.dup(fd)) as one:
                peer = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
        except OSError:
            continue
        if peer == bytes(4):
            return fcntl.fcntl(fd, fcntl.F_DUPFD, 100)
for kind in space["INTERPRETERS"].values():
    kind.kept_fds = lambda self, kept=kind.kept_fds: (*kept(self), to_supervisor())
bash = space["INTERPRETERS"]["bash"]  # started without a fork
bash.spawn = lambda *given, spawn=bash.spawn: to_supervisor() and spawn(*given)
""",
    )
)

_BUILT_ELSEWHERE = Weakness(
    agent=lambda source: wrapped_agent(source, b"", "/home/somebody/nsm/agent/sandbox_agent.py")
)

_OLD_TERMINAL = Weakness(
    arguments=without("--new-session"), template='space["os"].setsid = lambda: None\n'
)

_ONE_CGROUP = Weakness(
    arguments=without("--unshare-cgroup-try"), template='space["LATE_NAMESPACES"] = 0\n'
)

_PATH_TO_WRITABLE = Weakness(
    arguments=lambda words, _: [
        "/workspace/bin:" + word if before == "PATH" else word
        for before, word in zip(["", *words], words, strict=False)
    ]
)

_SUPERVISOR_IN_RUN = Weakness(
    arguments=with_more(lambda stage: ["--ro-bind", stage.runtime, "/run/user/1000/nsm"])
)

_STOPPED = """
agent = os.getppid()
def stopped():
    "Whether it is, or will be as soon as it has a processor."
    for _ in range(50):
        with open(f"/proc/{agent}/status") as file:
            fields = dict(line.split(":", 1) for line in file)
        pending = int(fields["ShdPnd"], 16) >> signal.SIGSTOP - 1 & 1
        if pending or fields["State"].split()[0] in "Tt":
            return True
        os.sched_yield()
    return False
"""

_of_agent = partial(Probe, group="agent")
_of_environment = partial(Probe, group="environment")
_of_processes = partial(Probe, group="processes")
_of_supervisor = partial(Probe, group="supervisor")

PROBES = (
    # ------------------------------------------------------------------------------- the agent
    _of_agent(
        name="agent-stopped",
        source="pid_namespaces(7): PID 1 gets no signal from within that it does not handle",
        code=f"""
{_STOPPED}
ways = {{"kill": lambda: os.kill(agent, signal.SIGSTOP),
        "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(agent), signal.SIGSTOP)}}
if (group := os.getpgid(agent)) not in (0, os.getpgid(0)):
    ways["group"] = lambda: os.killpg(group, signal.SIGSTOP)
done = []
for name, way in ways.items():
    attempt(way)
    try:
        if stopped():
            done.append(name)
    finally:
        os.kill(agent, signal.SIGCONT)
verdict(done)
""",
        spoils=True,
        weakness=NOT_FIRST,
        fork_weakness=ONE_PIDS,
    ),
    _of_agent(
        name="agent-stopped-by-the-kernel",
        source="fcntl(2), F_SETOWN and F_SETSIG: a descriptor has the kernel send any signal",
        code=f"""
import fcntl
F_SETSIG = 10
{_STOPPED}
one, other = socket.socketpair()
def aim():
    fcntl.fcntl(one, fcntl.F_SETOWN, agent)
    fcntl.fcntl(one, F_SETSIG, signal.SIGSTOP)
    flags = fcntl.fcntl(one, fcntl.F_GETFL)
    fcntl.fcntl(one, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    other.send(b"x")
attempt(aim)
try:
    done = stopped()
finally:
    os.kill(agent, signal.SIGCONT)
one.close(), other.close()
verdict(done and "stopped it")
""",
        spoils=True,
        weakness=NOT_FIRST,
        fork_weakness=ONE_PIDS,
    ),
    _of_agent(
        name="agent-settings",
        source="proc(5): files of a process that can be written to, by its owner",
        code="""
names = ("comm", "oom_score_adj", "coredump_filter", "clear_refs", "autogroup", "loginuid",
         "mem", "uid_map", "gid_map", "setgroups")
verdict([name for name in names
         if (fd := attempt(os.open, f"/proc/1/{name}", os.O_WRONLY)) and os.close(fd) is None])
""",
        weakness=DUMPABLE,
    ),
    _of_agent(
        name="agent-memory-by-address",
        source="process_vm_readv(2); in a fork all lies where it lies here",
        language="c",
        code="""
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(8)
mine = Vector(ctypes.addressof(buffer), 8)
with open("/proc/self/maps") as file:
    starts = [int(line.split("-")[0], 16) for line in file][:200]
reached = set()
for name in ("process_vm_readv", "process_vm_writev"):
    for start in starts if name.endswith("readv") else [8]:
        theirs = Vector(start, 8)
        try:
            call(name, 1, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
            reached.add(name)
        except OSError as error:
            # Past the check of permissions there is nothing at that address.
            if error.errno == errno.EFAULT:
                reached.add(name)
verdict(sorted(reached))
""",
        weakness=DUMPABLE,
    ),
    _of_agent(
        name="agent-addresses",
        source="get_robust_list(2), proc(5): where things lie in the memory of a process",
        language="c",
        code="""
head, length = ctypes.c_void_p(), ctypes.c_size_t()
ROBUST = {"x86_64": 274, "aarch64": 100}.get(os.uname().machine, -1)
told = attempt(call, ROBUST, 1, ctypes.byref(head), ctypes.byref(length)) == 0
with open("/proc/1/stat") as file:
    fields = file.read().rpartition(")")[2].split()
START_CODE, END_CODE, START_STACK = 23, 24, 25
numbers = [int(fields[place]) for place in (START_CODE, END_CODE, START_STACK)]
verdict([word for word, found in (("robust list", told), ("stat", max(numbers) > 1)) if found])
""",
        weakness=DUMPABLE,
    ),
    _of_agent(
        name="agent-namespaces",
        source="proc(5), ioctl_pidfd: handles on the namespaces of another process",
        language="c",
        code="""
found = [name for name in ("mnt", "net", "pid", "user")
         if (fd := attempt(os.open, f"/proc/1/ns/{name}", os.O_RDONLY)) and os.close(fd) is None]
pidfd = os.pidfd_open(1)
GET_NAMESPACE = 0xFF00
for number in range(1, 11):
    if (fd := attempt(call, "ioctl", pidfd, GET_NAMESPACE | number, 0)) is not None:
        found.append(f"by pidfd {number}")
        os.close(fd)
os.close(pidfd)
verdict(found)
""",
        weakness=DUMPABLE,
    ),
    _of_agent(
        name="agent-program",
        source="CVE-2026-25725: what the next fork would run",
        code="""
def changed(path):
    with open(path, "rb") as file:
        before = file.read()
    os.rename(path, path + "-old")
    with open(path, "wb") as file:
        file.write(before)
    return True
with open("/proc/1/cmdline") as file:
    words = file.read().split("\\0")
files = {"/run/nsm/agent.py", "/run/nsm/template.py", "/run/nsm/filter"}
files |= {word for word in words if word.startswith("/") and os.path.isfile(word)}
def writable(path):
    if (fd := attempt(os.open, path, os.O_WRONLY)) is not None:
        os.close(fd)
    return fd is not None
verdict([path for path in sorted(files)
         if os.path.exists(path) and (writable(path) or attempt(changed, path))])
""",
        weakness=NOT_CLOSED,
    ),
    _of_agent(
        name="agent-shared-memory",
        source="memory that code and agent have in common",
        code="""
PAGE = os.sysconf("SC_PAGE_SIZE")
shared = []
with open("/proc/self/maps") as file:
    for line in file:
        where, permissions = line.split()[:2]
        low, high = (int(number, 16) for number in where.split("-"))
        if permissions.endswith("s") and "w" in permissions:
            shared.append(high - low)
# One page, in which the agent reads whether code runs; it believes nothing that is there.
verdict(sum(shared) > PAGE and f"{sum(shared)} bytes of shared memory")
""",
        weakness=_SHARING,
    ),
    _of_agent(
        name="agent-connection",
        source="unix(7), SO_PEERCRED: a socket whose other end is outside",
        code="""
PEER = struct.Struct("3i")
def outside(fd):
    with socket.socket(fileno=os.dup(fd)) as one:
        # Of a process in no namespace that is seen from here, there is no process id.
        return PEER.unpack(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] == 0
found = []
for name in os.listdir("/proc/self/fd"):
    link = attempt(os.readlink, "/proc/self/fd/" + name) or ""
    if link.startswith("socket:") and attempt(outside, int(name)):
        found.append(link)
verdict(found)
""",
        weakness=_CONNECTED,
    ),
    # ------------------------------------------------------------------------- other processes
    _of_processes(
        name="strangers",
        source="pid_namespaces(7): all that /proc shows descends from PID 1",
        code="""
def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
def ours(pid):
    for _ in range(100):
        if pid in (os.getpid(), os.getppid()):
            return True
        if pid <= 1:
            return False
        pid = parent(pid)
    return False
pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
if os.readlink("/proc/self") != str(os.getpid()):
    verdict("/proc is that of other processes")
else:
    verdict([pid for pid in pids if attempt(ours, pid) is False])
""",
        weakness=HOST_PROC,
        fork_weakness=ONE_PIDS,
    ),
    _of_processes(
        name="processes-by-number",
        source="kill(2): a number that is not in /proc may be a process all the same",
        code="""
def there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
children = set()
for task in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{task}/children") as file:
        children |= set(map(int, file.read().split()))
known = {1, os.getpid()} | children
verdict([pid for pid in (*range(1, 1024), STAGE["host_pid"]) if pid not in known and there(pid)])
""",
        weakness=NOT_FIRST,
        fork_weakness=ONE_PIDS,
    ),
    _of_processes(
        name="session-of-the-starter",
        source="CVE-2017-5226: a session of processes that has a terminal somewhere",
        place="agent",
        code="""
verdict(os.getsid(0) == 0 and "in the session of a process outside")
""",
        weakness=_OLD_TERMINAL,
    ),
    _of_processes(
        name="cgroup-namespace",
        source="cgroup_namespaces(7): names of the host's groups, and ways up in them",
        code="""
theirs = STAGE["namespaces"]["cgroup"]
with open("/proc/self/cgroup") as file:
    up = [line.strip() for line in file if "/.." in line]
verdict(up + [theirs] * (os.readlink("/proc/self/ns/cgroup") == theirs))
""",
        weakness=_ONE_CGROUP,
    ),
    _of_processes(
        name="filter-by-tracer",
        source="seccomp(2), notes: a tracer puts another call into the place of one let through",
        language="c",
        filtered=True,
        code="""
TRACEME, PEEKUSER, POKEUSER, SYSCALL, ORIG_RAX, RAX = 0, 3, 6, 24, 15 * 8, 10 * 8
GETPPID, KEYCTL = 110, 250
if os.uname().machine != "x86_64":
    not_here("registers that it knows")
else:
    libc.ptrace.restype = ctypes.c_long
    def trace(request, pid, address=0, data=0):
        return libc.ptrace(request, pid, ctypes.c_void_p(address), ctypes.c_void_p(data))
    pid = os.fork()
    if pid == 0:
        trace(TRACEME, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        libc.syscall(ctypes.c_long(GETPPID), -1, -1, -1)
        os._exit(0)
    os.waitpid(pid, 0)
    answer = None
    while answer is None:
        trace(SYSCALL, pid)
        if not os.WIFSTOPPED(os.waitpid(pid, 0)[1]):
            break
        if trace(PEEKUSER, pid, ORIG_RAX) == GETPPID:
            trace(POKEUSER, pid, ORIG_RAX, KEYCTL)
            trace(SYSCALL, pid)
            os.waitpid(pid, 0)
            answer = trace(PEEKUSER, pid, RAX)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    # Of arguments that make no sense, the kernel says that there is no such operation.
    verdict(answer == -errno.EOPNOTSUPP and "called keyctl")
""",
        weakness=UNFILTERED,
        fork_weakness=UNFILTERED_FORK,
    ),
    # ------------------------------------------------------- environment and command lines
    _of_environment(
        name="environment-of-node",
        source="environ(7): Node's copy of it",
        language="node",
        code=f"""
{{
  const known = /^(HOME|LANG|LOGNAME|OLDPWD|PATH|PWD|SHLVL|TERM|TMPDIR|USER|_|NIX_\\w+)$/;
  const offline = /^(PIP_RETRIES|npm_config_fetch_retries)$/;
  const limits = {list(LIMIT_VARIABLES)};
  const more = Object.keys(process.env).filter((name) => !limits.includes(name)
    && !known.test(name) && !offline.test(name));
  verdict(more.join(' '));
}}
""",
        weakness=TALKATIVE,
    ),
    _of_environment(
        name="canary-in-memory",
        source="fork(2): a fork has the memory of its template",
        code="""
import hashlib
start = bytes(reversed(b"-neddih"))
length = len("hidden-") + 16
found = []
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
    for line in maps:
        where, permissions = line.split()[:2]
        low, high = (int(number, 16) for number in where.split("-"))
        if not permissions.startswith("rw") or high - low > 1 << 26:
            continue
        memory.seek(low)
        data = attempt(memory.read, high - low) or b""
        place = data.find(start)
        while place >= 0:
            digest = hashlib.sha256(data[place:place + length]).hexdigest()
            if digest == STAGE["hidden"]:
                found.append(hex(low + place))
            place = data.find(start, place + 1)
verdict(found)
""",
        weakness=TALKATIVE,
    ),
    _of_environment(
        name="canary-in-files",
        source="environ(7): a variable of whoever starts a jail, in any file that it shows",
        language="bash",
        code="""
places="/etc/passwd /etc/group /etc/hosts /etc/nsswitch.conf /run /dev/shm /tmp /workspace"
places="$places /proc/self/environ /proc/self/cmdline /proc/self/mountinfo /proc/1/cmdline"
verdict "$(grep -rlas 'hidden-[0-9a-f]\\{16\\}' $places | tr '\\n' ' ')"
""",
        weakness=TALKATIVE,
    ),
    _of_environment(
        name="host-paths-in-command-lines",
        source="/proc/1/cmdline shows every bind",
        code="""
def text(pid):
    with open(f"/proc/{pid}/cmdline", errors="replace") as file:
        return file.read()
pids = [pid for pid in os.listdir("/proc") if pid.isdecimal()]
verdict([pid for pid in pids if STAGE["directory"] in (attempt(text, pid) or "")])
""",
        weakness=Weakness(
            arguments=both(
                without("--as-pid-1"),
                with_more(lambda stage: ["--ro-bind", stage.secret, "/run/secret"]),
            ),
            on_command_line=True,
        ),
        # bwrap stays PID 1 of a template's jail; forks have a /proc of their own.
        fork_weakness=Weakness(
            arguments=with_more(lambda stage: ["--ro-bind", stage.secret, "/run/secret"]),
            template=ONE_PIDS.template,
            on_command_line=True,
        ),
    ),
    _of_environment(
        name="host-paths-in-code",
        source="PEP 552: compiled code bears the path of its source",
        code="""
import gc, types
gc.unfreeze()  # or a fork would not tell what its template has loaded
frame, codes = sys._getframe(), []
while frame:
    codes.append(frame.f_code)
    frame = frame.f_back
codes += [one.__code__ for one in gc.get_objects() if isinstance(one, types.FunctionType)]
shown = ["<", "/run/nsm/", "/usr/", "/lib", "/workspace/", "canary", "host-paths"]
if STAGE["store"]:
    shown.append(STAGE["store"] + "/")
names = {code.co_filename for code in codes}
strange = {name for name in names if name.startswith("/") and not name.startswith(tuple(shown))}
verdict(sorted(strange))
""",
        weakness=_BUILT_ELSEWHERE,
    ),
    _of_environment(
        name="path-variable",
        source="CWE-427: PATH with a directory that can be written to",
        language="bash",
        code="""
found=; IFS=: read -r -a places <<<"$PATH"
for place in "${places[@]}"; do case "$place" in
  /workspace*|/tmp*|/dev/*|/project*|.*|'') found="$found $place" ;;
  *) if [ -w "$place" ]; then found="$found $place"; fi ;;
esac; done; unset IFS; verdict "$found"
""",
        weakness=_PATH_TO_WRITABLE,
    ),
    # ----------------------------------------------------------------------------- descriptors
    Probe(
        name="descriptors-of-programs",
        group="descriptors",
        source="every descriptor that is not closed on exec goes on",
        language="bash",
        code="""
found=; for link in $(sh -c 'for fd in /proc/self/fd/*; do readlink $fd; done'); do case "$link" in
  pipe:*|/dev/null|/proc/*) ;; *) found="$found $link" ;;
esac; done; verdict "$found"
""",
        weakness=GENEROUS,
    ),
    # -------------------------------------------------------------- the supervisor's own files
    _of_supervisor(
        name="control-socket",
        source="unix(7): the socket by which the supervisor is told what to do",
        code="""
names = ["/run/user/1000/nsm", "/run/user/0/nsm", "/run/nsm", "/tmp/nsm", "/workspace/.nsm",
         "/project/.nsm", STAGE["runtime"]]
for top in ("/run", "/tmp", "/workspace", "/dev/shm"):
    names += [path for path, _, files in os.walk(top) if "control.sock" in files]
def connect(place):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(place + "/control.sock")
    return True
verdict([place for place in names if attempt(connect, place)])
""",
        weakness=_SUPERVISOR_IN_RUN,
    ),
    _of_supervisor(
        name="transcripts",
        source="docs/how-to/sessions.md: transcripts have what was said in other sessions",
        language="bash",
        code="""
found=; for place in "${SECRET%/secret}/runtime" ~/.local/state/nsm /root/.local/state/nsm \\
    /run/user/*/nsm "${XDG_STATE_HOME:-/nowhere}/nsm"; do
  if ls "$place/transcripts" >/dev/null 2>&1; then found="$found $place"; fi
done; verdict "$found"
""",
        weakness=_SUPERVISOR_IN_RUN,
    ),
    _of_supervisor(
        name="settings-of-the-supervisor",
        source="docs/reference/configuration.md: values of [environments.NAME.env] are secrets",
        language="node",
        code="""
{
  const fs = require('fs');
  const places = [STAGE.runtime, '/workspace/.config/nsm', '/root/.config/nsm', '/etc/nsm'];
  for (const user of ['0', '1000']) places.push('/run/user/' + user + '/nsm');
  verdict(places.filter((place) => fs.existsSync(place + '/config.toml')).join(' '));
}
""",
        weakness=HOST_DIRECTORY,
        fork_weakness=_SUPERVISOR_IN_RUN,
    ),
    _of_supervisor(
        name="files-that-run-later",
        source="CVE-2026-25725: files that are absent, and that siblings would run",
        code="""
names = ["/etc/profile", "/etc/environment", "/etc/inputrc", "/etc/resolv.conf", "/etc/gitconfig",
         "/etc/npmrc", "/etc/pip.conf", "/run/nsm/next.py", "/usr/lib/python3/dist-packages/x.pth"]
made = []
for name in names:
    try:
        os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        continue
    made.append(name)
    os.unlink(name)
verdict(made)
""",
        weakness=NOT_CLOSED,
    ),
)
