"""`nsm-mcp` as a process between a client and a supervisor, both played by the test."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import pytest
import trio

from json_peer import Message, Peer, call_params, text_of
from nsm import jsonlines
from nsm._version import program_version
from nsm.shim.link import AttachError, attach
from nsm.shim.relay import CALL_DRAIN_S, Relay
from shim_process import CODE, INITIALIZE, PATIENCE_S, Shim, fake_supervisor, shim


async def handshake(running: Shim, peer: Peer) -> None:
    """Initialize through the shim; the test answers for the supervisor."""
    sent = await running.start("initialize", INITIALIZE)
    asked = await peer.receive()
    assert (asked["method"], asked["id"]) == ("initialize", sent)
    await peer.send({"jsonrpc": "2.0", "id": sent, "result": {"from": "the first"}})
    assert (await running.receive())["result"] == {"from": "the first"}
    await running.notify("notifications/initialized")
    assert (await peer.receive())["method"] == "notifications/initialized"


# Attaching and relaying.


async def test_the_shim_tells_its_own_variables_and_no_others(tmp_path: Path) -> None:
    variables = {
        "PROJECT_DIR": "/p",
        "CLAUDE_PROJECT_DIR": "/c",
        "NSM_SCOPE": "mine",
        "SECRET_TOKEN": "never",
        "HOME": "/home/u",
    }
    async with (
        fake_supervisor(tmp_path) as supervisor,
        shim(supervisor.path, variables, cwd=tmp_path) as running,
    ):
        _, attach = await supervisor.attached()
        assert re.fullmatch("[0-9a-f]{32}", attach.pop("id"))
        assert attach == {
            "program_version": program_version(),
            "variables": {
                "PROJECT_DIR": "/p",
                "CLAUDE_PROJECT_DIR": "/c",
                "NSM_SCOPE": "mine",
                "NSM_SOCKET": str(supervisor.path),
                "NSM_AUTOSTART": "0",
            },
            "cwd": str(tmp_path),
            "pid": running.process.pid,
            "inherits": True,
        }


async def test_the_shim_tells_the_variables_that_it_is_asked_for(tmp_path: Path) -> None:
    variables = {"TOKEN": "t \udcff", "OTHER": "never", "EMPTY": ""}
    wanted = ["TOKEN", "EMPTY", "UNSET", 3]
    async with (
        fake_supervisor(tmp_path) as supervisor,
        shim(supervisor.path, variables, cwd=tmp_path) as running,
    ):
        peer, _ = await supervisor.attached(inherit=wanted)
        assert await peer.receive() == {"nsm": 1, "inherited": {"TOKEN": "t \udcff", "EMPTY": ""}}
        await handshake(running, peer)


async def test_lines_go_both_ways_unchanged(tmp_path: Path) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        for text in ("a", "ä\u2028", "x" * 300_000):
            await running.notify("notifications/odd", {"text": text})
            assert (await peer.receive())["params"] == {"text": text}
            await peer.notify("notifications/odd", {"text": text})
            assert (await running.receive())["params"] == {"text": text}
        await running.send_raw(b'{"jsonrpc" : "2.0",  "id":\t"7","method":"m"}')
        answer = b'{"jsonrpc":"2.0",   "id":"7","result":{ }}'
        assert (await peer.receive())["id"] == "7"
        await peer.send_raw(answer)
        assert await running.stdout.receive_some(1000) == answer + b"\n"


# Bad input.


@pytest.mark.parametrize(
    "line", [b"garbage", b"\xff\xfe", b"[" * 100_000, b"9" * 5000, b'{"id":NaN}', b'{"a":1']
)
async def test_a_line_that_is_not_json_is_answered_and_goes_no_further(
    tmp_path: Path, line: bytes
) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        await running.send_raw(line)
        await running.notify("notifications/next")
        answer = await running.receive()
        assert (answer["id"], answer["error"]["code"]) == (None, -32700)
        assert (await peer.receive())["method"] == "notifications/next"


async def test_an_id_in_use_is_refused_and_the_first_call_stays(tmp_path: Path) -> None:
    call: Message = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call_params(CODE)}
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        for known in (7, "7", 7):
            await running.send({**call, "id": known})
        answer = await running.receive()
        assert (answer["id"], answer["error"]["code"]) == (7, -32600)
        for known in (7, "7"):
            assert (await peer.receive())["id"] == known
        for cancelled in ("7", True):
            await running.notify("notifications/cancelled", {"requestId": cancelled})
            await peer.receive()
        await peer.stream.aclose()
        answer = await running.receive()  # nobody else is left to be told
        assert (answer["id"], answer["result"]["isError"]) == (7, True)
        await running.stdin.aclose()
        assert await running.ended() == 0


@pytest.mark.parametrize("id_first", [True, False])
async def test_a_call_over_16_mib_is_answered_for_the_model(tmp_path: Path, id_first: bool) -> None:
    message: Message = {
        "method": "tools/call",
        "params": call_params({**CODE, "code": "#" * 2**24}),
    }
    message = {"id": 5, **message} if id_first else {**message, "jsonrpc": "2.0", "id": 5}
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        await running.send(message)
        answer = await running.receive()
        assert (answer["id"], answer["result"]["isError"]) == (5, True)
        assert "limit is 16,777,216, and 8 MiB for code" in text_of(answer["result"])
        await running.notify("notifications/next")
        assert (await peer.receive())["method"] == "notifications/next"


async def test_a_call_just_within_the_limit_goes_through(tmp_path: Path) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        code = "#" * (jsonlines.MAX_LINE_BYTES - 1000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.start, "tools/call", call_params({**CODE, "code": code}))
            received = await peer.receive()
        assert received["params"]["arguments"]["code"] == code


async def test_a_supervisor_that_talks_nonsense_is_not_passed_on(tmp_path: Path) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        await peer.send_raw(b"nonsense")
        await peer.notify("notifications/next")
        assert (await running.receive())["method"] == "notifications/next"
        await running.stdin.aclose()
        assert await running.ended() == 0
        assert "not JSON" in await running.stderr()


# A supervisor that goes away.


async def test_without_a_supervisor_each_call_says_so_until_there_is_one(tmp_path: Path) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        await handshake(running, peer)
        await supervisor.close()
        await peer.stream.aclose()
        for _ in range(2):
            result = (await running.request("tools/call", call_params(CODE)))["result"]
            assert result["isError"] is True
            assert "no supervisor listens" in text_of(result)
            assert "The code was not run" in text_of(result)
        assert "error" in await running.request("ping")
        await running.notify("notifications/cancelled", {"requestId": 1})  # concerns nobody
        await supervisor.listen()
        await running.start("ping")
        peer, _ = await supervisor.attached()
        methods = [(await peer.receive())["method"] for _ in range(3)]
        assert methods == ["initialize", "notifications/initialized", "ping"]


# No supervisor from the start.


@pytest.mark.parametrize("discover_first", [False, True])
async def test_the_client_sees_why_there_is_none(tmp_path: Path, discover_first: bool) -> None:
    async with shim(tmp_path / "nobody") as running:
        if discover_first:
            # Such a client then introduces itself the older way, and shows what that is answered.
            answer = await running.request("server/discover", {"_meta": {}})
            assert "no supervisor listens" in answer["error"]["message"]
        answer = await running.request("initialize", INITIALIZE)
        assert "no supervisor listens on" in answer["error"]["message"]
        assert "forbids to start one. Start `nsm-supervisor`" in answer["error"]["message"]
        assert await running.ended() == 1
        assert "nsm-mcp: no supervisor listens" in await running.stderr()


async def test_a_refused_client_entry_is_told(tmp_path: Path) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer = await supervisor.accept()
        await peer.receive()
        error = {"code": "bad-request", "message": "PROJECT_MODE is wrong.", "hint": "Correct it."}
        await peer.send({"nsm": 1, "ok": False, "error": error})
        answer = await running.request("initialize", INITIALIZE)
        assert answer["error"]["message"] == "nsm: PROJECT_MODE is wrong. Correct it."
        assert await running.ended() == 1


@pytest.mark.parametrize(
    "answer", [b"nonsense", b"[1]", b"{}", b'{"nsm": 1}', b"x" * 100_000, b'{"nsm": 1, "ok": 1}']
)
async def test_another_program_at_the_socket_is_told_from_a_supervisor(
    tmp_path: Path, answer: bytes
) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer = await supervisor.accept()
        await peer.receive()
        await peer.send_raw(answer)
        told = await running.request("initialize", INITIALIZE)
        assert "supervisor" in told["error"]["message"]
        assert await running.ended() == 1


async def test_a_supervisor_that_goes_before_it_has_answered_is_not_the_last(
    tmp_path: Path,
) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        for beginning in (b"", b'{"ns', b'{"nsm": 1, "o'):
            peer = await supervisor.accept()
            await peer.receive()
            await peer.stream.send_all(beginning)
            await peer.stream.aclose()
        peer, _ = await supervisor.attached()
        await handshake(running, peer)


# A client that goes away.


async def test_end_of_file_waits_for_answers_and_for_a_line_without_end(tmp_path: Path) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call_params(CODE)}
        await running.stdin.send_all(json.dumps(call).encode())
        await running.stdin.aclose()
        assert (await peer.receive())["id"] == 1
        await peer.send({"jsonrpc": "2.0", "id": 1, "result": {}})
        assert (await running.receive())["id"] == 1
        assert await running.ended() == 0


async def test_end_of_file_waits_longer_for_what_takes_no_code(tmp_path: Path) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        listing = await running.start("tools/list")
        call = await running.start("tools/call", call_params(CODE))
        await running.stdin.aclose()
        for _ in range(2):
            await peer.receive()
        with trio.move_on_after(CALL_DRAIN_S + 0.3):  # as a supervisor that has just begun
            await running.process.wait()
        await peer.send({"jsonrpc": "2.0", "id": listing, "result": {}})
        assert (await running.receive())["id"] == listing
        await peer.send({"jsonrpc": "2.0", "id": call, "result": {}})
        assert (await running.receive())["id"] == call
        assert await running.ended() == 0


async def test_a_client_that_no_longer_reads_ends_it_with_output_waiting(tmp_path: Path) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        await fill(peer)
        await running.stdout.aclose()
        with trio.fail_after(PATIENCE_S):
            await running.process.wait()


async def fill(peer: Peer) -> None:
    """Send towards a client that does not read, until nothing more is taken."""
    note = json.dumps({"jsonrpc": "2.0", "method": "n", "params": {"x": "y" * 60_000}}).encode()
    taken = 0
    with trio.move_on_after(0.2) as patience:
        while True:
            await peer.stream.send_all(note + b"\n")
            patience.deadline = trio.current_time() + 0.2
            taken += len(note)
            assert taken < 20_000_000, "it takes without bound"


async def test_a_client_that_does_not_read_is_waited_for_without_turning(tmp_path: Path) -> None:
    """Back-pressure reaches the supervisor, costs no processor time, and ends by itself."""
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        await fill(peer)
        before = cpu_ticks(running.process.pid)
        # Another process lives its whole life meanwhile; a busy loop would use as much of it.
        for _ in range(3):
            await trio.run_process([sys.executable, "-c", "import json"])
        assert cpu_ticks(running.process.pid) - before <= 2
        await peer.stream.aclose()  # torn in the middle of a line
        received = 0
        with trio.fail_after(PATIENCE_S):
            await running.stdin.aclose()
            async for chunk in running.stdout:
                received += len(chunk)
        assert received > 100_000
        assert await running.ended() == 0


def cpu_ticks(pid: int) -> int:
    """Processor time of a process, in hundredths of a second (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_end_it_without_a_word(tmp_path: Path, number: signal.Signals) -> None:
    async with fake_supervisor(tmp_path) as supervisor, shim(supervisor.path) as running:
        peer, _ = await supervisor.attached()
        running.process.send_signal(number)
        assert await running.ended() == -number
        assert await running.stderr() == ""
        with pytest.raises(EOFError):
            await peer.receive()


# The relay without a process: what depends on its time limits.


class Bench:
    """A relay in a thread, and the other ends of its descriptors."""

    def __init__(self, drain_s: float, stack: ExitStack) -> None:
        self.stdin_read, self.stdin = os.pipe()
        self.stdout, self.stdout_write = os.pipe()
        ours, theirs = socket.socketpair()
        self.supervisor = stack.enter_context(ours)
        self._theirs = stack.enter_context(theirs)
        self.supervisor.sendall(b'{"nsm": 1, "ok": true}\n')
        self.relay = Relay(self.stdin_read, self.stdout_write, self._connect, drain_s=drain_s)
        self.exit_code: int | None = None
        self.thread = Thread(target=self._run)
        self.thread.start()

    def _connect(self, _patience_s: float) -> socket.socket:
        return self._theirs

    def _run(self) -> None:
        self.exit_code = self.relay.run()

    def ended(self) -> int | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.exit_code


@contextmanager
def relay(drain_s: float) -> Generator[Bench]:
    with ExitStack() as stack:
        bench = Bench(drain_s, stack)
        try:
            yield bench
        finally:
            os.close(bench.stdout)
            bench.ended()
            for descriptor in (bench.stdin_read, bench.stdout_write):
                os.close(descriptor)


def test_a_failure_without_words_is_told_by_its_type() -> None:
    def connect(_patience_s: float) -> socket.socket:
        raise MemoryError

    (stdin_read, stdin), (stdout, stdout_write) = os.pipe(), os.pipe()
    try:
        os.write(stdin, b'{"jsonrpc":"2.0","id":1,"method":"initialize"}\n')
        assert Relay(stdin_read, stdout_write, connect).run() == 1
        assert b'"nsm: MemoryError"' in os.read(stdout, 65536)
    finally:
        for descriptor in (stdin_read, stdin, stdout, stdout_write):
            os.close(descriptor)


def test_a_call_that_is_never_answered_is_waited_for_only_so_long() -> None:
    with relay(drain_s=0.05) as bench:
        os.write(bench.stdin, b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}\n')
        began = time.monotonic()
        os.close(bench.stdin)
        assert bench.ended() == 0
        assert time.monotonic() - began >= 0.05
        assert b'"tools/call"' in bench.supervisor.recv(65536)


def test_a_stream_of_changes_is_not_waited_for() -> None:
    with relay(drain_s=1000) as bench:
        os.write(bench.stdin, b'{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen"}\n')
        os.close(bench.stdin)
        assert bench.ended() == 0


def test_lines_on_their_way_to_the_supervisor_are_sent_before_the_end() -> None:
    with relay(drain_s=20) as bench:
        note = b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"%s"}}\n' % (b"y" * 900)
        os.write(bench.stdin, note * 50)
        os.close(bench.stdin)
        assert bench.ended() == 0
        received = b""
        bench.supervisor.setblocking(False)
        while len(received) < 50 * len(note):
            received += bench.supervisor.recv(65536)
        assert received.endswith(note * 50)


def test_a_supervisor_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsm.shim.link.ATTACH_TIMEOUT_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(AttachError, match=r"did not answer within 0 s.*nsm doctor"):
            attach(theirs, "a" * 32)
        assert theirs.fileno() == -1


# The program: what it loads, its descriptors, its command line.


def test_the_shim_loads_no_heavy_module() -> None:
    """30 ms and 1.5 times the memory of an empty Python; see the architecture's budgets."""
    code = "import nsm.shim, sys; print(*sys.modules)"
    loaded = set(
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", f"import sys; sys.path[:0] = {PATHS!r}; {code}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    )
    heavy = {"json", "re", "typing", "dataclasses", "subprocess", "pathlib", "logging", "asyncio"}
    assert not loaded & (heavy | {"cbor2", "trio", "pydantic", "mcp", "argparse"})


PATHS = [str(Path(jsonlines.__file__).parents[1])]


def test_nothing_else_can_write_to_the_client() -> None:
    code = (
        "import os, nsm.shim as s\n"
        "stdin, stdout = s._claim_stdio()\n"
        "print('stray', flush=True); os.system('echo stray child')\n"
        "assert os.read(0, 1) == b''\n"
        "os.write(stdout, os.read(stdin, 5))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"wire!", capture_output=True, check=True
    )
    assert done.stdout == b"wire!"
    assert done.stderr == b"stray\nstray child\n"


@pytest.mark.parametrize("closed", [0, 1])
def test_closed_standard_descriptors_are_told(closed: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m nsm.shim {closed}>&-', sys.executable],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"stdin and stdout must be open" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["--version"], 0, f"nsm-mcp {program_version()}\n", ""),
        (["--help"], 0, "usage: nsm-mcp", ""),
        (["serve"], 2, "", "usage: nsm-mcp"),
        (["--stdio", "serve"], 2, "", "usage: nsm-mcp"),
    ],
)
def test_the_shim_takes_few_options(arguments: list[str], code: int, out: str, err: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nsm.shim", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert done.stdout.startswith(out)
    assert done.stderr.startswith(err)
    assert bool(done.stdout) == bool(out)
