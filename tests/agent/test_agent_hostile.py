"""Code that attacks the agent, in throw-away jails with the agent as PID 1, unprivileged.

The jail here has no system call filter, so that what holds is the agent's own doing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator

import pytest

from agent_process import GET, SET, AgentProcess, Interpreter, Reply, becomes_true, jailed_agent
from realjail import needs_bwrap
from sandbox.framing import encode_frame
from selection import one_in

pytestmark = [pytest.mark.jail, needs_bwrap]


def works(agent: AgentProcess, interpreter: Interpreter = "python") -> bool:
    """Return whether the session still answers correctly, with a fresh interpreter if needed."""
    code = {"python": "print(6 * 7)", "bash": "echo $((6 * 7))", "node": "console.log(6 * 7)"}
    agent.run({"python": "0", "bash": ":", "node": "0"}[interpreter], interpreter)
    reply = agent.run(code[interpreter], interpreter)
    return (reply.stdout, reply.exit_code, reply.interpreter_restarted) == ("42\n", 0, False)


def background(agent: AgentProcess) -> int:
    count: int = agent.status()["background"]
    return count


@pytest.fixture
def limited() -> Generator[AgentProcess]:
    """An agent with limits and a small workspace."""
    with jailed_agent(weak=("--size", "4000000", "--tmpfs", "/workspace")) as agent:
        agent.send(type="hello", limits={"processes": 80, "descriptors": 300})
        yield agent


@pytest.mark.parametrize(
    ("interpreter", "code"),
    [
        ("bash", "kill -9 -1"),
        pytest.param("bash", "/bin/kill -9 -1", marks=pytest.mark.slow),
        ("python", "import os; os.kill(-1, 9)"),
        pytest.param("node", "process.kill(-1, 'SIGKILL')", marks=pytest.mark.slow),
        ("bash", "kill -STOP -1; /bin/kill -9 -- -1"),
    ],
)
def test_killing_everybody(jailed: AgentProcess, interpreter: Interpreter, code: str) -> None:
    present: list[Interpreter] = [name for name in SET if name != "node" or shutil.which("node")]
    for name in present:
        assert jailed.run(SET[name], name).exit_code == 0
    reply = jailed.run(f"{code}", interpreter)
    assert isinstance(reply, Reply)
    for name in present:
        if name != interpreter:
            assert jailed.run("", name).interpreter_restarted
        assert works(jailed, name)


@pytest.mark.parametrize("number", one_in(5, [1, 2, 3, 9, 10, 11, 15, 12, 13, 19, 17, 18, 34, 64]))
def test_signals_to_the_agent_do_nothing(jailed: AgentProcess, number: int) -> None:
    reply = jailed.bash(f"for i in 1 2 3 4 5; do /bin/kill -{number} 1; done; echo sent")
    assert reply.stdout == "sent\n"
    assert works(jailed, "bash")


LOOK = {
    "memory": "open('/proc/1/mem', 'rb').read(1)",
    "descriptors": "os.listdir('/proc/1/fd')",
    "channel": "open('/proc/1/fd/200', 'rb')",
    "environment": "open('/proc/1/environ').read()",
    "maps": "open('/proc/1/maps').read()",
    "root": "os.listdir('/proc/1/root')",
    "ptrace": "check(libc.ptrace(16, 1, 0, 0))",
    "pidfd_getfd": "check(libc.syscall(438, os.pidfd_open(1), 200, 0))",
    "process_vm_readv": "check(libc.syscall(310, 1, iov, 1, iov, 1, zero))",
    "kcmp": "check(libc.syscall(312, 1, os.getpid(), 2, 0, 0))",
}

PRELUDE = """
import os, ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
data = ctypes.create_string_buffer(16)
iov = (ctypes.c_void_p * 2)(ctypes.addressof(data), 16)
zero = ctypes.c_long(0)
def check(result):
    if result < 0: raise OSError(ctypes.get_errno(), 'refused')
"""


@pytest.mark.parametrize("name", LOOK)
def test_the_agent_cannot_be_looked_into(shared_jailed: AgentProcess, name: str) -> None:
    shared_jailed.python(PRELUDE)
    reply = shared_jailed.python(LOOK[name])
    assert reply.stderr.splitlines()[-1].startswith(("PermissionError", "ProcessLookupError"))
    # The same on a process of the code's own succeeds: the probe does find out.
    shared_jailed.python("import subprocess; child = subprocess.Popen(['sleep', '600'])")
    own = LOOK[name].replace("/proc/1/", "/proc/self/").replace("200", "0")
    own = own.replace("ptrace(16, 1,", "ptrace(16, child.pid,").replace(
        "open(1)", "open(child.pid)"
    )
    own = own.replace("(310, 1,", "(310, os.getpid(),").replace("312, 1", "312, child.pid")
    own = own.replace("mem', 'rb').read(1)", "mem', 'rb').seek(0)")
    assert shared_jailed.python(own).exit_code == 0
    assert works(shared_jailed)


FEW_PROCESSES = 24
"""A limit for bombs, all of which compute at once and slow down the tests of other workers."""

BOMBS: dict[str, tuple[Interpreter, str]] = {
    "bash": ("bash", "b() { b | b & }; b; sleep 60"),
    "bash in sessions of their own": (
        "bash",
        "b() { setsid bash -c 'sleep 0.01' & b | b & }; b; wait",
    ),
    "python": ("python", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
    "python daemons": (
        "python",
        """
import os
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError: pass
""",
    ),
    "python that is another process at each look": (
        "python",
        """
import os, signal, time
if os.fork() == 0:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if os.fork(): os._exit(0)
        os.setsid()
time.sleep(60)
""",
    ),
}


@pytest.mark.parametrize(
    "others", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["alone", "beside others"]
)
@pytest.mark.parametrize("name", one_in(2, BOMBS))
def test_fork_bombs(limited: AgentProcess, name: str, others: bool) -> None:
    limited.send(type="hello", limits={"processes": FEW_PROCESSES})
    interpreter, code = BOMBS[name]
    other: Interpreter = "bash" if interpreter == "python" else "python"
    if others:
        limited.run(SET[other], other)
        limited.bash("sleep 600 &") if other == "bash" else limited.python(
            "import subprocess; p = subprocess.Popen(['sleep', '600'])"
        )
    reply = limited.run(code, interpreter, timeout_s=0.5, grace_s=0.3)
    # A bomb may fail to fork and end by itself; 137: its foreground did, and the rest was ended.
    assert reply.exit_code in {124, 0, 1, 137, 254}
    if not reply.interpreter_restarted:
        interpreter_pid = {"bash": "kill -9 $$", "python": "os._exit(1)", "node": ""}[interpreter]
        limited.run(interpreter_pid, interpreter)
    becomes_true(lambda: background(limited) == (1 if others else 0), "only the other's are left")
    assert works(limited, interpreter)
    if others:
        reply = limited.run(GET[other], other)
        assert (reply.stdout, reply.interpreter_restarted) == ("5\n", False)


BOMBS_LEFT_BEHIND: dict[str, tuple[Interpreter, str]] = {
    "bash": ("bash", ":(){ :|:& };:"),
    "bash, slowly": ("bash", "b() { sleep 0.1; b | b & }; b"),
    "python": (
        "python",
        """
import os
if os.fork() == 0:
    while True:
        try: os.fork()
        except OSError: pass
""",
    ),
}


# On a starved machine shells give up and try again, so that a bomb may stay below the limit for as
# long as the agent looks for it: then only time ends it.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name == "bash" else [])
        for name in BOMBS_LEFT_BEHIND
    ],
)
def test_a_fork_bomb_that_code_leaves_behind(limited: AgentProcess, name: str) -> None:
    """The note is in its own result or, on a busy machine, in the next one."""
    limited.send(type="hello", limits={"processes": FEW_PROCESSES})
    interpreter, code = BOMBS_LEFT_BEHIND[name]
    limited.run(SET[interpreter], interpreter)
    replies = [limited.run(code, interpreter)]
    becomes_true(lambda: background(limited) == 0, "it is ended")
    replies.append(limited.run(GET[interpreter], interpreter))
    notes = [note for reply in replies for note in reply.frame.get("notes", ())]
    assert [note for note in notes if note.endswith("(a fork bomb)")]
    # The interpreter itself goes on.
    assert (replies[1].stdout, replies[1].exit_code) == ("5\n", 0)
    assert not any(reply.interpreter_restarted for reply in replies)


def test_programs_with_many_processes_go_on(limited: AgentProcess) -> None:
    """Copies that the shell itself has started up to the limit, and some that copies have."""
    limited.send(type="hello", limits={"processes": FEW_PROCESSES})
    five = "for i in {1..5}; do (read <here) & echo $! >>pids; done"
    fifteen = "for i in {1..15}; do (read <here) & echo $! >>pids; done"
    limited.bash(f"mkfifo here made; ({five}; echo >made; wait) & {fifteen}; read <made")
    assert background(limited) == FEW_PROCESSES - 3
    reply = limited.bash("for pid in $(<pids); do kill -0 $pid || echo $pid is gone; done")
    assert (reply.stdout, reply.frame.get("notes")) == ("", None)


def test_copies_of_code_that_runs_are_no_fork_bomb(limited: AgentProcess) -> None:
    limited.send(type="hello", limits={"processes": FEW_PROCESSES})
    limited.bash("mkfifo here; (read <here) &")  # left behind: it is looked at
    code = "(for i in {1..19}; do (read -t 0.2 <>here; echo $i) & done; wait)"
    reply = limited.bash(code)
    assert sorted(reply.stdout.split(), key=int) == [str(number) for number in range(1, 20)]
    assert "notes" not in reply.frame


def test_the_agent_can_start_interpreters_while_code_uses_up_all_processes(
    limited: AgentProcess,
) -> None:
    code = "import subprocess\nfor _ in range(200): subprocess.Popen(['sleep', '600'])"
    assert "BlockingIOError" in limited.python(code).stderr
    assert background(limited) > 40
    assert works(limited, "bash")
    assert limited.bash("(true)", timeout_s=1, grace_s=0.5).exit_code != 0  # it cannot fork


FILL = """
import os, time
for _ in range(200):
    try:
        if os.fork() == 0: time.sleep(600)
    except OSError:
        break
"""


@pytest.mark.parametrize(
    "others", [pytest.param(False, marks=pytest.mark.slow), True], ids=["alone", "beside others"]
)
def test_processes_left_by_a_bomb_make_room_for_the_next_interpreter(others: bool) -> None:
    """A control group's limit holds for the agent, too, as this one does here."""
    limit = ("/usr/bin/bash", "-c", 'ulimit -u 80 && exec "$@"', "bash")
    with jailed_agent(within=limit) as agent:
        if others:
            agent.bash(SET["bash"])
        for _ in range(3):
            assert agent.python(f"{FILL}\nos._exit(3)").exit_code == 3
            assert agent.python("print(6 * 7)").stdout == "42\n"
            assert background(agent) == 0
        if others:
            assert agent.bash(GET["bash"]).stdout == "5\n"


def test_daemons_of_a_dead_interpreter_are_found(jailed: AgentProcess) -> None:
    """Double fork, session of its own, empty environment, no descriptor of ours."""
    daemon = "(setsid env -i sh -c 'sleep 600 & exec sleep 600' </dev/null >/dev/null 2>&1 &)"
    jailed.bash("sleep 600 &")
    jailed.python(f"import os; os.system({daemon!r}); os.system('sleep 0.1')")
    becomes_true(lambda: background(jailed) == 3, "all three run")
    jailed.python("os._exit(0)")
    becomes_true(lambda: background(jailed) == 1, "bash's process is left")
    jailed.bash("exit")
    becomes_true(lambda: background(jailed) == 0, "none is left")


def test_orphans_are_reaped(jailed: AgentProcess) -> None:
    jailed.bash("for i in {1..300}; do (true &); done")
    count = "grep -lE '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
    becomes_true(lambda: jailed.bash(count).stdout == "0\n", "no zombie is left")


def to_the_agent(data: bytes) -> str:
    """Python code that writes this to its interpreter's connections."""
    return f"""
import os, stat
for fd in range(3, 300):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode): os.write(fd, {data!r})
    except OSError: pass
"""


FORGERIES = {
    "an end with another number": encode_frame({"type": "done", "id": 99, "exit_code": 0}),
    "wrong types": encode_frame({"type": "done", "id": [1], "exit_code": "x"}),
    "a display that is none": encode_frame({"type": "display", "data": [1, 2]}),
    "unknown": encode_frame({"type": "result", "id": "e1", "stdout": "forged"}),
    "not JSON": b"\0\0\0\4nope",
    "deep": (100_000).to_bytes(4, "big") + b"[" * 100_000,
    "too long": b"\xff\xff\xff\xff",
    "half a frame": b"\0\1\0\0half",
    "many": encode_frame({"type": "started", "id": 1}) * 1000,
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize(
    "interpreter",
    [
        "python",
        pytest.param("node", marks=pytest.mark.slow),
        pytest.param("bash", marks=pytest.mark.slow),
    ],
)
def test_forged_messages_harm_only_the_forger(
    jailed: AgentProcess, interpreter: Interpreter, name: str
) -> None:
    data = FORGERIES[name]
    other: Interpreter = "python" if interpreter != "python" else "bash"
    jailed.run(SET[other], other)
    codes = {
        "python": to_the_agent(data),
        "node": f"require('fs').writeSync(3, Buffer.from('{data.hex()}', 'hex')); 0",
        "bash": "for fd in {229..254}; do printf '"
        + "".join(f"\\{byte:03o}" for byte in data[:5000])
        + "((: 0 @ 99 : x\\n' 2>/dev/null >&$fd; done; true",
    }
    reply = jailed.run(codes[interpreter], interpreter, timeout_s=2, grace_s=0.3)
    if interpreter != "bash":  # whose loop writes to every descriptor, its stdout included
        assert "forged" not in reply.stdout
    assert works(jailed, interpreter)
    assert jailed.run(GET[other], other).stdout == "5\n"


def test_a_forged_end_cannot_reach_the_next_execution(jailed: AgentProcess) -> None:
    """Code that says it is done, and goes on: the next execution has its own answer."""
    forge = encode_frame({"type": "done", "id": 1, "exit_code": 0})
    code = to_the_agent(forge) + "import time; time.sleep(0.3)"
    assert jailed.python(code).exit_code == 0
    reply = jailed.python("print('own answer')")
    assert reply.stdout == "own answer\n"


@pytest.mark.parametrize(("depth", "kind"), [(40, "a/b"), (60, "text/plain"), (970, "text/plain")])
def test_displays_that_are_deep(jailed: AgentProcess, depth: int, kind: str) -> None:
    """An answer to a client has at most 64 levels, and else could not be sent at all."""
    data = '{"type":"display","data":{"a/b":' + "[" * depth + "]" * depth + "}}"
    frame = len(data).to_bytes(4, "big") + data.encode()
    reply = jailed.python(to_the_agent(frame))
    assert (reply.exit_code, [list(bundle) for bundle in reply.displays]) == (0, [[kind]])
    assert works(jailed)


@pytest.mark.slow
def test_forged_starts_bring_no_more_interrupts(jailed: AgentProcess) -> None:
    """Each would have the agent look at all processes, thousands of times in a moment."""
    starts = encode_frame({"type": "started", "id": 1}) * 50
    code = f"""
import os, signal, stat, threading, time
signal.signal(signal.SIGINT, lambda *_: os.write(1, b'i'))
socks = [int(fd) for fd in os.listdir('/proc/self/fd') if int(fd) >= 200]
socks = [fd for fd in socks if stat.S_ISSOCK(os.fstat(fd).st_mode)]
def flood():
    while True:
        for fd in socks: os.write(fd, {starts!r})
threading.Thread(target=flood, daemon=True).start()
os.write(1, b'up')
while True: time.sleep(100)
"""
    request = jailed.begin(code, stream=True, grace_s=2)
    jailed.running("up")
    jailed.send(type="interrupt", id=request)
    reply = jailed.result(request)
    assert reply.exit_code == 130
    interrupts = reply.stdout.removeprefix("up")
    assert 1 <= len(interrupts) <= 2, "at once, and after half of the grace"
    assert works(jailed)


@pytest.mark.slow
def test_forged_starts_of_a_shell(jailed: AgentProcess) -> None:
    """Forge, as above, lines in the form of those that tell that the shell is set up."""
    code = r"""
trap 'builtin printf i >&2' INT
for fd in {230..254}; do [[ $(readlink /proc/$$/fd/$fd) != socket:* ]] || socket=$fd; done
line=$(for ((i = 0; i < 50; i++)); do builtin echo "bash: /dev/null/0 h $$ @ 0 0 : x"; done)
while :; do builtin echo "$line"; done >&$socket
"""
    reply = jailed.bash(code, timeout_s=1, grace_s=2)
    assert reply.exit_code == 124
    said = reply.stderr.replace("bash: echo: write error: Interrupted system call\n", "")
    assert 1 <= len(said) <= 3, said


def test_messages_while_idle_cost_nothing(jailed: AgentProcess) -> None:
    jailed.python(
        "import threading, time\n"
        "class Rich:\n    def __repr__(self): return '.'\n"
        "    def _repr_html_(self): return 'x' * 10_000\n"
        "def flood():\n    for i in range(3000): display(Rich())\n"
        "thread = threading.Thread(target=flood); thread.start()"
    )
    reply = jailed.python("thread.join()")
    assert len(reply.displays) <= 1000
    assert works(jailed)


@pytest.mark.parametrize(
    ("interpreter", "code"),
    [
        ("python", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"),
        pytest.param("bash", "kill -STOP $$", marks=pytest.mark.slow),
        pytest.param("node", "process.kill(process.pid, 'SIGSTOP')", marks=pytest.mark.slow),
    ],
)
def test_an_interpreter_that_stops_itself(
    jailed: AgentProcess, interpreter: Interpreter, code: str
) -> None:
    """An interrupt wakes it, but not Node, which has torn itself down as if it were to end."""
    for _ in range(2):  # Node's second answer says that its worker is up, too
        jailed.run("", interpreter)
    grace_s = 1 if interpreter == "node" else 20
    reply = jailed.run(code, interpreter, timeout_s=1, grace_s=grace_s)
    assert reply.exit_code == 124
    assert reply.interpreter_restarted == (interpreter == "node")
    assert works(jailed, interpreter)


TRACED = """
import ctypes, os, signal
def stop_for_the_tracer():
    assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0  # PTRACE_TRACEME: the parent is to trace it
    os.kill(os.getpid(), signal.SIGUSR1)
"""


def test_an_interpreter_that_has_the_agent_trace_it(jailed: AgentProcess) -> None:
    """The interpreter stops at each signal, and the agent hears of it as it hears of an end."""
    reply = jailed.run(TRACED + "stop_for_the_tracer()")
    assert (reply.exit_code, reply.interpreter_restarted) == (137, True)
    assert "killed by SIGKILL" in reply.restart_reason
    assert works(jailed)


def test_an_orphan_that_has_the_agent_trace_it(jailed: AgentProcess) -> None:
    jailed.run(
        TRACED
        + """
import time
agent = os.getppid()
if os.fork() == 0:
    if os.fork() == 0:
        while os.getppid() != agent:
            time.sleep(0.001)
        stop_for_the_tracer()
        time.sleep(60)
    os._exit(0)
os.wait()
"""
    )
    becomes_true(lambda: background(jailed) == 0, "no orphan is left")
    assert works(jailed)


def test_the_jail_ends_with_the_channel_whatever_code_does(jailed: AgentProcess) -> None:
    jailed.bash("(trap '' TERM INT HUP; setsid sleep 600 &) ; kill -STOP $(pgrep sleep); true")
    jailed.begin(
        """
import signal
for number in set(range(1, 32)) - {9, 19}: signal.signal(number, signal.SIG_IGN)
while True: pass
"""
    )
    jailed.socket.close()
    assert jailed.wait() == 0


def test_a_full_disk(limited: AgentProcess) -> None:
    limited.bash("head -c 10000000 /dev/zero > fill")
    reply = limited.python("print('a' * 3_000_000); print('end')")
    assert reply.stdout.endswith("end\n")
    assert reply.truncated["stdout"]["omitted_bytes"] > 0
    limited.bash("rm fill")
    reply = limited.python("print('a' * 3_000_000)")
    assert reply.truncated["stdout"]["file"] is not None
    again = limited.python("print('b' * 3_000_000)")  # the disk cannot hold both
    assert again.exit_code == 0
    assert works(limited)


def test_a_thief_of_the_output(jailed: AgentProcess) -> None:
    jailed.bash("cat /proc/self/fd/1 > stolen & disown")
    for number in range(20):
        assert jailed.bash(f"echo {number}").exit_code == 0
    jailed.bash("kill %1 $! 2>/dev/null; pkill cat; true")
    assert works(jailed, "bash")


def test_a_directory_that_is_gone(jailed: AgentProcess) -> None:
    jailed.bash("mkdir d; cd d; rmdir ../d")
    jailed.python("import os; os.mkdir('e'); os.chdir('e'); os.rmdir('../e')")
    assert works(jailed, "bash")
    assert works(jailed)


# Limits.


SHELL = "ulimit -u; ulimit -n; ulimit -c; ulimit -Hn; echo $PPID"
LOOK_AT_LIMITS: dict[Interpreter, str] = {
    "bash": SHELL.replace("PPID", "$"),
    "python": f"import subprocess; _ = subprocess.run(['bash', '-c', {SHELL!r}])",
    "node": f"require('child_process').spawnSync('bash', ['-c', '{SHELL}'], {{stdio: [0, 1]}}); 0",
}
"""Prints the limits of processes, descriptors and core files, and the interpreter's number."""


@pytest.mark.parametrize(
    "interpreter", ["python", "bash", pytest.param("node", marks=pytest.mark.node)]
)
def test_limits_hold_for_each_interpreter(limited: AgentProcess, interpreter: Interpreter) -> None:
    told = limited.run(LOOK_AT_LIMITS[interpreter], interpreter).stdout.split()
    assert told[:4] == ["80", "300", "0", "300"]


@pytest.mark.parametrize("interpreter", one_in(3, ["python", "bash", "node"]))
def test_limits_reach_an_interpreter_that_runs_already(interpreter: Interpreter) -> None:
    with jailed_agent("--prestart", interpreter) as agent:
        agent.send(type="hello", limits={"processes": 70, "descriptors": 128, "data_bytes": 10**10})
        reply = agent.run(LOOK_AT_LIMITS[interpreter], interpreter)
        assert reply.stdout.split()[:2] == ["70", "128"]
        assert not reply.interpreter_restarted


@pytest.mark.parametrize("interpreter", one_in(3, ["python", "bash", "node"]))
def test_limits_from_the_start_change_nothing_when_they_come_again(
    interpreter: Interpreter,
) -> None:
    """A change takes another interpreter if a filter keeps the agent from limiting others."""
    limits = {"processes": 70, "descriptors": 128}
    with jailed_agent("--prestart", interpreter, "--limits", json.dumps(limits)) as agent:
        agent.send(type="hello", limits=limits)
        told = agent.run(LOOK_AT_LIMITS[interpreter], interpreter).stdout.split()
        first_pid = "2"
        assert (told[:2], told[-1]) == (["70", "128"], first_pid)


def test_the_memory_limit_is_a_memory_error_and_keeps_state(jailed: AgentProcess) -> None:
    jailed.send(type="hello", limits={"data_bytes": 200_000_000})
    jailed.python("kept = 5")
    reply = jailed.python("x = bytearray(300_000_000)")
    assert "MemoryError" in reply.stderr
    assert jailed.python("print(kept)").stdout == "5\n"


def test_code_dies_of_memory_before_the_agent(jailed: AgentProcess) -> None:
    score = "cat /proc/self/oom_score_adj"
    assert jailed.bash(score).stdout == "1000\n"
    assert jailed.python("print(open('/proc/self/oom_score_adj').read())").stdout == "1000\n\n"
    assert jailed.bash("cat /proc/1/oom_score_adj").stdout != "1000\n"
