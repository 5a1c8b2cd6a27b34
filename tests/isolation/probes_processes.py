"""Probes of other processes, descriptors, variables and command lines."""

from __future__ import annotations

from functools import partial

from isolation.probe import Language, Probe
from isolation.stage import CANARY, CANARY_VARIABLE, LIMIT_VARIABLES
from isolation.weaken import DUMPABLE, GENEROUS, HOST_PROC, TALKATIVE, Weakness, both, without

_OWN_DESCRIPTORS: tuple[tuple[Language, str], ...] = (
    (
        "python",
        """
kinds = ("pipe:", "socket:", "/dev/null", "/memfd:", "anon_inode:", "/proc/")
links = [attempt(os.readlink, f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
verdict([link for link in links if link and not link.startswith(kinds)])
""",
    ),
    (
        "bash",
        """
found=; for link in /proc/$$/fd/*; do case "$(readlink "$link")" in
  pipe:*|socket:*|/dev/null|/memfd:*|/proc/*|'') ;; *) found="$found $(readlink "$link")" ;;
esac; done; verdict "$found"
""",
    ),
    (
        "node",
        """
{
  const fs = require('fs'), found = [];
  const known = /^(pipe:|socket:|[/]dev[/]null|[/]memfd:|anon_inode:|[/]proc[/])/;
  for (const fd of fs.readdirSync('/proc/self/fd')) {
    let link = ''; try { link = fs.readlinkSync('/proc/self/fd/' + fd); } catch { continue; }
    if (!known.test(link)) found.push(link);
  }
  verdict(found.join(' '));
}
""",
    ),
)

_of_agent = partial(Probe, group="agent")
_of_environment = partial(Probe, group="environment")
_of_processes = partial(Probe, group="processes")

PROBES = (
    _of_processes(
        name="host-processes",
        source="pid_namespaces(7): arguments of the host's processes",
        code="""
def arguments(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()
    except OSError:
        return ""
pids = [pid for pid in os.listdir("/proc") if pid.isdecimal()]
verdict([pid for pid in pids if STAGE["canary"] in arguments(pid)])
""",
        weakness=HOST_PROC,
    ),
    _of_environment(
        name="canary-in-proc",
        source="/proc/1/environ and cmdline are bwrap's own",
        place="agent",
        code="""
found = []
for pid in os.listdir("/proc"):
    for name in ("environ", "cmdline"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                text = file.read().decode(errors="replace")
        except OSError:
            continue
        found += [f"{word} in /proc/{pid}/{name}" for word in (STAGE["canary"], "--ro-bind")
                  if word in text]
verdict(found)
""",
        weakness=Weakness(
            # The usual way: hide the variables from the command, and take bwrap for PID 1.
            arguments=both(
                without("--as-pid-1"), lambda words, _: [*words[:-2], "--clearenv", *words[-2:]]
            ),
            environment={CANARY_VARIABLE: CANARY},
            on_command_line=True,
        ),
        fork_weakness=TALKATIVE,
    ),
    _of_environment(
        name="canary-in-environment",
        source="environ(7): variables of whoever started the supervisor",
        code="""
known = {"HOME", "LANG", "LOGNAME", "PATH", "PWD", "TERM", "TMPDIR", "USER"}
known |= {"PIP_RETRIES", "npm_config_fetch_retries"}  # of sessions without a network
known |= set(STAGE["limit_variables"])
if STAGE["store"]:  # of the script by which Nix starts a Python with packages
    known |= {"PYTHONNOUSERSITE", "SHLVL"} | {n for n in os.environ if n.startswith("NIX_PYTHON")}
verdict([n for n, v in os.environ.items() if n not in known or STAGE["canary"] in v])
""",
        weakness=TALKATIVE,
    ),
    _of_environment(
        name="canary-in-environment-of-bash",
        source="environ(7): the same, exported by a shell",
        language="bash",
        code=f"""
verdict "$(export -p | grep -Ev ' (HOME|LANG|LOGNAME|OLDPWD|PATH|PWD|SHLVL|TERM|TMPDIR|USER)(=|$)' |
  grep -Ev ' (PIP_RETRIES|npm_config_fetch_retries|{"|".join(LIMIT_VARIABLES)})=')"
""",
        weakness=TALKATIVE,
    ),
    Probe(
        name="inherited-descriptors",
        group="descriptors",
        source="CVE-2024-21626: bwrap passes what is inheritable",
        place="agent",
        code="""
listing = os.open("/proc/self/fd", os.O_RDONLY)
found = {int(fd) for fd in os.listdir(listing)}
links = {fd: attempt(os.readlink, f"/proc/self/fd/{fd}") for fd in found - {0, 1, 2, listing}}
channel = os.readlink("/proc/self/fd/1")
verdict({fd: link for fd, link in links.items() if link not in (None, channel)})
""",
        weakness=Weakness(
            inherits=lambda stage: stage.directory,
            template="""
import os
space["ForkedSession"]._keep_only = lambda self, fd, _: os.dup2(fd, space["SESSION_FD"])
""",
        ),
    ),
    *(
        Probe(
            name=f"descriptors-of-{language}",
            group="descriptors",
            source="interpreters.md: interpreters never inherit the agent's descriptors",
            language=language,
            code=code,
            weakness=GENEROUS,
        )
        for language, code in _OWN_DESCRIPTORS
    ),
    _of_agent(
        name="agent-from-python",
        source="a child reaches its parent through /proc/PPID and ptrace",
        code="""
PTRACE_SEIZE, SYS_PIDFD_GETFD = 0x4206, 438
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
def through_pidfd():
    pidfd = os.pidfd_open(1)
    return [fd for fd in range(256) if libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0) >= 0]
def by_vector():
    buffer = ctypes.create_string_buffer(8)
    mine = Vector(ctypes.addressof(buffer), 8)
    with open("/proc/1/maps") as file:
        theirs = Vector(int(next(file).split("-")[0], 16), 8)
    count = libc.process_vm_readv(1, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
    return count > 0
ways = {
    "fd": lambda: os.listdir("/proc/1/fd"),
    "fd/0": lambda: os.open("/proc/1/fd/0", os.O_RDWR),
    "mem": lambda: os.open("/proc/1/mem", os.O_RDWR),
    "environ": lambda: open("/proc/1/environ").read(),
    "maps": lambda: open("/proc/1/maps").read(),
    "root": lambda: os.listdir("/proc/1/root"),
    "cwd": lambda: os.readlink("/proc/1/cwd"),
    "exe": lambda: os.readlink("/proc/1/exe"),
    "map_files": lambda: os.listdir("/proc/1/map_files"),
    "pidfd_getfd": through_pidfd,
    "process_vm_readv": by_vector,
    "ptrace": lambda: libc.ptrace(PTRACE_SEIZE, 1, None, None) == 0,
}
verdict([name for name, way in ways.items() if attempt(way)])
""",
        weakness=DUMPABLE,
    ),
    _of_agent(
        name="agent-from-bash",
        source="a child reaches its parent through /proc/PPID and ptrace",
        language="bash",
        code="""
found=; ls /proc/1/fd >/dev/null 2>&1 && found="$found fd"
cat /proc/1/environ >/dev/null 2>&1 && found="$found environ"
head -c 1 /proc/1/maps >/dev/null 2>&1 && found="$found maps"
verdict "$found"
""",
        weakness=DUMPABLE,
    ),
    _of_agent(
        name="agent-from-node",
        source="a child reaches its parent through /proc/PPID and ptrace",
        language="node",
        code="""
verdict(['fd', 'root', 'task/1/fd'].filter((name) => {
  try { return require('fs').readdirSync('/proc/1/' + name).length >= 0; } catch { return false; }
}).join(' '))
""",
        weakness=DUMPABLE,
    ),
    _of_processes(
        name="parent-death-signal",
        source="it follows the thread that started the jail",
        place="agent",
        code="""
PR_GET_PDEATHSIG = 2
signal = ctypes.c_int()
libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(signal), 0, 0, 0)
verdict(signal.value and f"signal {signal.value} comes when the starter goes")
""",
        weakness=Weakness(
            arguments=lambda words, _: [*words[:-2], "--die-with-parent", *words[-2:]]
        ),
        fork_weakness=Weakness(
            template="""
drop_privileges = space["drop_privileges"]
def with_signal(*arguments):
    drop_privileges(*arguments)
    space["set_option"]("PR_SET_PDEATHSIG", 1, 9)
space["drop_privileges"] = with_signal
"""
        ),
    ),
)
