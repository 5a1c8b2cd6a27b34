"""Live forks of real sessions."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client as McpClient

from e2e_mcp import server, text_of
from e2e_support import supervisor
from live_forks import LIMITS, NONE, needs_scopes, printed
from nsm.wire.errors import BadRequestError, ForkRefusedError, NsmError, UnknownSessionError

if TYPE_CHECKING:
    import nsm
    from e2e_support import Supervisor
    from nsm import Client

pytestmark = needs_scopes


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


@pytest.mark.parametrize("env", ["python", "bash"])
def test_code_of_both_takes_no_input_and_keeps_its_state(client: Client, env: str) -> None:
    original, copy = f"{env}-asks", f"{env}-asks-too"
    client.run("v=7", env=env, session=original)
    client.fork(original, copy)
    for name in (original, copy):
        with pytest.raises(NsmError, match="takes no standard input"):
            client.run("w=1", env=env, session=name, stdin=b"hi")
        code = "echo $v" if env == "bash" else "print(v)"
        assert client.run(code, env=env, session=name).stdout == "7\n"


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


@pytest.mark.slow
def test_the_end_of_a_fork_is_told_by_the_next_supervisor(short_dir: Path) -> None:
    with supervisor(short_dir) as first, first.client() as client:
        printed(client, "original", "x = 1")
        client.fork("original", "its-fork")
    with supervisor(short_dir) as second, second.client() as client:
        result = client.run("1", env="python", session="its-fork")
        assert "the supervisor was shut down" in str(result.session.replaced)


def test_a_fork_has_the_label_of_its_original(client: Client) -> None:
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


@pytest.mark.parametrize(
    ("code", "why"),
    [
        pytest.param(
            *each, id=each[1], marks=() if each[1] in {"threads", "python3"} else pytest.mark.slow
        )
        for each in REFUSED
    ],
)
def test_a_refused_fork_leaves_the_session_as_it_was(client: Client, code: str, why: str) -> None:
    printed(client, "stays", f"x = 1\nHEADLESS = {HEADLESS!r}\n{code}")
    with pytest.raises(ForkRefusedError, match=why):
        client.fork("stays", "never")
    assert printed(client, "stays", "print(x)") == "1\n"
    assert [row.name for row in client.sessions()] == ["stays"]
    with pytest.raises(ForkRefusedError):
        client.fork("stays", "never")
    answered = client.run("print(input())", env="python", session="stays", stdin=b"hi\n")
    assert answered.stdout == "hi\n", answered.stderr  # refused in a session that has forks


def test_a_fork_that_is_refused_after_another_keeps_input_from_the_first(client: Client) -> None:
    printed(client, "twice", "x = 1")
    client.fork("twice", "copy")
    printed(client, "twice", "import mmap; m = mmap.mmap(-1, 4096)")
    with pytest.raises(ForkRefusedError):
        client.fork("twice", "never")
    with pytest.raises(NsmError, match="takes no standard input"):
        client.run("print(input())", env="python", session="twice", stdin=b"hi\n")


def test_a_fork_reports_what_it_lacks(client: Client) -> None:
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


UNNAMED = """
import os, tempfile

def removed(name, mode):
    file = open(name, mode, buffering=0)
    os.remove(name)
    return file

files = [removed("log", "w+b"), removed("/tmp/log", "ab"), removed("a", "wb")]
files.append(tempfile.TemporaryFile())
files.append(open(os.memfd_create("mine"), "r+b", buffering=0))
for file in files: file.write(b"before ")
again = os.open(f"/proc/self/fd/{files[0].fileno()}", os.O_WRONLY | os.O_APPEND)
named = open("named (deleted)", "w+")
def content(file): return open(f"/proc/self/fd/{file.fileno()}").read()
"""


def test_files_without_a_name_are_copied(client: Client) -> None:
    printed(client, "removed", UNNAMED)
    assert client.fork("removed", "copied").closed == ()
    for name in ("copied", "removed"):
        code = (
            f"for file in files: file.write(b'{name} '); file.flush()\n"
            "os.write(again, b'again'); named.write('x'); named.flush()\n"
            "print([content(file) for file in files], os.listdir())"
        )
        content = f"before {name} "
        expected = [f"{content}again", content, content, content, content]
        assert printed(client, name, code) == f"{expected} ['named (deleted)']\n"


@pytest.mark.slow
def test_a_removed_working_directory_is_told(client: Client) -> None:
    printed(client, "gone", "import os; os.mkdir('d'); os.chdir('d'); os.rmdir('../d')")
    report = client.fork("gone", "elsewhere")
    assert report.closed == ("working directory /workspace/d (deleted)",)
    assert printed(client, "elsewhere", "print(os.getcwd())") == "/workspace\n"


@pytest.mark.slow
def test_a_file_without_a_name_that_has_no_room_is_told(client: Client) -> None:
    code = "import os; f = open('gaps', 'w+'); os.remove('gaps'); f.truncate(1 << 40)"
    printed(client, "large", code)
    assert client.fork("large", "small").closed == ("/workspace/gaps (deleted)",)
    code = "print(os.readlink(f'/proc/self/fd/{f.fileno()}'))"
    assert printed(client, "small", code) == "/dev/null\n"


def test_a_fork_ends_with_its_original(client: Client) -> None:
    printed(client, "root", "x = 1")
    client.fork("root", "leaf")
    client.kill("root")
    assert client.sessions() == []
    report = client.run("print('x' in globals())", env="python", session="leaf")
    assert report.stdout == "False\n"


def test_a_kill_says_which_forks_end_with_it(client: Client) -> None:
    printed(client, "tree", "x = 1")
    original = client.inspect("tree").session.id
    (fork,) = client.fork("tree", "twig").forks
    (leaf,) = client.fork("twig", "leaf").forks
    client.fork("tree", "dead")
    client.kill("dead")
    killed = {(row.name, row.fork_of) for row in client.kill(["tree"]).killed}
    assert killed == {("tree", ""), ("twig", original), ("leaf", fork.id)}
    assert not {original, fork.id, leaf.id} & {row.id for row in client.sessions()}
    told = client.run("1", env="python", session="tree").session.replaced
    assert told is not None
    assert "(killed by nsm; with it ended its forks 'twig', 'leaf')" in told


def test_names_and_kinds(client: Client) -> None:
    printed(client, "taken", "x = 1")
    with pytest.raises(BadRequestError, match="already"):
        client.fork("taken", "taken")
    with pytest.raises(BadRequestError, match="2 names were given, and 1 fork was asked for"):
        client.fork("taken", "a", "b", count=1)
    for count in (0, 17):
        with pytest.raises(BadRequestError, match=f"1 to 16 forks .* and {count} were asked for"):
            client.fork("taken", count=count)
    with pytest.raises(UnknownSessionError):
        client.fork("nobody")
    client.run("x=1", env="node", session="script")
    with pytest.raises(ForkRefusedError, match="this is node"):
        client.fork("script")


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_interpreter_that_starts_in_a_fork_is_as_in_the_original(client: Client) -> None:
    """The agent is a fork of another Python than the one that runs its programs."""
    code = "import os, sys; print(sys.executable, sys.path, sys.flags, sorted(os.environ))"
    printed(client, "whole", "x = 1")
    client.fork("whole", "part")
    for name in ("whole", "part"):
        client.run("import os; os._exit(0)", env="python", session=name)
    assert printed(client, "part", code) == printed(client, "whole", code)
    refused = client.run("open('/proc/1/environ')", env="python", session="part")
    assert "Permission" in refused.stderr


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


async def test_models_fork_sessions(shared: Supervisor, client: nsm.Client) -> None:
    async def call(**arguments: Any) -> str:
        return text_of(await model.call_tool("run", arguments))

    async with McpClient(server(shared.variables)) as model:
        (tool,) = (await model.list_tools()).tools
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


CHANGES = {
    "python": "import os, shutil; os.chdir('/project'); _ = open('a', 'a').write('1'); "
    "os.remove('b'); shutil.rmtree('c'); os.mkdir('c'); _ = open('c/new', 'w').write('n')",
    "bash": "cd /project; printf 1 >>a; rm b; rm -r c; mkdir c; printf n >c/new",
}
LOOKS = {
    "python": "print(os.getcwd(), open('a').read(), sorted(os.listdir()), os.listdir('c'))",
    "bash": 'echo "$PWD $(cat a) $(ls -m . c)"',
}
LEAVES = {
    "python": "_ = open('a', 'a').write('2'); os.remove('c/new')",
    "bash": "printf 2 >>a; rm c/new",
}


@pytest.mark.parametrize("env", ["python", pytest.param("bash", marks=pytest.mark.slow)])
def test_a_copy_of_the_project_is_copied(
    client: Client, shared: Supervisor, env: str, project: Path
) -> None:
    for path, text in (("a", "a"), ("b", "b"), ("c/old", "o")):
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text(text)
    client.run(CHANGES[env], env=env, session="on", project=str(project), project_mode="overlay")
    before = printed(client, "on", LOOKS[env], env)
    assert "/project a1 " in before
    (fork,) = client.fork("on").forks
    assert printed(client, fork.name, LOOKS[env], env) == before
    printed(client, fork.name, LEAVES[env], env)
    assert printed(client, "on", LOOKS[env], env) == before
    (below,) = client.fork(fork.name).forks
    for name in (fork.name, below.name):
        assert " a12 " in printed(client, name, LOOKS[env], env)
    told = shared.run("nsm", "diff", fork.id, "--stat").stdout
    assert "a" in told
    assert "c/new" not in told
    assert "c/new" in shared.run("nsm", "diff", "on", "--stat").stdout
    assert (project / "a").read_text() == "a"
    client.kill_all()


@pytest.mark.slow
def test_changes_to_a_project_are_undone_in_a_fork(undoing: Supervisor, project: Path) -> None:
    (project / "a").write_text("a")
    with undoing.client() as client:
        code = "open('/project/a', 'a').write('1')"
        client.run(code, env="python", session="on", project=str(project), project_mode="overlay")
        (fork,) = client.fork("on").forks
        printed(client, fork.name, "_ = open('/project/a', 'w').write('wrong')")
        client.undo(fork.name)
        assert printed(client, fork.name, "print(open('/project/a').read())") == "a1\n"
        client.kill_all()
