"""Live forks of real sessions."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import random
import re
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp_types import TextContent

from e2e_support import program, supervisor
from nsm.wire.errors import BadRequestError, ForkRefusedError, NsmError, UnknownSessionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e_support import Supervisor
    from nsm import Client


SCOPES = 6
"""Version of Landlock that has scopes."""

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or ctypes.CDLL(None).syscall(444, None, 0, 1) < SCOPES,
    reason="not here: sessions are forked on x86-64 with Landlock's scopes (Linux 6.12)",
)


@pytest.fixture
def client(shared: Supervisor) -> Iterator[Client]:
    with shared.client() as made:
        yield made
        made.kill_all()


def printed(client: Client, session: str, code: str) -> str:
    result = client.run(code, env="python", session=session)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_fork_goes_on_where_the_original_is(client: Client) -> None:
    code = (
        "x = [1, 2, 3]\n"
        "g = (i * i for i in range(10)); next(g); next(g)\n"
        "def f(): return sum(x)\n"
        "import os; os.makedirs('deep', exist_ok=True); os.chdir('deep')\n"
        "os.environ['MINE'] = 'yes'\n"
        "file = open('/workspace/note', 'w+'); _ = file.write('abc'); file.flush()"
    )
    printed(client, "forked", code)
    report = client.fork("forked", "its-fork")
    assert [fork.name for fork in report.forks] == ["its-fork"]
    use = (
        "x.append(39); file.write('def'); file.seek(0);"
        "print(f(), next(g), os.getcwd(), file.read(), os.environ['MINE'])"
    )
    assert printed(client, "its-fork", use) == "45 4 /workspace/deep abcdef yes\n"
    assert printed(client, "forked", "print(x, next(g), file.read())") == "[1, 2, 3] 4 \n"
    # Its interpreter is a child of its own agent, which sees how it ends.
    ended = client.run("os._exit(7)", env="python", session="its-fork")
    assert ended.exit_code == 7
    assert printed(client, "its-fork", "print('x' in globals())") == "False\n"
    assert printed(client, "forked", "print(x)") == "[1, 2, 3]\n"


def test_several_forks_at_once_and_forks_of_forks(client: Client) -> None:
    printed(client, "first", "import random; x = 0")
    report = client.fork("first", count=3)
    drawn = {printed(client, fork.name, "print(random.random())") for fork in report.forks}
    drawn.add(printed(client, "first", "print(random.random())"))
    assert len(drawn) == 4
    name = "first"
    for generation in range(3):
        (fork,) = client.fork(name).forks
        name = fork.name
        printed(client, name, "x += 1")
        assert printed(client, name, "print(x)") == f"{generation + 1}\n"
    (again,) = client.fork("first").forks
    assert printed(client, again.name, "print(x)") == "0\n"


def test_what_a_fork_is_of_is_told(client: Client) -> None:
    printed(client, "known", "x = 1")
    (fork,) = client.fork("known").forks
    by_id = {row.id: row for row in client.sessions()}
    (original,) = [row.id for row in by_id.values() if row.name == "known"]
    assert by_id[fork.id].labels == {"forked-from": original}


def test_two_clients_that_want_one_name(client: Client, shared: Supervisor) -> None:
    """The name is the first one's; nobody loses the session that they work in."""
    printed(client, "wanted", "x = 1")
    made: list[str] = []

    def fork(other: Client) -> None:
        with contextlib.suppress(BadRequestError):
            made.append(other.fork("wanted", "one").forks[0].id)

    with shared.client() as other:
        forking = threading.Thread(target=fork, args=(other,))
        forking.start()
        while forking.is_alive() and len(client.sessions()) == 1:
            pass  # the fork is not yet begun
        printed(client, "one", "mine = 1")
        forking.join()
    assert printed(client, "one", "print(mine)") == "1\n"
    assert [row.id for row in client.sessions() if row.name == "one" and row.id in made] == made
    assert len([row for row in client.sessions() if row.name == "one"]) == 1


def test_numpy_s_numbers_differ(client: Client) -> None:
    pytest.importorskip("numpy", reason="not here: the host's Python may have no numpy")
    loaded = client.run("import numpy", env="python", session="numbers")
    if loaded.exit_code:
        pytest.skip("not here: the jail's Python has no numpy")
    client.fork("numbers", "other")
    code = "print(numpy.random.random())"
    assert printed(client, "numbers", code) != printed(client, "other", code)


SEES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def reached():
    found = []
    own = {1, os.getpid(), os.getppid()}
    for pid in range(2, 2000):
        if pid in own:
            continue
        for what, tried in (
            ('kill', lambda: os.kill(pid, 0)),
            ('trace', lambda: libc.ptrace(0x4206, pid, 0, 0) == 0 or 1 / 0),
            ('root', lambda: os.listdir(f'/proc/{pid}/root/workspace')),
            ('memory', lambda: open(f'/proc/{pid}/mem', 'rb').close()),
            ('command', lambda: open(f'/proc/{pid}/cmdline', 'rb').close()),
            ('namespace', lambda: os.close(os.open(f'/proc/{pid}/ns/user', os.O_RDONLY))),
        ):
            try:
                tried()
            except (OSError, ZeroDivisionError):
                continue
            found.append((pid, what))
    return found
def privileges():
    lines = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
    names = ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'Seccomp', 'NoNewPrivs')
    limits = [open(f'/proc/sys/user/max_{kind}_namespaces').read().strip() for kind in ('user', 'mnt', 'pid', 'net')]
    return [int(lines[name], 16) for name in names], limits
"""  # noqa: E501


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


HEADLESS = """
import ctypes, threading, time
threading.Thread(target=lambda: [print(flush=True), time.sleep(999)]).start()
ctypes.CDLL(None).syscall(60, 0)  # ends the main thread only
"""

REFUSED = [
    ("import threading, time; threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
     "threads"),
    ("import subprocess; p = subprocess.Popen(['sleep', '99'])", "sleep"),
    ("import mmap; m = mmap.mmap(-1, 4096)", "shares memory"),
    ("import mmap; f = open('m', 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096, prot=1)",
     "/workspace/m"),
    ("import subprocess as s; s.Popen(['python3', '-c', HEADLESS], stdout=-1).stdout.read(1)",
     "python3"),
    ("import os; fork = os.fork; os.fork = lambda: 1 / 0", "ZeroDivisionError"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_what_cannot_be_forked_goes_on(client: Client, code: str, why: str) -> None:
    printed(client, "stays", f"x = 1\nHEADLESS = {HEADLESS!r}\n{code}")
    with pytest.raises(ForkRefusedError, match=why):
        client.fork("stays", "never")
    assert printed(client, "stays", "print(x)") == "1\n"
    assert [row.name for row in client.sessions()] == ["stays"]
    with pytest.raises(ForkRefusedError):
        client.fork("stays", "never")


def test_what_a_fork_does_not_have_is_said(client: Client) -> None:
    printed(client, "open", "import os, socket; r, w = os.pipe(); s, t = socket.socketpair()")
    report = client.fork("open", "closed")
    assert any("pipe" in each for each in report.closed)
    assert any("socket" in each for each in report.closed)
    code = (
        "numbers = r, w, s.fileno(), t.fileno();"
        "print([os.readlink(f'/proc/self/fd/{n}') == '/dev/null' for n in numbers])"
    )
    assert printed(client, "closed", code) == "[True, True, True, True]\n"
    assert printed(client, "open", code) == "[False, False, False, False]\n"


def test_asyncio_works_in_a_fork(client: Client) -> None:
    printed(client, "loops", "import asyncio; await asyncio.sleep(0)")
    client.fork("loops", "looped")
    for name in ("loops", "looped"):
        assert printed(client, name, "await asyncio.sleep(0); print('slept')") == "slept\n"


def test_files_are_copied(client: Client) -> None:
    printed(
        client,
        "files",
        "import os\n"
        "os.mkdir('d'); open('d/a', 'w').write('a')\n"
        "os.symlink('a', 'd/l'); os.link('d/a', 'd/h')\n"
        "os.chmod('d/a', 0o640); os.utime('d', (1, 2)); open('/tmp/t', 'w').write('t')\n"
        "f = open('hole', 'wb'); f.truncate(1 << 28); f.close(); os.chmod('d', 0o500)",
    )
    client.fork("files", "copies")
    printed(client, "files", "open('/tmp/t', 'w').write('changed')")
    code = (
        "s = os.stat('d/a'); print(oct(s.st_mode), s.st_nlink, os.readlink('d/l'),"
        "os.stat('d').st_mtime, open('/tmp/t').read(), os.stat('hole').st_size,"
        "os.stat('hole').st_blocks, oct(os.stat('d').st_mode))"
    )
    assert printed(client, "copies", code) == "0o100640 2 a 2.0 t 268435456 0 0o40500\n"


def test_a_fork_ends_with_its_original(client: Client) -> None:
    printed(client, "root", "x = 1")
    client.fork("root", "leaf")
    client.kill("root")
    assert client.sessions() == []
    report = client.run("print('x' in globals())", env="python", session="leaf")
    assert report.stdout == "False\n"


def test_an_original_outlives_its_forks(client: Client) -> None:
    printed(client, "tree", "x = 1")
    for _ in range(3):
        client.fork("tree", "twig")
        client.kill("twig")
    assert printed(client, "tree", "print(x)") == "1\n"


def test_names_and_kinds(client: Client) -> None:
    printed(client, "taken", "x = 1")
    with pytest.raises(BadRequestError, match="already"):
        client.fork("taken", "taken")
    with pytest.raises(BadRequestError):
        client.fork("taken", "a", "b", count=1)
    with pytest.raises(UnknownSessionError):
        client.fork("nobody")
    client.run("x=1", env="bash", session="shell")
    with pytest.raises(ForkRefusedError, match="bash"):
        client.fork("shell")


LIMITS = (
    "import os\n"
    "print([open(f'/proc/sys/user/{name}').read().strip() for name in os.listdir('/proc/sys/user')"
    " if name in {'max_user_namespaces', 'max_mnt_namespaces', 'max_pid_namespaces'}])"
)
NONE = "['0', '0', '0']\n"


def helpers(shared: Supervisor) -> set[int]:
    """The fork server, its helpers, and what these have made and not yet given away."""
    found: set[int] = set()
    for pid in shared.descendants():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            # What is in a PID namespace of its own is the agent of a fork.
            if b"forking.fork_server" in command and re.search(
                r"^NSpid:\t\d+$", status, re.MULTILINE
            ):
                found.add(pid)
    return found


SPARE = 3
"""The fork server, a helper that waits for a request, and what that has for making jails."""


def wait_for_helpers(shared: Supervisor) -> set[int]:
    """Wait until no request is carried out; returns what waits for the next one."""
    while len(found := helpers(shared)) > SPARE:
        time.sleep(0.01)
    return found


def test_nothing_is_left_of_a_helper(client: Client, shared: Supervisor) -> None:
    printed(client, "clean", "x = 1")
    client.fork("clean", "and-fork")
    wait_for_helpers(shared)
    client.kill_all()
    while any(b"fork_server" in command_of(pid) for pid in shared.descendants() - helpers(shared)):
        time.sleep(0.01)


def children_of(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text(encoding="ascii").split()}


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_fork_server_that_ended_is_replaced(client: Client, shared: Supervisor) -> None:
    printed(client, "again", "x = 5")
    client.fork("again", "before")
    for pid in wait_for_helpers(shared):
        with contextlib.suppress(ProcessLookupError):  # those that wait end with the fork server
            os.kill(pid, signal.SIGKILL)
    client.fork("again", "after")
    for name in ("again", "before", "after"):
        assert printed(client, name, "print(x)") == "5\n"


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_helpers_that_are_killed(client: Client, shared: Supervisor, kills: int) -> None:
    """At some moment; the original goes on, and nothing is left over."""
    delays = random.Random(7)
    for number in range(kills):
        target = f"target-{number // 10}"  # as the kernel refuses the 16th fork of a session
        printed(client, target, "x = 5")
        wait_for_helpers(shared)
        server = children_of(shared.pid)
        made: list[str] = []

        def fork(made: list[str] = made, target: str = target) -> None:
            with shared.client() as other, contextlib.suppress(ForkRefusedError):
                made += [each.name for each in other.fork(target).forks]

        forking = threading.Thread(target=fork)
        forking.start()
        time.sleep(delays.random() / 30)
        for pid in helpers(shared) - server:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        forking.join()
        assert printed(client, target, "print(x)") == "5\n"
        assert printed(client, target, LIMITS) == NONE
        for each in made:
            assert printed(client, each, "print(x)") == "5\n"
            client.kill(each)
        if number % 10 == 9:
            client.kill(target)
    assert len(client.sessions()) == (1 if kills % 10 else 0)


@pytest.mark.parametrize("victim", ["agent", "worker"])
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_originals_that_are_killed_while_they_are_forked(
    client: Client, shared: Supervisor, victim: str, kills: int
) -> None:
    """At some moment; nothing is left over, and the next session is as any."""
    delays = random.Random(7)
    for number in range(kills):
        target = f"victim-{number}"
        printed(client, target, "x = 5")
        (agent,) = [row.pid for row in client.sessions() if row.name == target]
        assert agent, "it runs"
        (worker,) = children_of(agent)

        def fork(target: str = target) -> None:
            with shared.client() as other, contextlib.suppress(NsmError):
                other.fork(target)

        forking = threading.Thread(target=fork)
        forking.start()
        time.sleep(delays.random() / 30)
        os.kill(agent if victim == "agent" else worker, signal.SIGKILL)
        forking.join()
        wait_for_helpers(shared)
        printed(client, target, "x = 6")
        client.kill_all()
    assert client.sessions() == []
    printed(client, "sound", "x = 5")
    client.fork("sound", "copy")
    assert printed(client, "copy", "print(x)") == "5\n"


def test_forks_of_two_siblings_at_once(client: Client, shared: Supervisor) -> None:
    """Each takes namespaces that count in the one that both are forks of."""
    printed(client, "parent", "x = 5")
    names = [fork.name for fork in client.fork("parent", count=2).forks]
    made: list[str] = []

    def fork(name: str) -> None:
        with shared.client() as other:
            made.extend(fork.name for _ in range(3) for fork in other.fork(name).forks)

    threads = [threading.Thread(target=fork, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [printed(client, name, "print(x)") for name in made] == ["5\n"] * 6
    for name in ("parent", *names, *made):
        assert printed(client, name, LIMITS) == NONE


def test_many_open_files_and_pipes(client: Client) -> None:
    code = (
        "import os\n"
        "files = [open(f'/workspace/{i}', 'w+') for i in range(100)]\n"
        "for i, file in enumerate(files): print(i, file=file, flush=True)\n"
        "pipes = [os.pipe() for _ in range(100)]"
    )
    printed(client, "many", code)
    client.fork("many", "more")
    read = "print([(file.tell(), file.seek(0), file.read()) for file in files][-1])"
    assert printed(client, "more", read) == "(3, 0, '99\\n')\n"


def test_what_starts_in_a_fork_is_as_in_the_original(client: Client) -> None:
    """Its agent is a fork of another Python than the one that runs its programs."""
    code = "import os, sys; print(sys.executable, sys.path, sys.flags, sorted(os.environ))"
    printed(client, "whole", "x = 1")
    client.fork("whole", "part")
    for name in ("whole", "part"):
        client.run("import os; os._exit(0)", env="python", session=name)
    assert printed(client, "part", code) == printed(client, "whole", code)
    refused = client.run("open('/proc/1/environ')", env="python", session="part")
    assert "Permission" in refused.stderr


@pytest.mark.parametrize("kills", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_supervisors_that_are_killed_while_they_fork(short_dir: Path, kills: int) -> None:
    """The original goes on; its forks that are there end with it, and are told why."""
    delays = random.Random(7)
    for number in range(kills):
        with supervisor(short_dir, keep=True) as it:
            with it.client() as client:
                printed(client, "target", "x = 5" if number == 0 else "print(x)")
                if number == 0:
                    client.fork("target", "leaf")

            def fork(running: Supervisor = it) -> None:
                with running.client() as other, contextlib.suppress(NsmError):
                    other.fork("target")

            forking = threading.Thread(target=fork)
            forking.start()
            time.sleep(delays.random() / 30)
            it.process.kill()
            it.process.wait()
            forking.join()
    with supervisor(short_dir) as it, it.client() as client:
        for name in ("target", "leaf"):
            assert printed(client, name, "print(x)") == "5\n"
            assert printed(client, name, LIMITS) == NONE
        client.kill("target")
        again = client.run("1", env="python", session="leaf")
        assert "of which it is a fork" in str(again.session.replaced)


async def test_sandboxes_are_forked(shared: Supervisor) -> None:
    with shared.client() as client, client.sandbox(env="python") as sandbox:
        sandbox.run("x = 1")
        (fork,) = sandbox.fork("of-sandbox").forks
        assert printed(client, fork.name, "print(x)") == "1\n"
    async with shared.async_client() as other, other.sandbox(env="python") as sandbox:
        await sandbox.run("x = 2")
        fork, _ = (await sandbox.fork("of-another", count=2)).forks
        result = await other.run("print(x)", env="python", session=fork.name)
        assert (fork.name, result.stdout) == ("of-another", "2\n")
    with shared.client() as client:
        assert client.sessions() == []


async def test_models_fork_sessions(shared: Supervisor) -> None:
    command = StdioServerParameters(
        command=program("nsm-mcp"), env=dict(shared.variables), cwd="/usr"
    )

    async def call(**arguments: Any) -> str:
        result = await server.call_tool("run", arguments)
        return "".join(part.text for part in result.content if isinstance(part, TextContent))

    async with McpClient(command) as server:
        (tool,) = (await server.list_tools()).tools
        assert "fork_of" in tool.input_schema["properties"]
        await call(code="x = [1]", env="python", session="analysis")
        text = await call(code="x.append(2); print(x)", session="tried", fork_of="analysis")
        assert text.startswith("[1, 2]\n")
        assert await call(code="print(x)", env="python", session="tried") == text
        text = await call(code="print(x)", env="python", session="analysis")
        assert text.startswith("[1]\n")
        text = await call(code="print(x)", fork_of="analysis")
        assert text.startswith("[1]\n")
        assert "[session: analysis-" in text
        text = await call(code="1", session="tried", fork_of="analysis")
        assert "already" in text
        text = await call(code="1", fork_of="nobody")
        assert "No session 'nobody'" in text
        text = await call(code="1", env="bash", fork_of="analysis")
        assert "runs python, not bash" in text
        await call(code="import mmap; m = mmap.mmap(-1, 4096)", env="python", session="tried")
        text = await call(code="1", fork_of="tried")
        assert "shares memory" in text
        assert "Go on in 'tried'" in text
        assert "not run" in text
    with shared.client() as client:
        client.kill_all()
