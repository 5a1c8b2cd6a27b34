"""What the filter and the namespaces leave to ordinary programs, in both kinds of session."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys

import pytest
import trio

from isolation.probe import Kind
from isolation.weakjails import forking
from realjail import (
    SYSTEM_PATH,
    LiveSession,
    environments,
    jail_spec,
    launched,
    needs_bwrap,
    new_launcher,
    talking_to,
)

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
    "setarch": ("setarch -R sh -c 'echo fixed'", "fixed"),
    "ip": ("ip -o addr show lo | grep -c 'inet 127.0.0.1/8'", "1"),
    "tar": ("mkdir -p d && echo x >d/f && tar c d | tar t | wc -l", "2"),
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
}


async def try_all(kind: Kind) -> dict[str, str]:
    """What each program prints in one session; nothing where it is missing."""
    environment = environments()["bash"]

    async def ask(session: LiveSession) -> dict[str, str]:
        told: dict[str, str] = {}
        for name, (code, _) in PROGRAMS.items():
            outcome = await session.run(f"command -v {name} >/dev/null && (\n{code}\n)")
            told[name] = (outcome.stdout + outcome.stderr).strip()
        return told

    if kind == "cold":
        async with (
            launched(new_launcher(), jail_spec(environment)) as jail,
            talking_to(jail, "bash") as session,
        ):
            return await ask(session)
    async with (
        forking(new_launcher()) as launcher,
        launched(launcher, jail_spec(environment)) as jail,
        talking_to(jail, "bash") as session,
    ):
        assert launcher.reasons == {}
        return await ask(session)


@pytest.fixture(scope="module", params=["cold", "forked"])
def told(request: pytest.FixtureRequest) -> dict[str, str]:
    return trio.run(try_all, request.param)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_work(name: str, told: dict[str, str]) -> None:
    if not told[name]:
        pytest.skip(f"not here: {name}")
    assert told[name] == PROGRAMS[name][1]


OLD_ENTRY = """
import ctypes, mmap, os, signal
code = b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3"  # mov eax, 20 (getpid); int 0x80; ret
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(code)
function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
pid = os.fork()
if pid == 0:
    os._exit(0 if function() == os.getpid() else 1)
status = os.waitpid(pid, 0)[1]
print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else "ran")
"""

on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="not here: another machine")


@on_x86
@pytest.mark.parametrize("kind", ["cold", "forked"])
async def test_the_32_bit_way_into_the_kernel_ends_the_process(kind: Kind) -> None:
    """Its numbers mean other calls, which no list of names would catch."""
    environment = environments()["python"]
    async with forking(new_launcher()) as launcher:
        one = new_launcher() if kind == "cold" else launcher
        async with (
            launched(one, jail_spec(environment)) as jail,
            talking_to(jail, "python") as session,
        ):
            outcome = await session.run(OLD_ENTRY)
    assert outcome.stdout == f"{int(signal.SIGSYS)}\n", outcome.stderr


@on_x86
def test_without_a_filter_it_is_open() -> None:
    told = subprocess.run(
        [sys.executable, "-c", OLD_ENTRY],
        capture_output=True,
        text=True,
        env={"PATH": SYSTEM_PATH},
        check=True,
    ).stdout
    if told != "ran\n":
        pytest.skip("not here: a kernel that runs 32-bit programs")
