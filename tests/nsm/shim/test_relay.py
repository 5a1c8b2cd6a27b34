"""The relay without a process: what depends on its time limits."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from threading import Thread

import pytest

from nsm.shim.link import AttachError, attach
from nsm.shim.relay import Relay


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
