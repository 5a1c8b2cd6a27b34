"""Bounds of captured output: memory, the file for the rest, pipes that are stolen or flooded."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_process import AgentProcess, Interpreter, becomes_true
from sandbox.capture import Capture, OutputPipe, SpillFile, Spills
from sandbox.framing import encode_frame
from sandbox.limits import Limits

SMALL = Limits({"reply_bytes": 100, "file_bytes": 1000})


def captured(workspace: Path, data: bytes, limits: Limits = SMALL) -> Capture:
    capture = Capture("stdout", Spills(str(workspace)), limits)
    for start in range(0, len(data), 37):
        capture.write(data[start : start + 37])
    return capture


def test_short_output_is_whole(tmp_path: Path) -> None:
    text, left_out = captured(tmp_path, b"x" * 100).result()
    assert text == "x" * 100
    assert left_out is None
    assert not (tmp_path / ".nsm").exists()


def test_long_output_is_head_and_tail_and_whole_in_a_file(tmp_path: Path) -> None:
    data = bytes(range(48, 122)) * 9
    text, left_out = captured(tmp_path, data).result()
    assert left_out is not None
    omitted = len(data) - 100
    assert left_out["omitted_bytes"] == omitted
    assert (
        text == f"{data[:50].decode()}\n[... {omitted} bytes left out ...]\n{data[-50:].decode()}"
    )
    assert Path(left_out["file"]).read_bytes() == data
    assert left_out["file_bytes"] == left_out["total_bytes"] == len(data)
    assert (tmp_path / ".nsm").stat().st_mode & 0o777 == 0o700


def test_the_file_is_capped(tmp_path: Path) -> None:
    text, left_out = captured(tmp_path, b"a" * 5000 + b"end").result()
    assert left_out is not None
    assert left_out["omitted_bytes"] == 4903
    assert text.endswith("aend")
    assert Path(left_out["file"]).stat().st_size == left_out["file_bytes"] == 1000
    assert left_out["total_bytes"] == 5003


@given(st.text("aé€😀", min_size=60, max_size=200))
def test_characters_are_not_torn(text: str) -> None:
    data = text.encode("utf-8", "replace")
    shown, left_out = captured(Path("/nowhere"), data).result()
    if left_out is None:
        assert shown == data.decode()
    else:
        head, note, tail = shown.partition(
            f"\n[... {left_out['omitted_bytes']} bytes left out ...]\n"
        )
        assert note
        assert data.startswith(head.encode())
        assert data.endswith(tail.encode())
        assert len(head.encode()) + len(tail.encode()) + left_out["omitted_bytes"] == len(data)
        assert len(head.encode()) > 46
        assert len(tail.encode()) > 46


PLANTS = {
    "a link": "ln -s ../outside .nsm",
    "a file": "touch .nsm",
    "a named pipe": "mkfifo .nsm",
    "a link in the place of the file": "mkdir .nsm; ln -s ../../outside/victim .nsm/stdout-1.txt",
    "another name of a file": "mkdir .nsm; ln ../outside/victim .nsm/stdout-1.txt",
}


@pytest.mark.parametrize("plant", PLANTS)
def test_nothing_planted_is_followed_or_overwritten(tmp_path: Path, plant: str) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    (outside / "victim").write_text("precious")
    subprocess.run(["sh", "-e", "-c", PLANTS[plant]], cwd=workspace, check=True)
    text, left_out = captured(workspace, b"x" * 500).result()
    assert left_out is not None
    assert (left_out["omitted_bytes"], left_out["file"]) == (400, None)
    assert text.startswith("xxx")
    assert (outside / "victim").read_text() == "precious"
    assert [path.name for path in outside.iterdir()] == ["victim"]


def test_a_full_disk_is_tolerated() -> None:
    file = SpillFile("/nowhere", "stdout-1.txt", 100)
    file.write(b"x")
    assert file.full
    assert file.close() is None


def test_a_file_that_was_removed_is_not_promised(tmp_path: Path) -> None:
    capture = captured(tmp_path, b"x" * 500)
    (tmp_path / ".nsm" / "stdout-1.txt").unlink()
    left_out = capture.result()[1]
    assert left_out is not None
    assert (left_out["omitted_bytes"], left_out["file"]) == (400, None)


def test_old_files_make_room(tmp_path: Path) -> None:
    spills = Spills(str(tmp_path))
    for _ in range(10):
        capture = Capture("stdout", spills, SMALL)
        capture.write(b"x" * 900)
        capture.result()
    left = sorted((tmp_path / ".nsm").iterdir())
    assert len(left) <= 2
    assert sum(path.stat().st_size for path in left) <= 2000


# The cut.


@pytest.fixture
def pipe() -> OutputPipe:
    return OutputPipe()


def test_a_cut_separates_before_and_after(pipe: OutputPipe) -> None:
    os.write(pipe.child_fd, b"before")
    assert pipe.cut() == b"before"
    os.write(pipe.child_fd, b"after")
    assert pipe.read() == b"after"
    assert pipe.cut() == b""
    pipe.close()


def test_a_cut_leaves_what_comes_behind_it(pipe: OutputPipe) -> None:
    """Output that comes while the cut is made is for the next execution, and none is lost."""
    os.write(pipe.child_fd, b"before")
    read = pipe.read

    def read_late(count: int) -> bytes:
        os.write(pipe.child_fd, b"behind")
        return read(count)

    pipe.read = read_late  # type: ignore[method-assign,assignment]
    assert pipe.cut() == b"before"
    pipe.read = read  # type: ignore[method-assign]
    assert pipe.cut() == b"behind"
    pipe.close()


def test_a_full_pipe_is_cut(pipe: OutputPipe) -> None:
    os.set_blocking(pipe.child_fd, False)
    size = 0
    try:
        while True:
            size += os.write(pipe.child_fd, b"x" * 4096)
    except BlockingIOError:
        pass
    assert len(pipe.cut()) == size
    pipe.close()


def test_output_that_code_takes_out_again_does_not_hold_a_cut_up(pipe: OutputPipe) -> None:
    """Code can open its stdout for reading; here it takes all that comes, for ever."""
    stop = threading.Event()
    thief = os.open(f"/proc/self/fd/{pipe.child_fd}", os.O_RDONLY | os.O_NONBLOCK)

    def steal() -> None:
        while not stop.is_set():
            with contextlib.suppress(BlockingIOError):
                os.read(thief, 64)

    thread = threading.Thread(target=steal)
    thread.start()
    try:
        for _ in range(200):
            os.write(pipe.child_fd, b"something")
            assert len(pipe.cut()) < 200
    finally:
        stop.set()
        thread.join()
        os.close(thief)
        pipe.close()


def test_a_flood_does_not_hold_a_cut_up(pipe: OutputPipe) -> None:
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            os.write(pipe.child_fd, b"y" * 4096)

    threads = [threading.Thread(target=flood) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            assert len(pipe.cut()) < 4 * 1024 * 1024
    finally:
        stop.set()
        while any(thread.is_alive() for thread in threads):
            pipe.read()
        for thread in threads:
            thread.join()
        pipe.close()


# In an agent.


def test_output_without_end_neither_fills_memory_nor_slows_down(agent: AgentProcess) -> None:
    agent.send(type="hello", limits={"file_bytes": 4_000_000})
    agent.python("1")

    def resident_kb() -> int:
        status = Path(f"/proc/{agent.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    before = resident_kb()
    reply = agent.bash("yes | head -c 300000000; echo; echo end", timeout_s=20)
    assert reply.stdout.endswith("y\n\nend\n")
    assert reply.truncated["stdout"]["omitted_bytes"] > 298_000_000
    assert Path(reply.truncated["stdout"]["file"]).stat().st_size == 4_000_000
    assert resident_kb() - before < 20_000


def test_an_idle_agent_does_not_spin_over_a_background_flood(agent: AgentProcess) -> None:
    agent.send(type="hello", limits={"reply_bytes": 10_000, "file_bytes": 100_000})
    agent.bash("yes & true")

    def ticks() -> int:
        fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    last = [ticks()]

    def settled() -> bool:
        before, last[0] = last[0], ticks()
        return before == last[0]

    becomes_true(settled, "the agent is idle")
    assert agent.bash("kill %1 || kill $!; wait; echo done").stdout.endswith("done\n")


def test_a_spill_that_code_prevents_is_said(agent: AgentProcess) -> None:
    agent.bash("ln -s / .nsm")
    reply = agent.python("print('a' * 3_000_000)")
    assert reply.truncated["stdout"]["file"] is None
    assert reply.truncated["stdout"]["omitted_bytes"] > 0


def forged_messages() -> bytes:
    """Bytes of every kind of message that there is."""
    forged = [
        encode_frame({"type": "result", "id": "e1", "stdout": "forged", "exit_code": 0}),
        encode_frame({"type": "done", "id": 1, "exit_code": 0}),
        b"\0nsm-cut:" + b"0" * 32 + b"\0",
        b"\xff\xff\xff\xff" + b"0" * 16,
    ]
    return b"".join(forged)


@pytest.mark.parametrize(
    "interpreter", ["python", "bash", pytest.param("node", marks=pytest.mark.node)]
)
def test_output_like_a_frame_or_a_marker_is_only_output(
    agent: AgentProcess, interpreter: Interpreter
) -> None:
    text = forged_messages()
    octal = "".join(f"\\{byte:03o}" for byte in text)
    codes = {
        "python": f"import os; os.write(1, {text!r}); os.write(2, {text!r}); None",
        "bash": f"printf '{octal}'; printf '{octal}' >&2",
        "node": f"for (const it of [process.stdout, process.stderr])"
        f" it.write(Buffer.from('{text.hex()}', 'hex')); undefined",
    }
    reply = agent.run(codes[interpreter], interpreter)
    shown = text.decode("utf-8", "surrogateescape")
    assert (reply.stdout, reply.stderr) == (shown, shown)
