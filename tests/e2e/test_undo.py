"""Undo with a real supervisor and real jails: commands, clients, models and people."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client

import nsm
from e2e_mcp import server, text_of
from e2e_support import program, supervisor
from nsm.changes import Changes
from nsm.wire.errors import BadRequestError, UnknownSessionError
from realjail import needs_bwrap
from soak.household import Household
from terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

pytestmark = [needs_bwrap, pytest.mark.jail]

UNDO = "[session]\nundo = 5\n"
DONE = "undid the last call: variables, working directory and files are as they were before\n"
MAKE = "import os, shutil; os.mkdir('data'); open('data/f', 'w').write('precious'); x = [1]"
SPOIL = "shutil.rmtree('/workspace/data'); x.append(2); os.chdir('/')"
LOOK = "print(x, os.getcwd(), open('/workspace/data/f').read())"
AS_BEFORE = "[1] /workspace precious\n"


@pytest.fixture
def client(undoing: Supervisor) -> Generator[nsm.Client]:
    with undoing.client() as client:
        yield client
        client.kill_all()


def test_a_wrong_removal_is_taken_back(client: nsm.Client) -> None:
    for code in (MAKE, SPOIL):
        assert client.run(code, env="python", session="work").stderr == ""
    assert [row.checkpoints for row in client.sessions()] == [2]
    result = client.undo("work")
    assert (result.exit_code, result.stdout) == (0, DONE)
    assert "copy of the project" not in " ".join(result.notes)
    assert [row.checkpoints for row in client.sessions()] == [1]
    assert client.run(LOOK, env="python", session="work").stdout == AS_BEFORE
    result = client.undo("work", 9)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "2 earlier states are kept" in result.stderr
    with pytest.raises(BadRequestError, match="from 1"):
        client.undo("work", 0)
    with pytest.raises(UnknownSessionError):
        client.undo("nobody")


@pytest.mark.slow
def test_a_replay_leaves_out_what_was_undone(client: nsm.Client) -> None:
    for code in (MAKE, SPOIL):
        client.run(code, env="python", session="work")
    client.undo("work", 9)
    client.undo("work")
    client.run(LOOK, env="python", session="work")
    report = client.replay(client.transcript("work"))
    assert (report.same, report.differs, report.skipped) == (2, 0, 3)


def test_the_command(undoing: Supervisor, client: nsm.Client) -> None:
    for code in ("x = 1", "x = 2"):
        client.run(code, env="python", session="work")
    done = undoing.run("nsm", "undo", "work")
    assert (done.returncode, done.stdout) == (0, DONE)
    assert "nsm: 1 earlier state is kept" in done.stderr
    done = undoing.run("nsm", "undo", "work", "7")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing was undone" in done.stderr
    assert undoing.run("nsm", "undo", "work", "none").returncode == 2
    assert "# undo the last call" in undoing.run("nsm", "logs", "work").stdout
    client.run("x=1", env="bash", session="shell")
    done = undoing.run("nsm", "undo", "shell")
    assert done.returncode == 1
    assert "are kept of Python only; the user's `nsm fork` copies a shell" in done.stderr


CHANGE = """
import os, shutil
os.chdir("/project")
open("changed", "w").write("once"); os.remove("src/one"); os.mkdir("new"); os.chmod("src", 0o711)
try: os.setxattr("changed", "user.note", b"once")
except OSError as error: assert error.errno == 95, error  # not in this overlay
open("new/a", "w").write("a"); os.symlink("a", "new/link"); os.link("new/a", "new/b")
"""

SPOIL_PROJECT = """
shutil.rmtree("src"); shutil.rmtree("old"); os.mkdir("old"); open("old/x", "w").close()
open("changed", "a").write(", twice"); open("kept", "w").write("lost"); os.remove("link")
os.remove("new/a"); os.mkdir("new/a"); os.mkdir("link"); open("new/b", "a").write("b")
os.chmod("changed", 0o600); [os.removexattr("changed", name) for name in os.listxattr("changed")]
shutil.rmtree("deep")
"""

SHOW_PROJECT = """
import os
for top, directories, files in os.walk("/project"):
    for name in sorted(directories + files):
        path = os.path.join(top, name)
        status = os.lstat(path)
        plain = os.path.isfile(path) and not os.path.islink(path)
        print(path, oct(status.st_mode), open(path).read() if plain else "")
        if os.path.islink(path): print(os.readlink(path))
        elif os.path.isfile(path): print(*[os.getxattr(path, name) for name in os.listxattr(path)])
"""


def test_the_copy_of_a_project_goes_back(undoing: Supervisor, tmp_path: Path) -> None:
    """Both what the session had changed in it and what it had not."""
    project = tmp_path / "project"
    for path in (tmp_path, project):
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    for name in ("changed", "kept", "src/one", "src/two", "old/deep/file", "deep/er/still/file"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"host's {name}")
    (project / "link").symlink_to("kept")
    with nsm.Client(socket_path=undoing.socket, scope="test", project=project) as client:

        def run(code: str) -> str:
            settings: Any = {"env": "python", "session": "copied", "project_mode": "overlay"}
            result = client.run(code, **settings)
            assert result.stderr == "", result.stderr
            return result.stdout

        begun = run(SHOW_PROJECT)
        run(CHANGE)
        changed = run(SHOW_PROJECT)
        for _ in range(2):
            run(SPOIL_PROJECT)
            assert run(SHOW_PROJECT) != changed
            result = client.undo("copied", 2)
            assert result.exit_code == 0, result.stderr
            assert "copy" not in " ".join(result.notes)
            assert "not as they were" not in " ".join(result.notes)
            assert run(SHOW_PROJECT) == changed
            assert client.undo("copied").exit_code == 0
        assert client.undo("copied", 2).exit_code == 0
        assert run(SHOW_PROJECT) == begun
        assert Changes(client).rows("copied")[0] == []
    assert (project / "src/one").read_text() == "host's src/one"


def test_files_that_a_client_wrote_stay(client: nsm.Client) -> None:
    client.run("x = 1", env="python", session="work")
    client.files("work").write("given.txt", b"given")
    client.run("open('given.txt', 'w').write('spoilt')", env="python", session="work")
    assert client.undo("work").exit_code == 0
    assert client.files("work").read("given.txt") == b"given"


def test_undo_is_refused_while_code_runs(undoing: Supervisor, client: nsm.Client) -> None:
    with undoing.client() as other:
        client.run("import os; os.mkfifo('gate')", env="python", session="work")
        refused: list[str] = []

        def undo(_stream: str, _text: str) -> None:
            if refused:
                return
            with pytest.raises(BadRequestError) as error:
                other.undo("work")
            refused.append(str(error.value))
            other.interrupt("work")

        code = "x = 1; print('runs', flush=True); open('gate').read()"
        client.run(code, env="python", session="work", on_output=undo)
        assert "Code runs in session" in refused[0]
    assert client.run("print(x)", env="python", session="work").stdout == "1\n"


async def test_a_model_undoes(undoing: Supervisor) -> None:
    async with Client(server(undoing.variables)) as client:

        async def run(**arguments: Any) -> str:
            return text_of(await client.call_tool("run", arguments))

        (tool,) = (await client.list_tools()).tools
        assert "undo" in tool.input_schema["properties"]
        assert "`undo` takes back" in (tool.description or "")
        for code in (MAKE, SPOIL):
            await run(env="python", session="work", code=code)
        assert DONE in await run(session="work", undo=True)
        assert AS_BEFORE in await run(session="work", code=LOOK, env="python")
        assert "runs no code" in await run(session="work", undo=True, code="x")
        assert "no session 'nobody'" in await run(session="nobody", undo=True)


@pytest.mark.slow
def test_a_person_undoes(undoing: Supervisor, client: nsm.Client) -> None:
    for code in ("x = 1", "x = 2"):
        client.run(code, env="python", session="work")
    with Terminal([program("nsm"), "attach", "work"], undoing.variables) as person:
        person.see_line("work >>>")
        person.type("\x18\x15")
        person.see("Ctrl-X Ctrl-U again takes back the last call")
        person.type("\x18\x15")
        person.see("1 earlier state is kept")
        person.type("f'x is {x}'\r")
        person.see("x is 1")
        person.type("\x04")
        assert person.end() == 0


@pytest.mark.slow
def test_undo_after_the_supervisor_was_killed(short_dir: Path) -> None:
    with Household() as household, supervisor(short_dir, config=UNDO) as it:
        with it.client() as client:
            for code in (MAKE, SPOIL):
                client.run(code, env="python", session="work")
        for _ in range(5):
            (pid,) = household.members().supervisors
            os.kill(pid, signal.SIGKILL)
            done = it.run("nsm", "undo", "work")
            assert (done.returncode, done.stdout) == (0, DONE), done
            with it.client() as client:
                client.inspect("work")  # once its agent has answered
                assert [row.checkpoints for row in client.sessions()] == [1]
                assert client.run(LOOK, env="python", session="work").stdout == AS_BEFORE
                client.run(SPOIL, env="python", session="work")
                assert client.undo("work", 2).exit_code == 0
                client.run(SPOIL, env="python", session="work")
        it.run("nsm", "shutdown")


def test_undo_is_off_unless_it_is_turned_on(shared: Supervisor) -> None:
    with shared.client() as off:
        off.run("x = 1", env="python", session="work")
        with pytest.raises(BadRequestError, match="Undo is turned off"):
            off.undo("work")
        off.run("x=1", env="bash", session="shell")
        with pytest.raises(BadRequestError, match="kept of Python only"):
            off.undo("shell")
