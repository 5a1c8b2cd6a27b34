"""A person joins sessions in real jails: reads along, runs code there, moves files."""

from __future__ import annotations

import io
import threading
import time
from typing import TYPE_CHECKING

import pytest

from nsm.wire.errors import FileError, SessionEndedError, UnknownSessionError
from nsm.wire.transcripts import ExecutionEnd, ExecutionStart, OutputPiece, SessionStart

if TYPE_CHECKING:
    import nsm
    from e2e_support import Supervisor
    from nsm.wire.transcripts import Entry, LogEnd

ENDING_S = 120.0
"""Time limit for a session to be gone; it takes milliseconds."""


class Follower:
    """Reads a transcript in a thread of its own; `wait_for` waits until some text was printed."""

    def __init__(self, supervisor: Supervisor, target: str) -> None:
        self.entries: list[Entry] = []
        self.end: LogEnd | None = None
        self._client = supervisor.client()
        self._target = target
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    @property
    def text(self) -> str:
        return "".join(entry.text for entry in self.entries if isinstance(entry, OutputPiece))

    def wait_for(self, text: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: text in self.text, timeout=120), self.entries

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _read(self) -> None:
        with self._client as client:
            self.end = client.logs(self._target, follow=True, on_entry=self._take)

    def _take(self, entry: Entry) -> None:
        with self._changed:
            self.entries.append(entry)
            self._changed.notify_all()


PYTHON_WAITS = """
import os, time
print("before", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("after")
"""

NODE_WAITS = """
console.log("before");
while (!require("fs").existsSync("go")) await new Promise((done) => setTimeout(done, 10));
console.log("after");
"""

WAITS = [
    ("python", PYTHON_WAITS),
    ("bash", "echo before; until [ -e go ]; do sleep .01; done; echo after"),
    ("node", NODE_WAITS),
]


@pytest.mark.parametrize(("env", "code"), WAITS, ids=["python", "bash", "node"])
def test_a_late_follower_sees_earlier_and_later_output(
    env: str, code: str, shared: Supervisor, client: nsm.Client
) -> None:
    results: list[nsm.RunResult] = []

    def run() -> None:
        with shared.client() as other:
            # Nobody asks for this one's output: it is streamed from its middle on.
            results.append(other.run(code, env=env, session="a"))

    client.run("true" if env == "bash" else "1", env=env, session="a")
    thread = threading.Thread(target=run)
    thread.start()
    follower = Follower(shared, "a")
    follower.wait_for("before")
    client.files("a").write_from("go", io.BytesIO().read)
    thread.join()
    client.kill("a")
    follower.join()
    assert follower.text == "before\nafter\n" == results[0].stdout
    kinds = [type(entry) for entry in follower.entries if not isinstance(entry, OutputPiece)]
    assert kinds == [SessionStart, *[ExecutionStart, ExecutionEnd] * 2]
    assert follower.end is not None
    assert (follower.end.state, follower.end.end_reason) == ("ended", "killed by nsm")


def test_transcripts_outlive_their_sessions(client: nsm.Client) -> None:
    client.run("print('one')", env="python", session="a")
    client.run("1 / 0", env="python", session="a")
    (row,) = client.sessions()
    one_shot = client.run("echo shot", env="bash").session
    client.kill("a")
    rows = {ended.id: ended for ended in client.ended_sessions()}
    assert rows[row.id].executions == 2
    # Its answer comes before its end, which nobody waits for.
    deadline_s = time.monotonic() + ENDING_S
    while one_shot.id not in rows and time.monotonic() < deadline_s:
        rows = {ended.id: ended for ended in client.ended_sessions()}
    assert rows[one_shot.id].name is None
    for target in ("a", row.id):
        found: list[Entry] = []
        end = client.logs(target, on_entry=found.append)
        assert end.end_reason == "killed by nsm"
        ends = [entry for entry in found if isinstance(entry, ExecutionEnd)]
        assert [entry.exit_code for entry in ends] == [0, 1]
        texts = [entry.text for entry in found if isinstance(entry, OutputPiece)]
        assert texts[0] == "one\n"
        assert "ZeroDivisionError" in texts[1]
    found = []
    client.logs(one_shot.id, on_entry=found.append)
    assert [entry.text for entry in found if isinstance(entry, OutputPiece)] == ["shot\n"]
    with pytest.raises(UnknownSessionError):
        client.logs("nobody-ever", on_entry=found.append)


def test_a_follower_of_a_flood_keeps_up_or_is_told(shared: Supervisor, client: nsm.Client) -> None:
    client.run("true", env="bash", session="a")
    follower = Follower(shared, "a")
    result = client.run("yes | head -c 20000000; echo; echo the end", env="bash", session="a")
    follower.wait_for("the end")
    client.kill("a")
    follower.join()
    assert result.exit_code == 0
    assert follower.text.endswith("the end\n")


def test_code_in_a_session_of_another_scope(shared: Supervisor, client: nsm.Client) -> None:
    with shared.client(scope="model") as model:
        model.run("x = 41", env="python", session="work")
        assert client.run_in("model/work", "print(x + 1)").stdout == "42\n"
        seen: list[str] = []
        code = "x = 6\nprint('said', flush=True)"
        client.run_in("work", code, on_output=lambda _, text: seen.append(text))
        assert "".join(seen) == "said\n"
        assert model.run("print(x * 7)", env="python", session="work").stdout == "42\n"


NO_FILES = [
    (":", "missing", "no such file"),
    (":", "/workspace", "directory"),
    ("mkfifo f", "f", "named pipe"),
    (":", "/dev/zero", "device"),
    ("ln -s /proc/1/environ f", "f", "/proc"),
    ("ln -s f f", "f", "links"),
    ("ln -s /proc/self/root f", "f/etc/passwd", "/proc"),
]


def test_special_files_are_refused_at_once(client: nsm.Client) -> None:
    for make, path, says in NO_FILES:
        client.run(f"rm -f f; {make}", env="bash", session="a")
        with pytest.raises(FileError, match=says):
            client.files("a").read_to(path, lambda _: None)
    assert client.run("echo fine", env="bash", session="a").stdout == "fine\n"


def test_nothing_is_written_through_a_link(client: nsm.Client) -> None:
    client.run("echo old > target; ln -s target link", env="bash", session="a")
    with pytest.raises(FileError, match="link"):
        client.files("a").write_from("link", io.BytesIO(b"new").read)
    with pytest.raises(FileError, match="read-only"):
        client.files("a").write_from("/usr/new", io.BytesIO(b"new").read)
    with pytest.raises(FileError, match="exists"):
        client.files("a").write_from("target", io.BytesIO(b"new").read, overwrite=False)
    assert client.run("cat target; ls -A | wc -l", env="bash", session="a").stdout == "old\n2\n"


@pytest.mark.parametrize(
    "piece", [b"x", pytest.param(bytes(1_000_000), marks=pytest.mark.slow)], ids=["slow", "fast"]
)
def test_a_source_without_end_is_not_read_after_the_session(
    piece: bytes, shared: Supervisor, client: nsm.Client
) -> None:
    client.run("true", env="bash", session="a")
    killed = threading.Event()
    late_s = time.monotonic() + ENDING_S

    def endless(_: int) -> bytes:
        if not killed.is_set():
            with shared.client() as other:
                other.kill("a")
            killed.set()
        assert time.monotonic() < late_s, "it goes on writing into a file of an ended session"
        return piece

    with pytest.raises(SessionEndedError, match="killed by nsm"):
        client.files("a").write_from("f", endless)
