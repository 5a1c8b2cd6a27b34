"""E2B's own clients for Python, unchanged, and `nsm e2b serve`."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FileType,
    NotFoundException,
    PtySize,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    TimeoutException,
)
from e2b_code_interpreter import Sandbox

import host_attacks
from e2b_serving import serving

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from e2e_support import Supervisor

HUGE_MIB = 120


@pytest.fixture(scope="module", autouse=True)
def running() -> Generator[Supervisor]:
    """A server, found by the variables that E2B's clients read."""
    with serving("--env", "science") as (it, variables), pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield it


@pytest.fixture(scope="module")
def box() -> Generator[Any]:
    with Sandbox.create(timeout=600, envs={"GIVEN": "yes"}) as it:
        yield it


def test_a_notebook_with_a_plot() -> None:
    """Each cell goes on from the one before, as in E2B's own examples."""
    with Sandbox.create(timeout=600) as sandbox:
        sandbox.files.write("sales.csv", "month,sold\n1,10\n2,30\n3,20\n")
        cells = [
            "import csv\nrows = list(csv.DictReader(open('sales.csv')))\nprint(len(rows), 'rows')",
            "rows = [(int(row['month']), int(row['sold'])) for row in rows]",
            "import matplotlib.pyplot as plt\nplt.plot(*zip(*rows)); plt.title('Sold')\nplt.show()",
            "sum(sold for _, sold in rows)",
            "plt.savefig('/home/user/sold.png')\nimport os; os.path.getsize('/home/user/sold.png')",
        ]
        ran = [sandbox.run_code(cell) for cell in cells]
        assert [each.error for each in ran] == [None] * 5
        assert ran[0].logs.stdout == ["3 rows\n"]
        (plot,) = [result for result in ran[2].results if result.png]
        assert base64.b64decode(plot.png).startswith(b"\x89PNG\r\n")
        assert ran[3].text == "60"
        assert sandbox.files.read("sold.png", format="bytes").startswith(b"\x89PNG\r\n")


def test_results_are_formats_of_values(box: Any) -> None:
    page = "class Page:\n    def _repr_html_(self): return '<b>1</b>'\nPage()"
    result = box.run_code(page).results[0]
    assert (result.html, result.is_main_result) == ("<b>1</b>", True)
    shown = box.run_code("display(1); display('x'); 3")
    assert [each.text for each in shown.results] == ["1", "'x'", "3"]
    assert shown.text == "3"


def test_errors_of_code(box: Any) -> None:
    assert box.run_code("1 / 0").error.name == "ZeroDivisionError"
    assert box.run_code("1 +").error.name == "SyntaxError"
    assert box.run_code("import sys; sys.exit(3)").error.name == "SystemExit"
    box.run_code("kept = 1")
    assert box.run_code("import os; os._exit(3)").error.name == "ContextEnded"
    assert box.run_code("kept").error.name == "NameError"


def test_contexts(box: Any) -> None:
    assert box.run_code("import os; os.environ['Q']", envs={"Q": "1"}).text == "'1'"
    assert box.run_code("os.environ.get('Q')").text is None
    context = box.create_code_context(cwd="/tmp")
    assert box.run_code("import os; os.getcwd()", context=context).text == "'/tmp'"
    box.run_code("own = 1", context=context)
    assert box.run_code("own").error.name == "NameError"
    box.restart_code_context(context)
    assert box.run_code("own", context=context).error.name == "NameError"
    assert context.id in [each.id for each in box.list_code_contexts()]
    box.remove_code_context(context)
    with pytest.raises(NotFoundException):
        box.run_code("1", context=context)


def test_languages(box: Any) -> None:
    shell = box.run_code("cd /tmp; f() { echo $1; }", language="bash")
    assert shell.error is None
    shell = box.run_code("f x; pwd; echo $B >&2", language="bash", envs={"B": "it's"})
    assert (shell.logs.stdout, shell.logs.stderr) == (["x\n/tmp\n"], ["it's\n"])
    for _ in range(2):
        fresh = box.run_code("print('own' in globals()); own = 2; own * 3", language="python-fresh")
        assert (fresh.text, fresh.logs.stdout, fresh.error) == ("6", ["False\n"], None)
    assert box.run_code("1 / 0", language="python-fresh").error.name == "ZeroDivisionError"
    with pytest.raises(SandboxException, match="only of python, javascript and bash"):
        box.run_code("1", language="r")


def test_code_that_takes_too_long_is_interrupted(box: Any) -> None:
    box.run_code("before = 42")
    with pytest.raises(TimeoutException):
        box.run_code("import time; time.sleep(1000)", timeout=1)
    assert box.run_code("before").text == "42"


def test_commands(box: Any) -> None:
    done = box.commands.run("echo $X $HOME $GIVEN; pwd", envs={"X": "1"}, cwd="/tmp")
    assert done.stdout == "1 /home/user yes\n/tmp\n"
    assert box.commands.run("printf '\\377\\376'; echo é").stdout == "\ufffd\ufffdé\n"
    with pytest.raises(CommandExitException) as failed:
        box.commands.run("echo why >&2; exit 3")
    assert (failed.value.exit_code, failed.value.stderr) == (3, "why\n")
    with pytest.raises(TimeoutException):
        box.commands.run("sleep 1000", timeout=1)
    with pytest.raises(AuthenticationException, match="one user"):
        box.commands.run("id", user="root")


def test_commands_in_the_background(box: Any) -> None:
    handle = box.commands.run("cat; echo done", background=True, stdin=True)
    assert handle.pid in [process.pid for process in box.commands.list()]
    box.commands.send_stdin(handle.pid, "hello\n")
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "hello\ndone\n"
    handle = box.commands.run("sleep 1000", background=True)
    assert box.commands.kill(handle.pid) is True
    with pytest.raises(CommandExitException):
        handle.wait()
    assert box.commands.kill(99999) is False
    handle = box.commands.run("read line; echo later", background=True, stdin=True)
    handle.disconnect()
    again = box.commands.connect(handle.pid)
    box.commands.send_stdin(handle.pid, "go\n")
    assert again.wait().stdout == "later\n"


def test_a_terminal(box: Any) -> None:
    got: list[bytes] = []
    handle = box.pty.create(PtySize(rows=30, cols=90))
    box.pty.send_stdin(handle.pid, b"stty size; exit\n")
    handle.wait(on_pty=got.append)
    assert b"30 90" in b"".join(got)


def test_files(box: Any) -> None:
    written = box.files.write("a/b.bin", bytes(range(256)))
    assert (written.path, written.type) == ("/home/user/a/b.bin", FileType.FILE)
    assert box.files.read("a/b.bin", format="bytes") == bytes(range(256))
    box.files.write_files([{"path": "x/1", "data": "1"}, {"path": "x/é 2", "data": "2"}])
    assert [entry.name for entry in box.files.list("x")] == ["1", "é 2"]
    assert (box.files.exists("x/1"), box.files.exists("x/9")) == (True, False)
    assert (box.files.make_dir("m/n"), box.files.make_dir("m/n")) == (True, False)
    assert box.files.rename("x/1", "y/1").path == "/home/user/y/1"
    box.files.remove("x")
    assert not box.files.exists("x")
    box.files.write("packed", "gz", gzip=True)
    assert box.files.read("packed") == "gz"
    with pytest.raises(FileNotFoundException):
        box.files.read("nope")
    with pytest.raises(SandboxException):
        box.files.write("/etc/x", "1")


def test_a_directory_is_watched(box: Any) -> None:
    box.files.make_dir("watched")
    watch = box.files.watch_dir("watched")
    for text in ("1", "2"):
        box.files.write("watched/new", text)
        seen: set[tuple[str, str]] = set()
        while ("new", "write") not in seen:
            seen |= {(event.name, event.type.value) for event in watch.get_new_events()}
        assert seen == (
            {("new", "create"), ("new", "write")} if text == "1" else {("new", "write")}
        )
    watch.stop()


def test_a_huge_file(box: Any) -> None:
    """More than is kept in memory for it: up from a stream, down in pieces."""
    piece = os.urandom(1024 * 1024)
    data = piece * HUGE_MIB
    box.files.write("huge", io.BytesIO(data))
    seen = hashlib.sha256()
    for part in box.files.read("huge", format="stream"):
        seen.update(part)
    assert seen.digest() == hashlib.sha256(data).digest()
    inside = box.commands.run("sha256sum < huge; rm huge").stdout.split()[0]
    assert inside == seen.hexdigest()


def test_a_file_for_which_there_is_no_room(box: Any) -> None:
    with pytest.raises(SandboxException):
        box.files.write("full", io.BytesIO(bytes(700 * 1024 * 1024)))
    assert not box.files.exists("full")
    assert box.commands.run("echo on").stdout == "on\n"


def test_much_output(box: Any) -> None:
    done = box.commands.run("head -c 20000000 /dev/zero | tr '\\0' x")
    assert len(done.stdout) == 20_000_000
    assert sum(map(len, box.run_code("print('y' * 5_000_000)").logs.stdout)) == 5_000_001


def test_sandboxes_are_listed_connected_to_and_ended() -> None:
    with Sandbox.create(timeout=600, metadata={"k": "v w", "n": "ü"}) as one:
        query = SandboxQuery(metadata={"k": "v w"})
        (row,) = Sandbox.list(query=query).next_items()
        assert (row.sandbox_id, row.metadata) == (one.sandbox_id, {"k": "v w", "n": "ü"})
        Sandbox.connect(one.sandbox_id).run_code("z = 1")
        assert one.run_code("z").text == "1"
        one.set_timeout(500)
        assert one.get_info().end_at > one.get_info().started_at
        with pytest.raises(SandboxException, match="--max-timeout"):
            one.set_timeout(999999)
        assert one.is_running()
        assert (one.kill(), one.kill()) == (True, False)
        with pytest.raises(SandboxNotFoundException):
            one.get_info()


def test_a_sandbox_that_is_killed_in_the_middle() -> None:
    with Sandbox.create(timeout=600) as one:
        handle = one.commands.run("echo up; sleep 1000", background=True)
        Sandbox.kill(one.sandbox_id)
        with pytest.raises(SandboxException):
            handle.wait()
    with Sandbox.create(timeout=600) as one:
        ran = one.run_code(
            "import time\nprint('up', flush=True)\ntime.sleep(1000)",
            on_stdout=lambda _: Sandbox.kill(one.sandbox_id),
        )
        assert ran.error is not None


def test_what_nsm_does_not_have_is_said(box: Any) -> None:
    for call in (box.pause, box.get_metrics, box.fork, box.create_snapshot):
        with pytest.raises(SandboxException):
            call()
    with pytest.raises(SandboxException, match="no template"):
        Sandbox.create("nope")
    with pytest.raises(SandboxException):
        Sandbox.create(network={"allow_out": ["example.org"], "deny_out": ["0.0.0.0/0"]})


def test_a_hostile_model_reaches_nothing(box: Any, tmp_path: Path) -> None:
    """E2B has no local executor: a program on this machine stands for it."""
    with host_attacks.target(tmp_path) as target:
        theirs = subprocess.run(target.argv, capture_output=True, text=True, check=True).stdout
        box.files.write("attack.py", target.code)
        ran = box.run_code(target.code)
        done = box.commands.run("python3 attack.py")
    assert host_attacks.gained(theirs) == host_attacks.ALL
    assert host_attacks.gained("".join(ran.logs.stdout)) == set()
    assert host_attacks.gained(done.stdout) == set()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_under_asyncio(anyio_backend: str) -> None:
    sandbox = await AsyncSandbox.create(timeout=600)
    try:
        assert (await sandbox.commands.run("echo a")).stdout == "a\n"
        await sandbox.files.write("f", "1")
        assert await sandbox.files.read("f") == "1"
    finally:
        assert await sandbox.kill()
