"""Sessions and their forks, which must not reach each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from e2e_support import supervisor
from live_forks import SEES, children_of, needs_scopes, printed
from nsm.wire.errors import ForkRefusedError

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor
    from nsm import Client

pytestmark = needs_scopes


def test_original_and_forks_cannot_reach_each_other(client: Client) -> None:
    printed(client, "above", SEES)
    forks = [fork.name for fork in client.fork("above", count=2).forks]
    (below,) = client.fork(forks[0]).forks
    nothing = "[]\n"
    for name in ("above", *forks, below.name):
        assert printed(client, name, "print(reached())") == nothing, name
        privileges = "([0, 0, 0, 0, 0, 2, 1], ['0', '0', '0', '0'])\n"
        assert printed(client, name, "print(privileges())") == privileges, name
        code = "print(libc.setns(os.open('/proc/self/ns/user', 0), 0), ctypes.get_errno())"
        assert printed(client, name, code) == "-1 38\n"
        again = "print(libc.unshare(0x10000000), ctypes.get_errno())"
        assert printed(client, name, again) == "-1 1\n"
    # Nor can what starts in the original only later.
    client.run("import os; os._exit(0)", env="python", session="above")
    printed(client, "above", SEES)
    assert printed(client, "above", "print(reached())") == nothing
    program = SEES + "open('/workspace/reached', 'w').write(repr(reached()))"
    assert client.exec("above", ["python3", "-c", program], env="python").wait().exit_code == 0
    assert printed(client, "above", "print(open('/workspace/reached').read())") == nothing


SLOWS = """
import fcntl, signal, socket, struct
# Opened before there is a fork.
proc = os.open('/proc', os.O_RDONLY)
def state():
    return (sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0),
            os.sched_getscheduler(0), libc.syscall(252, 1, 0), libc.prctl(30))
def write(pid, name, text):
    fd = os.open(f'{pid}/{name}', os.O_WRONLY, dir_fd=proc)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)
def slow(pid):
    for action, *arguments in (
        (os.sched_setaffinity, pid, {max(os.sched_getaffinity(0))}),
        (os.setpriority, os.PRIO_PROCESS, pid, 7),
        (os.setpriority, os.PRIO_PGRP, pid, 7),
        (os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0)),
        (os.sched_setparam, pid, os.sched_param(0)),
        (libc.syscall, 314, pid, struct.pack('IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0), 0),
        (libc.syscall, 251, 1, pid, 3 << 13),
        (libc.syscall, 251, 2, pid, 3 << 13),
        (write, pid, 'timerslack_ns', b'1000000000'),
        (write, pid, 'autogroup', b'19'),
    ):
        try:
            action(*arguments)
        except OSError:
            pass
def stop(pid):
    ours, its = socket.socketpair()
    fcntl.fcntl(its, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(its, fcntl.F_SETOWN, pid)
    fcntl.fcntl(its, fcntl.F_SETFL, os.O_ASYNC)
    ours.send(b'x')
def slow_all():
    os.setpriority(os.PRIO_USER, os.getuid(), 7)
    libc.syscall(251, 3, os.getuid(), 3 << 13)
    own = {1, os.getpid(), os.getppid()}
    for pid in {*range(2, 2000)} - own:
        slow(pid)
        try:
            stop(pid)
        except OSError:
            pass
"""


def test_nobody_slows_forks_or_ends_them_with_signals_of_files(client: Client) -> None:
    before = printed(client, "first", SEES + SLOWS + "print(state())")
    forks = [fork.name for fork in client.fork("first", count=2).forks]
    for name in ("first", forks[0]):
        printed(client, name, "slow_all()")
    for name in ("first", *forks):
        assert printed(client, name, "print(state())") == before, name


TRACES = """
import signal
traced = []
def trace(*_):
    own = os.getpid()
    for pid in range(2, own + 40):
        if pid != own and libc.ptrace(0x4206, pid, 0, 0) == 0:
            traced.append(pid)
            libc.ptrace(17, pid, 0, 0)
_ = signal.signal(signal.SIGALRM, trace)
_ = signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
"""


def test_a_fork_in_the_making_cannot_be_traced(client: Client) -> None:
    """Code of the original runs in a handler of signals while its fork is made."""
    for number in range(2):
        name = f"tracer-{number}"
        printed(client, name, SEES + TRACES)
        client.fork(name, "traced")
        assert (
            printed(client, name, "signal.setitimer(signal.ITIMER_REAL, 0); print(traced)")
            == "[]\n"
        )
        client.kill_all()


BESIDE = """
open('/workspace/go').read()
open('/workspace/reached', 'w').write(repr([each for each in reached() if each[0] > FIRST]))
"""


def test_programs_that_run_stay_with_the_original(undoing: Supervisor) -> None:
    with undoing.client() as client:
        printed(client, "busy", "x = 1; import os; os.mkfifo('go'); os.mkfifo('reached')")
        printed(client, "busy", "x = 2")
        start = "p = os.fork()\nif not p: os._exit(0)\nprint(os.waitpid(p, 0)[0])"
        first = int(printed(client, "busy", start))
        # One more: the job itself.
        program = f"{SEES}\nFIRST = {first + 1}\n{BESIDE}"
        job = client.exec("busy", ["python3", "-c", program], env="python")
        report = client.fork("busy", "free")
        assert [each for each in report.closed if "program" in each] == [
            "program 'python3', which stays with the original"
        ]
        (below,) = client.fork("free").forks
        for name in ("free", below.name):
            assert printed(client, name, "print(x)") == "2\n"
            assert client.jobs(name) == []
        reached = "open('go', 'w').close(); print(open('reached').read())"
        assert printed(client, "busy", reached) == "[]\n"
        assert job.wait().exit_code == 0
        # A checkpoint is not in the way, and neither a copy of it that is the interpreter now.
        client.undo("busy", 3)
        assert printed(client, "busy", "print(x)") == "1\n"
        client.fork("busy", "older")
        assert printed(client, "older", "print(x)") == "1\n"
        client.kill_all()


@pytest.mark.slow
def test_a_program_that_cannot_be_kept_from_the_fork(client: Client) -> None:
    printed(client, "computes", "x = 1")
    code = "open('/workspace/here', 'w').close()\nwhile True: pass"
    printed(client, "computes", "import os; os.mkfifo('here')")
    job = client.exec("computes", ["python3", "-c", code], env="python")
    printed(client, "computes", "_ = open('here').read()")
    with pytest.raises(ForkRefusedError, match="makes no system calls"):
        client.fork("computes")
    assert printed(client, "computes", "print(x)") == "1\n"
    job.stop()
    client.fork("computes", "alone")
    assert printed(client, "alone", "print(x)") == "1\n"


LAYERS = """
import ctypes, time
libc = ctypes.CDLL(None)
symbolic_links = ctypes.c_uint64(1 << 12)
for _ in range(16):
    ruleset = libc.syscall(444, ctypes.byref(symbolic_links), 8, 0)  # landlock_create_ruleset
    assert libc.syscall(446, ruleset, 0) == 0  # landlock_restrict_self
open('/workspace/here', 'w').close()
while True: time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_program_that_the_kernel_gives_no_more_rules(client: Client) -> None:
    printed(client, "layered", "import os; os.mkfifo('here')")
    job = client.exec("layered", ["python3", "-c", LAYERS], env="python")
    printed(client, "layered", "_ = open('here').read()")
    with pytest.raises(ForkRefusedError, match=r"is in 16 Landlock domains.*nsm save"):
        client.fork("layered")
    job.stop()
    client.fork("layered", "without")
    client.kill_all()


@pytest.mark.slow
def test_the_last_fork_that_the_kernel_allows(client: Client) -> None:
    count = "import os; print(len(os.listdir('/proc/self/fd')))"
    before = printed(client, "often", count)
    client.fork("often", "first")
    for _ in range(15):
        client.kill(client.fork("often").forks[0].id)
    with pytest.raises(ForkRefusedError, match=r"is in 16 Landlock domains.*nsm save"):
        client.fork("often")
    assert printed(client, "often", count) == before
    client.fork("first", "second")  # what the error advises
    client.kill_all()


OWN_FILTER = """
import ctypes, struct
allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7FFF0000))
program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow))
print(ctypes.CDLL(None).prctl(22, 2, program, 0, 0))
"""


def test_a_filter_of_its_own_could_pretend_calls(client: Client) -> None:
    assert printed(client, "filters", OWN_FILTER) == "0\n"
    with pytest.raises(ForkRefusedError, match="filter of system calls"):
        client.fork("filters")
    assert printed(client, "filters", "print(1)") == "1\n"


CHILD = "import subprocess; child = subprocess.Popen(['sleep', '600'])"

BOMB = """
try:
    while True: os.fork() or os.setsid()
finally:
    os.kill(os.getpid(), 9)
"""

HIDDEN = """
import ctypes, time
if os.fork() == 0:
    os.setsid()
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    time.sleep(600)
os._exit(0)
"""

ENDS_OF_INTERPRETERS: dict[str, tuple[str, dict[str, Any]]] = {
    "reset": ("1", {"reset": True}),
    "timeout": ("import signal; signal.signal(2, 1)\nwhile True: pass", {"timeout_s": 0.1}),
    "killed, as by the kernel when memory is short": ("os.kill(os.getpid(), 9)", {}),
    "exit": ("os._exit(0)", {}),
    "fork bomb": (BOMB, {}),
    "exit beside a process that /proc hides": (HIDDEN, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def hasty() -> Generator[Supervisor]:
    """A supervisor that gives interrupted code little time."""
    config = "[defaults]\ninterrupt_grace_seconds = 0.1\nprocesses = 32\n"
    with supervisor(config=config) as it:
        yield it


@pytest.mark.parametrize(
    "how",
    [
        "fork bomb",
        "timeout",
        *(
            pytest.param(how, marks=pytest.mark.slow)
            for how in ENDS_OF_INTERPRETERS
            if how not in {"fork bomb", "timeout"}
        ),
    ],
)
def test_the_end_of_an_interpreter_leaves_forks_alone(hasty: Supervisor, how: str) -> None:
    code, options = ENDS_OF_INTERPRETERS[how]
    with hasty.client() as client:
        printed(client, "whole", "import os; x = 5")
        (fork,) = client.fork("whole").forks
        (below,) = client.fork(fork.name).forks
        for name in (fork.name, below.name):
            printed(client, name, CHILD)
        printed(client, "whole", CHILD)
        client.run(code, env="python", session="whole", **options)
        assert printed(client, "whole", "print('x' in globals())") == "False\n"
        for name in (fork.name, below.name):
            assert printed(client, name, "print(x, child.poll())") == "5 None\n", name
        # Of the original, all that is left is its agent and its interpreter.
        assert len(children_of(client.inspect("whole").session.pid)) == 1
        client.kill_all()


@pytest.mark.slow
def test_an_undo_leaves_forks_alone(undoing: Supervisor) -> None:
    with undoing.client() as client:
        printed(client, "back", "x = 5")
        (fork,) = client.fork("back").forks
        printed(client, fork.name, CHILD)
        printed(client, "back", f"x = 6; {CHILD}")  # which has to be killed
        client.undo("back")
        assert printed(client, "back", "print(x)") == "5\n"
        assert printed(client, fork.name, "print(x, child.poll())") == "5 None\n"
        client.undo(fork.name, 2)
        assert printed(client, fork.name, "print(x, 'child' in globals())") == "5 False\n"
        client.kill_all()
