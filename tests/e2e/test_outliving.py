"""Sessions outlive a supervisor that is killed: their state, what runs in them, their names."""

from __future__ import annotations

import io
import os
import signal
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import nsm
from e2e_support import Supervisor, holder_pid, supervisor, wait_gone
from nsm.client.shared_sandbox import BACKGROUND
from nsm.wire.errors import NsmError, SessionEndedError, SessionHiddenError, UnknownSessionError
from nsmd.restart.ended_sessions import SHUT_DOWN, UNATTENDED
from soak.faults import send
from soak.household import Household

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [pytest.mark.jail, pytest.mark.slow]

PLACE = {"python": "x = 41", "bash": "x=41; cd /tmp", "node": "var x = 41"}
LOOK = {"python": "x + 1", "bash": "echo $((x + 1)) $PWD", "node": "x + 1"}
SEEN = {"python": "42", "bash": "42 /tmp", "node": "42"}


def shown(result: nsm.RunResult) -> str:
    """Return the text that a prompt would show: the output and the value."""
    return result.stdout.strip() or "".join(
        str(display["text/plain"]) for display in result.displays
    )


@contextmanager
def another(earlier: Supervisor) -> Generator[Supervisor]:
    """The supervisor after that one, which is dead; it may be killed for one more."""
    with supervisor(earlier.directory, keep=True) as it:
        yield it


def client_of(it: Supervisor) -> nsm.Client:
    """A client that is told of the end of this supervisor, and looks for no other."""
    return nsm.Client(socket_path=it.socket, scope="test", autostart=False, reconnect=False)


def begin(it: Supervisor, code: str, **options: str) -> threading.Thread:
    """Run code whose client does not care what becomes of it; returns once it has printed."""
    started = threading.Event()

    def run() -> None:
        with client_of(it) as client, suppress(NsmError, OSError):
            client.run(code, on_output=lambda *_: started.set(), **options)  # type: ignore[arg-type]

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(120)
    return thread


def test_sessions_of_all_interpreters_keep_their_state(short_dir: Path) -> None:
    with supervisor(short_dir) as first:
        with first.client() as client:
            for env, code in PLACE.items():
                client.run(code, env=env, session=env)
            before = {row.id: row for row in client.sessions()}
        first.kill()
        for count in (1, 2, 3):
            with another(first) as it, it.client() as client:
                rows = {row.id: row for row in client.sessions()}
                assert rows.keys() == before.keys()
                for session, row in rows.items():
                    earlier = before[session]
                    assert (row.name, row.env, row.pid) == (earlier.name, earlier.env, earlier.pid)
                    assert row.taken_up == count
                    assert row.age_s >= earlier.age_s
                for env, code in LOOK.items():
                    result = client.run(code, env=env, session=env)
                    assert shown(result) == SEEN[env]
                    assert not result.session.created
                if count < 3:
                    it.kill()
                else:
                    client.kill_all()


def test_a_session_ends_with_the_connection_that_its_client_makes_next(short_dir: Path) -> None:
    with supervisor(short_dir) as first:
        blocking = first.client()
        shared = nsm.SharedSandbox(socket_path=first.socket).open()
        sessions = [blocking.sandbox(ends_with_client=True).id, shared.id]
        first.kill()
        with another(first) as it, it.client() as client:
            blocking.ping()
            shared.call(lambda box: box.files.exists("x"))
            assert {row.id for row in client.sessions()} == set(sessions)
            blocking.close()
            BACKGROUND.blocking(shared._client.aclose)  # pyright: ignore[reportPrivateUsage]
            for session in sessions:
                with suppress(UnknownSessionError):
                    client.logs(session, follow=True, on_entry=lambda _: None)
            assert client.sessions() == []


def test_supervisors_that_are_killed_while_they_take_sessions_up_lose_none(short_dir: Path) -> None:
    """The agents are stopped meanwhile: all answers to all of them come to the last one."""
    with supervisor(short_dir) as first:
        with first.client() as client:
            for env, code in PLACE.items():
                client.run(code, env=env, session=env)
            agents = [row.pid for row in client.sessions()]
        for pid in agents:
            os.kill(pid, signal.SIGSTOP)
        first.kill()
        for _ in range(3):
            with another(first) as it:
                it.kill()
        with another(first) as it, it.client() as client:
            for pid in agents:
                os.kill(pid, signal.SIGCONT)
            for _ in range(2):
                for env, code in LOOK.items():
                    assert shown(client.run(code, env=env, session=env)) == SEEN[env]
            client.kill_all()


def test_a_command_right_after_a_kill_finds_the_sessions(short_dir: Path) -> None:
    """Nobody has waited for the end of the one that was killed."""
    with Household() as household, supervisor(short_dir) as it:
        with it.client() as client:
            client.run("x = 41", env="python", session="old")
        for _ in range(5):
            (pid,) = household.members().supervisors
            os.kill(pid, signal.SIGKILL)
            said = it.run("nsm", "ps")
            assert (said.returncode, "old" in said.stdout) == (0, True), said
        it.run("nsm", "shutdown")


def stop_holder(household: Household, it: Supervisor) -> int:
    """Stop the holder once it has come up; return its process id."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(str(it.directory / "keeper.sock"))
        link.send(b"count")
        link.recv(100)
    (holder,) = household.members().holders
    os.kill(holder, signal.SIGSTOP)
    return holder


def test_sessions_of_a_holder_that_does_not_answer_are_waited_for(short_dir: Path) -> None:
    """Sessions that begin meanwhile are kept, even if that supervisor is killed, too."""
    with ExitStack() as stack:
        household = stack.enter_context(Household())
        first = stack.enter_context(supervisor(short_dir))
        with first.client() as client:
            client.run("x = 41", env="python", session="old")
        holder = stop_holder(household, first)
        stack.callback(send, holder, signal.SIGCONT)
        first.kill()
        with another(first) as it, it.client() as client:
            survival = client.status().survival
            assert survival is not None
            assert f"kill -CONT {holder}" in survival.problem
            assert "does not answer" in it.run("nsm", "doctor").stdout
            for command, code in (("ps", 0), ("kill --all --yes", 1)):
                said = it.run("nsm", *command.split())
                assert said.returncode == code, said
                assert "there may be more sessions: a holder of sessions does not" in said.stderr
            client.run("y=1", env="bash", session="later")
            with pytest.raises(SessionHiddenError, match="does not answer"):
                client.run("x", env="python", session="old")
            assert it.run("nsm", "reload").returncode == 0  # the doctor's advice
            assert client.run("echo $y", env="bash", session="later").stdout == "1\n"
            it.kill()
        with another(first) as it, it.client() as client:
            found: list[str] = []
            ask = threading.Thread(
                target=lambda: found.append(shown(client.run("x + 1", env="python", session="old")))
            )
            ask.start()
            with it.client() as other:
                assert other.run("echo $((y + 1))", env="bash", session="later").stdout == "2\n"
            os.kill(holder, signal.SIGCONT)
            ask.join(120)
            assert found == ["42"]
            assert {row.name for row in client.sessions()} == {"old", "later"}
            survival = client.status().survival
            assert survival is not None
            assert not survival.problem
            assert len(household.members().holders) == 1
            it.kill()
        with another(first) as it, it.client() as client:
            assert {row.name for row in client.sessions()} == {"old", "later"}
            client.kill_all()


def test_a_shutdown_ends_what_a_holder_has_that_does_not_answer(short_dir: Path) -> None:
    with Household() as household:
        with supervisor(short_dir) as first:
            with first.client() as client:
                client.run("x = 41", env="python", session="old")
            stop_holder(household, first)
            first.kill()
            with another(first) as it, it.client() as client:
                client.shutdown()
        assert not household.wait_empty(30)


def test_running_code_goes_on_and_its_result_can_be_asked_for(short_dir: Path) -> None:
    """A one-shot, too, if it has lasted; it ends with its answer."""
    code = (
        "import os, time\ntime.sleep({})\nprint('up', flush=True)\n"
        "while not os.path.exists('/workspace/go'): time.sleep(0.01)\nprint('done')"
    )
    with supervisor(short_dir) as first:
        threads = [
            begin(first, code.format(0), env="python", session=name, execution_id=name)
            for name in ("first", "second")
        ]
        threads.append(begin(first, code.format(2), env="python", execution_id="once"))
        first.kill()
        for thread in threads:
            thread.join()
        with another(first) as it, it.client() as client:
            assert {row.state for row in client.sessions()} == {"running"}
            assert client.interrupt("second")
            assert client.result("second").interrupted
            for row in client.sessions():
                client.files(row.id).write_from("/workspace/go", io.BytesIO().read)
            result = client.result("first")
            assert (result.stdout, result.exit_code) == ("up\ndone\n", 0)
            assert result.session.name == "first"
            assert result.execution_id == "first"
            assert client.result("once").stdout == "up\ndone\n"
            assert {row.name for row in client.sessions()} == {"first", "second"}
            client.kill_all()


def test_a_result_that_nobody_had_is_there_still(short_dir: Path) -> None:
    """The agent keeps the result until the next execution, whether or not it reached the
    supervisor."""
    with supervisor(short_dir) as first:
        with first.client() as client:
            client.run("print('kept')", env="python", session="a", execution_id="e")
        first.kill()
        with another(first) as it, it.client() as client:
            assert client.result("e").stdout == "kept\n"
            client.run("1", env="python", session="a", execution_id="f")
            it.kill()
        with another(first) as it, it.client() as client:
            assert client.result("f").exit_code == 0
            with pytest.raises(NsmError):
                client.result("e")
            client.kill_all()


def test_the_end_of_a_session_without_supervisor_is_told(short_dir: Path) -> None:
    with supervisor(short_dir) as first:
        with first.client() as client:
            for name in ("a", "b"):
                client.run("x = 1", env="python", session=name)
            pid = next(row.pid for row in client.sessions() if row.name == "a")
        first.kill()
        fd = os.pidfd_open(pid)
        signal.pidfd_send_signal(fd, signal.SIGKILL)
        wait_gone([fd])
        with another(first) as it, it.client() as client:
            assert [row.name for row in client.sessions()] == ["b"]
            it.kill()  # before anybody was told
        with another(first) as it, it.client() as client:
            assert [row.name for row in client.sessions()] == ["b"]
            result = client.run("'x' in dir()", env="python", session="a")
            assert str(result.session.replaced).startswith("was lost ")
            assert "no supervisor" in str(result.session.replaced)
            assert shown(client.run("x", env="python", session="b")) == "1"
            client.kill_all()


def test_a_session_that_was_taken_up_ends_as_any_other(short_dir: Path) -> None:
    with supervisor(short_dir) as first:
        with first.client() as client:
            for name in ("a", "b"):
                client.run("x = 1", env="python", session=name)
            pids = {row.name: row.pid for row in client.sessions()}
        first.kill()
        fds = {name: os.pidfd_open(pid) for name, pid in pids.items()}
        with another(first) as it, it.client() as client:
            client.kill(["a"])
            wait_gone([fds["a"]])
            signal.pidfd_send_signal(fds["b"], signal.SIGKILL)
            wait_gone([fds["b"]])
            try:
                told = client.run("'x' in dir()", env="python", session="b").session.replaced
            except SessionEndedError as error:  # the supervisor has yet to hear of it
                told = str(error)
            assert "its jail died" in str(told)
            client.kill_all()


def test_a_copied_project_and_a_proxy_are_there_still(short_dir: Path, project: Path) -> None:
    (project / "file").write_text("one\n")
    ask = (
        "import urllib.request as u, urllib.error\n"
        "try: u.urlopen('http://example.com:1/')\n"
        "except urllib.error.HTTPError as error: print(error.code, error.reason)"
    )
    with supervisor(short_dir) as first:
        with first.client() as client:
            client.run(
                "echo two >> /project/file",
                env="bash",
                session="o",
                project=str(project),
                project_mode="overlay",
            )
            client.run(ask, env="python", session="n", network="a.b")
            refusal = client.run(ask, env="python", session="n").stdout
            assert refusal.startswith("403")
        first.kill()
        with another(first) as it, it.client() as client:
            assert client.run("cat /project/file", env="bash", session="o").stdout == "one\ntwo\n"
            assert it.run("nsm", "diff", "o").stdout.count("+two") == 1
            assert client.run(ask, env="python", session="n").stdout == refusal
            shown = it.run("nsm", "net", "n").stdout
            assert "a.b" in shown
            assert "example.com" in shown
            assert it.run("nsm", "apply", "--yes", "o").returncode == 0
            assert (project / "file").read_text() == "one\ntwo\n"
            client.kill_all()


def test_spares_are_not_kept(short_dir: Path) -> None:
    with supervisor(short_dir) as first:
        with first.client() as client:
            client.run("1", env="python", session="a")
            kept = {row.pid for row in client.sessions()}
        fds = [os.pidfd_open(pid) for pid in first.descendants() - kept if _is_agent(pid)]
        first.kill()
        wait_gone(fds)
        with another(first) as it, it.client() as client:
            assert {row.pid for row in client.sessions()} == kept
            client.kill_all()


def _is_agent(pid: int) -> bool:
    """Return whether it is the first process of a session."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return fields["NSpid"].split()[-1] == "1" and fields["Name"] != "bwrap"


def test_sessions_that_ended_with_everything_that_held_them_are_told_of(short_dir: Path) -> None:
    """At `nsm shutdown`, and where supervisor and holder were killed."""
    with supervisor(short_dir) as first, first.client() as client:
        client.run("x = 41", env="python", session="work")
        client.run("x = 41", env="python", session="other")
    with supervisor(short_dir) as second, second.client() as client:
        replaced = client.run("x = 1", env="python", session="work").session.replaced
        assert replaced is not None
        assert "ended" in replaced
        assert "the supervisor was shut down" in replaced
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            holder = holder_pid(link, short_dir)
        second.process.kill()
        os.kill(holder, signal.SIGKILL)
    with supervisor(short_dir) as third, third.client() as client:
        for name, why in (("work", UNATTENDED), ("other", SHUT_DOWN)):
            replaced = client.run("1", env="python", session=name).session.replaced
            assert why in str(replaced)
        assert client.run("1", env="python", session="new").session.replaced is None


def test_a_file_of_a_killed_supervisor_is_there_whole_or_not_at_all(
    short_dir: Path, tmp_path: Path
) -> None:
    data = bytes(700_000)
    for number in range(4):
        (tmp_path / f"{number}").write_bytes(data)

    with ExitStack() as stack:
        it = stack.enter_context(supervisor(short_dir))
        with it.client() as client:
            client.run("x = 1", env="python", session="a")
            client.files("a").write("f", "old")
        with client_of(it) as client:
            pieces = iter([data, b""])

            def piece(_: int) -> bytes:
                found = next(pieces)
                if not found:
                    it.kill()
                return found

            with pytest.raises(NsmError):
                client.files("a").write_from("f", piece)
        it = stack.enter_context(another(it))
        with client_of(it) as client:
            files = client.files("a")
            assert files.read("f") == b"old"

            def enough(size: int, _: int | None) -> None:
                if size > 2 * len(data) and it.process.poll() is None:
                    it.kill()

            with pytest.raises(NsmError):
                files.upload(tmp_path, "tree", on_progress=enough)
        it = stack.enter_context(another(it))
        with client_of(it) as client:
            files = client.files("a")
            assert {entry.name for entry in files.list()} == {"f", "tree"}
            assert {entry.size for entry in files.list("tree")} <= {len(data)}
            # It reads no request any more, and then it dies.
            it.process.send_signal(signal.SIGSTOP)
            killer = threading.Thread(target=it.kill)
            killer.start()
            with pytest.raises(NsmError):
                files.write("f", "new")
            killer.join()
        it = stack.enter_context(another(it))
        with it.client() as client:
            assert client.files("a").read("f") == b"old"
            client.kill_all()
