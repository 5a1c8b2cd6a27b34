"""Freedoms that the filter and the namespaces leave to ordinary programs, in both kinds of
session."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
import trio

from isolation.probe import Kind
from isolation.weakjails import BOTH_KINDS, said, session_of
from realjail import SYSTEM_PATH, mount_of, needs_bwrap, open_directory

pytestmark = [pytest.mark.jail, needs_bwrap]

BUILT = "[ -x main ] || { echo 'int main(void) { return 42; }' >main.c && cc -g main.c -o main; }"

PROGRAMS: dict[str, tuple[str, str]] = {
    # What it takes: what to run, and what it prints.
    "cc": (f"{BUILT}; ./main; echo $?", "42"),
    "gdb": (
        BUILT
        + """; gdb -q -batch -ex 'break main' -ex run -ex continue -ex 'print $_exitcode' \\
    ./main 2>&1 | grep -c -e 'Breakpoint 1, main' -e '= 42' -e 'not permitted'""",
        "2",
    ),
    "strace": (f"{BUILT}; strace -f -e execve sh -c ./main 2>&1 | grep -c '^.*execve('", "2"),
    "git": (
        """git init -q tree && cd tree && echo 1 >file && git add file &&
git -c user.name=n -c user.email=e commit -q -m one && git gc -q && git log --oneline | wc -l""",
        "1",
    ),
    "script": ("script -qec tty /dev/null </dev/null | tr -d '\\r'", "/dev/pts/0"),
    "node, its heap": (
        """node -p 'const mb = require("v8").getHeapStatistics().heap_size_limit / 2**20;
mb > 384 && mb < 512'""",
        "true",
    ),
    "setarch": ("setarch -R sh -c 'echo fixed'", "fixed"),
    "ip": ("ip -o addr show lo | grep -c 'inet 127.0.0.1/8'", "1"),
    "tar": ("mkdir -p d && echo x >d/f && tar c d | tar t | wc -l", "2"),
    "python": ("python -c 'import sys; print(sys.version_info[0])'", "3"),
    "python3": (
        """python3 - <<'END'
import asyncio, concurrent.futures, multiprocessing, os, resource, signal, threading
async def child():
    process = await asyncio.create_subprocess_exec("echo", "1", stdout=asyncio.subprocess.PIPE)
    return int((await process.communicate())[0])
def double(x):
    return 2 * x
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        total = sum(pool.map(double, range(5)))
    with concurrent.futures.ThreadPoolExecutor() as threads:
        total += sum(threads.map(double, range(5)))
    total += asyncio.run(child())
    total += resource.prlimit(os.getppid(), resource.RLIMIT_CORE)[0]
    print(total, len(os.sched_getaffinity(0)) > 0)
END""",
        "42 True",
    ),
    "node": (
        """node -e '
const { Worker } = require("worker_threads"), os = require("os"), fs = require("fs");
const child = require("child_process").execSync("echo 2").toString().trim();
const names = Object.keys(os.networkInterfaces()).join();
const watcher = fs.watch(".");
watcher.close();
new Worker("require(\\"worker_threads\\").parentPort.postMessage(1)", { eval: true })
  .on("message", (n) => console.log(n, child, names));'""",
        "1 2 lo",
    ),
    "node, compiled while it runs": (
        """node -e '
let sum = 0;
for (let i = 0; i < 3e6; i++) sum = (sum + i * i) % 1000003;
const code = [0,97,115,109,1,0,0,0,1,7,1,96,2,127,127,1,127,3,2,1,0,7,7,1,3,97,100,100,0,0,10,9,1,7,
  0,32,0,32,1,106,11];
const add = new WebAssembly.Instance(new WebAssembly.Module(new Uint8Array(code))).exports.add;
console.log(sum, add(40, 2));'""",
        "999718 42",
    ),
    "python3, ways of the kernel": (
        """python3 - <<'END'
import ctypes, mmap, os, select, signal, socket, threading
libc = ctypes.CDLL(None, use_errno=True)
done = []
def works(name, result):
    done.append(name if result else "not " + name)
with open("a", "w+b", buffering=0) as a, open("b", "w+b", buffering=0) as b:
    a.write(b"12345678")
    works("sendfile", os.sendfile(b.fileno(), a.fileno(), 0, 4) == 4)
    works("copy_file_range", os.copy_file_range(a.fileno(), b.fileno(), 4, 0, 4) == 4)
    works("fallocate", os.posix_fallocate(a.fileno(), 0, 4096) is None)
    works("preadv", os.preadv(a.fileno(), [bytearray(4)], 0) == 4)
    with mmap.mmap(a.fileno(), 4096) as shared:
        shared[0] = 65
    works("mmap", os.pread(a.fileno(), 1, 0) == b"A")
    reader, writer = os.pipe()
    start = ctypes.byref(ctypes.c_int64(0))
    works("splice", libc.splice(a.fileno(), start, writer, None, 8, 0) == 8)
    a.seek(0)
    works("lockf", os.lockf(a.fileno(), os.F_LOCK, 0) is None)
with select.epoll() as poll:
    poll.register(reader, select.EPOLLIN)
    works("epoll", poll.poll(1))
works("eventfd", libc.eventfd(0, 0) >= 0)
works("timerfd", libc.timerfd_create(1, 0) >= 0)
works("inotify", libc.inotify_init() >= 0)
works("memfd", os.memfd_create("x") >= 0)
works("pidfd", os.pidfd_open(os.getpid()) >= 0)
server = socket.create_server(("127.0.0.1", 0))
thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"))
thread.start()
with socket.create_connection(server.getsockname()) as client:
    works("tcp", client.recv(5) == b"hello")
thread.join()
works("interfaces", socket.if_nameindex() == [(1, "lo")])
signal.signal(signal.SIGALRM, lambda *_: done.append("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
works("nice", os.nice(1) > 0)
works("affinity", os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}) is None)
works("one processor", len(os.sched_getaffinity(0)) == 1)
# By number, too, as libraries do it.
works("affinity of a thread", os.sched_setaffinity(threading.get_native_id(), {0}) is None)
works("priority", os.setpriority(os.PRIO_PROCESS, os.getpid(), 19) is None)
# What a compiler that works while the program runs does: writes code, then makes it executable.
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE)
code = {"x86_64": b"\\xb8\\x2a\\0\\0\\0\\xc3", "aarch64": b"\\x40\\5\\x80\\x52\\xc0\\3\\x5f\\xd6"}
page.write(code[os.uname().machine])
place = ctypes.addressof(ctypes.c_char.from_buffer(page))
libc.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(4096), 5)
works("own code", ctypes.CFUNCTYPE(ctypes.c_int)(place)() == 42)
print(" ".join(name for name in done if name.startswith("not ")) or f"{len(done)} work")
END""",
        "22 work",
    ),
    "gcc, with threads": (
        """cat >threads.c <<'END'
#include <stdio.h>
int main(void) {
  int n = 0;
#pragma omp parallel num_threads(4) reduction(+ : n)
  n += 1;
  printf("%d", n);
}
END
gcc -fopenmp threads.c -o threads && ./threads && OMP_PROC_BIND=true ./threads""",
        "44",
    ),
    "gdb, step by step": (
        BUILT
        + """; gdb -q -batch -ex starti -ex 'break main' -ex continue -ex 'watch $sp' -ex stepi \\
    -ex 'print $_siginfo.si_signo' -ex 'set $pc = $pc' -ex 'print $pc > 0' \\
    -ex 'info registers pc' -ex 'catch syscall exit_group' -ex 'delete 2' -ex continue \\
    -ex kill ./main 2>&1 | grep -c -e '= 5$' -e '= 1$' -e '^pc' -e 'call to syscall exit_group'""",
        "4",
    ),
    "strace, of a process that runs": (
        """mkfifo fifo said; sh -c 'read -r x <fifo' & strace -o trace -p $! 2>said &
read -r attached <said; echo x >fifo; wait; grep -c 'exited with' trace""",
        "1",
    ),
    "taskset": ("taskset -c 0 sh -c 'taskset -cp $$' | sed 's/.*: //'", "0"),
    "gdb, of a process that runs": (
        """sleep 60 & gdb -q -batch -p $! -ex 'info proc' 2>/dev/null | grep -c "^process $!"
kill $!""",
        "1",
    ),
    "perl": ("perl -e 'use threads; print threads->create(sub { 40 + 2 })->join'", "42"),
    "make": (
        "printf 'all: one two\\none two:\\n\\t@echo $@\\n' >Makefile; make -j2 | sort | xargs",
        "one two",
    ),
    "sqlite3": (
        "sqlite3 t.db 'pragma journal_mode=wal; create table t(x); select count(*) from t' | xargs",
        "wal 0",
    ),
    "openssl": ("openssl rand -hex 4 | wc -c; openssl genrsa 512 2>/dev/null | wc -l", "9\n10"),
    "ss": (
        """python3 -c '
import socket, subprocess
with socket.create_server(("127.0.0.1", 8123)):
    print(subprocess.run(["ss", "-Hlnt"], capture_output=True, text=True).stdout.split()[3])'""",
        "127.0.0.1:8123",
    ),
}
"""By what they show; the first word is the program's name."""


async def try_all(kind: Kind) -> dict[str, str]:
    """Run each program in one session and collect its output; none where it is missing."""
    told: dict[str, str] = {}
    async with session_of(kind, "bash") as session:
        for name, (code, _) in PROGRAMS.items():
            program = name.split(",")[0]
            outcome = await session.run(f"command -v {program} >/dev/null && (\n{code}\n)")
            told[name] = (outcome.stdout + outcome.stderr).strip()
    return told


@pytest.fixture(scope="module", params=[pytest.param("cold", marks=pytest.mark.slow), "forked"])
def told(request: pytest.FixtureRequest) -> dict[str, str]:
    return trio.run(try_all, request.param)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_work(name: str, told: dict[str, str]) -> None:
    if not told[name]:
        pytest.skip(f"not here: {name}")
    assert told[name] == PROGRAMS[name][1]


# Programs that take more than a moment.


def needed(*programs: str) -> None:
    for program in programs:
        if shutil.which(program, path=SYSTEM_PATH) is None:
            pytest.skip(f"not here: {program}")


JAVA = """
cat >Sum.java <<'END'
public class Sum {
    static int of(int n) { return n < 2 ? n : of(n - 1) + of(n - 2); }
    public static void main(String[] arguments) throws Exception {
        Thread thread = new Thread(() -> System.out.println(of(32)));
        thread.start();
        thread.join();
    }
}
END
java -Xmx64m Sum.java
"""


@pytest.mark.slow
@BOTH_KINDS
async def test_java(kind: Kind) -> None:
    needed("java", "javac")
    told = await said(kind, "bash", JAVA)
    lines = told.splitlines()
    assert [line for line in lines if not line.startswith("Picked up ")] == ["2178309"]


VALGRIND = r"""
printf '#include <stdlib.h>\nint main(void) { ((volatile char *)malloc(4))[4] = 1; }' >main.c
cc -g -w main.c -o main
valgrind -q ./main 2>&1 | grep -c 'Invalid write of size 1'
"""


@pytest.mark.slow
@BOTH_KINDS
async def test_valgrind(kind: Kind) -> None:
    needed("valgrind", "cc")
    assert await said(kind, "bash", VALGRIND) == "1\n"


@pytest.fixture(scope="module")
def numpy_directory() -> Generator[Path]:
    """A project that numpy is installed in, for the Python of sessions."""
    python = shutil.which("python3", path=SYSTEM_PATH)
    with open_directory("/var/tmp") as directory:
        if (
            python is None
            or subprocess.run(
                [python, "-m", "pip", "install", "-q", "--target", directory, "numpy"],
                capture_output=True,
                check=False,
            ).returncode
        ):
            pytest.skip("not here: numpy from pip")
        yield directory


NUMPY = """
import sys
sys.path.insert(0, "/project")
import threading
import numpy
rows = numpy.random.default_rng(1).random((300, 300))
told = []
def multiply():
    told.append(bool(numpy.allclose(rows @ numpy.linalg.inv(rows), numpy.eye(300), atol=1e-6)))
threads = [threading.Thread(target=multiply) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
mapped = numpy.memmap("/workspace/mapped", dtype="float64", mode="w+", shape=(1000,))
mapped[:] = numpy.fft.fft(numpy.ones(1000)).real
print(told, mapped.sum())
"""


@pytest.mark.slow
@BOTH_KINDS
async def test_numpy(kind: Kind, numpy_directory: Path) -> None:
    told = await said(kind, "python", NUMPY, mount_of(numpy_directory))
    assert told == "[True, True, True, True] 1000.0\n"
