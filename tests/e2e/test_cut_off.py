"""Copies, saves, forks and sandboxes that outlive the supervisor that was asked for them."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nsm
from e2e_support import end_holder, end_supervisor, variables_for, wait_gone
from live_forks import needs_scopes
from nsm.client.sandbox import Sandbox
from nsm.saves import Saves
from nsm.wire.errors import DisconnectedError, FateUnknownError
from soak.load import scaled

if TYPE_CHECKING:
    from collections.abc import Generator


class Client(nsm.Client):
    """A client whose supervisors are killed.

    Attributes:
        left: calls until the supervisor is killed; None for never.
        calls: operations since then.
    """

    left: int | None = None

    def _perform(self, *operation: Any, **named: Any) -> dict[str, Any]:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                self.kill_supervisor()
        return super()._perform(*operation, **named)

    def kill_supervisor(self) -> None:
        assert self.server.pid
        pidfd = os.pidfd_open(self.server.pid)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        wait_gone([pidfd])

    def kill_supervisor_at_some_moment(self, seconds: float) -> threading.Thread:
        """Have it killed within that time."""
        pid = self.server.pid
        assert pid

        def kill() -> None:
            time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)

        killing = threading.Thread(target=kill)
        killing.start()
        return killing


@pytest.fixture(scope="module")
def place() -> Generator[Path]:
    """Directory of the supervisors, of which each takes over from the one before."""
    with tempfile.TemporaryDirectory(prefix="nsm-") as path:
        yield Path(path)
        end_supervisor(f"{path}/control.sock")
        end_holder(Path(path))


@pytest.fixture
def client(place: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Client]:
    """A client that starts another supervisor in place of one that was killed."""
    for name, value in variables_for(place).items():
        monkeypatch.setenv(name, value)
    with Client(socket_path=str(place / "control.sock"), scope="test") as made:
        yield made
        made.kill_all()


@pytest.mark.parametrize("moment", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_copies_go_on(client: Client, tmp_path: Path, moment: int) -> None:
    data = random.Random(7).randbytes(20_000_000)
    (tmp_path / "there/below").mkdir(parents=True)
    (tmp_path / "there/below/a.bin").write_bytes(data)
    client.run("import os", env="python", session="work")
    files = client.files("work")
    moved: list[int] = []

    def kill(*_: object) -> None:
        moved.append(1)
        if len(moved) == moment + 1:
            client.kill_supervisor()

    files.upload(str(tmp_path / "there/below/a.bin"), "a.bin", on_progress=kill)
    moved.clear()
    files.upload(str(tmp_path / "there"), "tree", on_progress=kill)
    names = (
        "sorted(os.listdir()), os.listdir('tree/below'), [x for x in os.listdir() if '.' == x[0]]"
    )
    moved.clear()
    files.download("a.bin", str(tmp_path / "back.bin"), on_progress=kill)
    moved.clear()
    files.download("tree", str(tmp_path / "back"), on_progress=kill)
    assert client.run(f"print({names})", env="python", session="work").stdout == (
        "['a.bin', 'tree'] ['a.bin'] []\n"
    )
    for copy in ("back.bin", "back/below/a.bin"):
        assert (tmp_path / copy).read_bytes() == data
    assert sorted(os.listdir(tmp_path)) == ["back", "back.bin", "there"]


def rows(client: Client) -> set[str]:
    return {str(row.name) for row in client.sessions()}


# Calls of a save, of which the first look at the session and the last close its parts.
@pytest.mark.parametrize(
    "calls", [12, *(pytest.param(calls, marks=pytest.mark.slow) for calls in (0, 3, 6, 9))]
)
def test_a_save_and_what_is_made_of_it_go_on(client: Client, tmp_path: Path, calls: int) -> None:
    client.run("x = list(range(1000)); open('a.txt', 'w').write('a')", env="python", session="work")
    client.left = calls
    saved = Saves(client).save("work", str(tmp_path / "work.save"))
    assert client.left is None, "the supervisor was killed"
    client.left = calls
    made = Saves(client).restore(saved.path, "again")
    assert client.left is None
    assert [row.name for row in made.rows if row.restored] == ["x"]
    for name in ("work", "again"):
        look = "import os; print(sum(x), os.listdir(), os.listdir('/tmp'))"
        assert client.run(look, env="python", session=name).stdout == "499500 ['a.txt'] []\n"
    assert rows(client) == {"work", "again"}
    assert os.listdir(tmp_path) == ["work.save"]


def test_a_session_in_which_a_restore_may_go_on_is_not_filled_again(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.run("x = 5", env="python", session="work")
    saved = Saves(client).save("work", str(tmp_path / "work.save"))
    runs: list[str] = []

    def run(_: Sandbox, code: str, **__: object) -> None:
        runs.append(code)
        raise FateUnknownError("whether its code ran is unknown")

    monkeypatch.setattr(Sandbox, "run", run)
    with pytest.raises(FateUnknownError):
        Saves(client).restore(saved.path, "again")
    assert len(runs) == 1
    assert rows(client) == {"work"}


@needs_scopes
@pytest.mark.parametrize("kills", [1, pytest.param(scaled(60), marks=pytest.mark.slow)])
def test_forks_are_made_once(client: Client, kills: int) -> None:
    """The supervisor is killed before, while or after it makes them."""
    delays = random.Random(7)
    for number in range(kills):
        target = f"target-{number}"
        client.run("x = 5", env="python", session=target)
        killing = client.kill_supervisor_at_some_moment(delays.random() / 20)
        made = client.fork(target, "a", count=2)
        killing.join()
        assert made.forks[0].name == "a"
        assert rows(client) == {target, *(each.name for each in made.forks)}
        for each in made.forks:
            assert client.run("print(x)", env="python", session=each.name).stdout == "5\n"
            client.kill(each.id)
        client.kill(target)


@needs_scopes
def test_forks_that_are_asked_for_again_are_the_same(client: Client) -> None:
    """Also if a supervisor was killed when it had made some of them."""
    client.run("x = 5", env="python", session="work")
    asked = {"target": "work", "names": ["a", "b"], "execution_id": "id"}
    first = client.call("session_fork", asked)["forks"]
    client.kill_supervisor()
    assert client.call("session_fork", {**asked, "again": True})["forks"] == first
    client.kill("b")
    again = client.call("session_fork", {**asked, "again": True})["forks"]
    assert [each["name"] for each in again] == ["a", "b"]
    assert again[0] == first[0]
    assert rows(client) == {"work", "a", "b"}


@pytest.mark.parametrize("kills", [1, pytest.param(scaled(60), marks=pytest.mark.slow)])
def test_sandboxes_are_made_once(client: Client, kills: int) -> None:
    delays = random.Random(7)
    for _ in range(kills):
        killing = client.kill_supervisor_at_some_moment(delays.random() / 50)
        with client.sandbox(env="python", files={"a.txt": "a"}) as sandbox:
            killing.join()
            assert rows(client) == {sandbox.name}
            assert sandbox.run("print(open('a.txt').read())").stdout == "a\n"
        assert rows(client) == set()


def test_a_handle_leads_to_no_file_of_another_connection(client: Client) -> None:
    client.run("1", env="python", session="work")
    asked = {"target": "work", "path": "a.txt", "mode": "write"}
    handle = client.call("file_open", asked)["file"]
    client.kill_supervisor()
    with pytest.raises(DisconnectedError, match="while a file was on its way"):
        client.call("file_write", {"file": handle, "data": b"old"})
    assert client.call("file_open", asked)["file"] != handle
