"""The blocking client against handlers behind a real socket."""

from __future__ import annotations

import io
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import trio

import nsm
import samples
from fakefiles import FakeFiles
from fakesupervisor import answer
from nsm.client import blocking
from nsm.client.interrupts import Interrupts
from nsm.wire.errors import (
    BadProjectError,
    BadRequestError,
    CodeTooLargeError,
    DisconnectedError,
    FileError,
    FileTooLargeError,
)
from nsm.wire.frames import RemoteProtocolError, encode_frame
from nsm.wire.operation import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fakesupervisor import Exchange, FakeSupervisor


def test_the_current_directory_is_the_project(
    supervisor: FakeSupervisor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(project)
    supervisor.handlers["run"] = answer(**samples.run_result())
    with nsm.Client(connection=supervisor.connect()) as client:
        client.run("1", env="python")
        client.run("2", env="python", project=None)
    assert supervisor.hellos[0].project == str(project)
    assert [request.args.get("project") for request in supervisor.requests] == [
        {"path": str(project)},
        None,
    ]
    monkeypatch.chdir(tmp_path)  # the home directory is none
    with nsm.Client(connection=supervisor.connect()) as client:
        client.run("3", env="python")
    assert supervisor.hellos[1].project == ""
    assert "project" not in supervisor.requests[2].args


def test_output_comes_while_it_runs(supervisor: FakeSupervisor, client: nsm.Client) -> None:
    seen: list[tuple[str, str]] = []
    more = threading.Event()

    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "a")
        exchange.emit("weather", {"stream": "stdout", "text": "unknown kind"})
        exchange.emit("output", {"stream": "stdin", "text": "unknown stream"})
        exchange.emit("output", {"stream": "stdout", "text": 5})
        assert more.wait(120), "the first piece has not come while the code ran"
        exchange.output("stderr", "b")
        return samples.run_result(stdout="a", stderr="b")

    def on_output(stream: str, text: str) -> None:
        seen.append((stream, text))
        more.set()

    supervisor.handlers["run"] = run
    client.run("x", env="python", on_output=on_output)
    assert seen == [("stdout", "a"), ("stderr", "b")]


def test_a_supervisor_that_does_not_end_is_told(
    supervisor: FakeSupervisor, client: nsm.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "ANSWER_TIMEOUT_S", 0.01)
    supervisor.handlers["shutdown"] = answer()
    with pytest.raises(DisconnectedError, match="4711"):
        client.shutdown()


def test_a_supervisor_that_never_introduces_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "ANSWER_TIMEOUT_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, pytest.raises(DisconnectedError, match="not answered"):
        nsm.Client(connection=theirs)
    assert theirs.fileno() == -1


@pytest.mark.parametrize(
    "data", [b"\xff" * 8, b'{"nsm": 1}\n', encode_frame({"id": 1, "result": {}})]
)
def test_a_peer_that_speaks_something_else(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(data)
        with pytest.raises(RemoteProtocolError):
            nsm.Client(connection=theirs)
    assert theirs.fileno() == -1


def test_an_answer_of_the_wrong_shape(supervisor: FakeSupervisor, client: nsm.Client) -> None:
    supervisor.handlers |= {"sessions": answer(sessions=[{"id": 5}]), "ping": answer()}
    with pytest.raises(RemoteProtocolError, match=r"`sessions\[0\]\.id`"):
        client.sessions()
    client.ping()  # the frames themselves were fine


def test_a_project_whose_path_cannot_be_sent(client: nsm.Client) -> None:
    with pytest.raises(BadProjectError, match=r"not UTF-8 text: '/caf\\udce9'"):
        client.run("1", env="python", project="/caf\udce9")


def test_code_that_cannot_be_sent(client: nsm.Client) -> None:
    with pytest.raises(BadRequestError, match="character 2 is half of a surrogate pair"):
        client.run("ab\udc80", env="python")
    with pytest.raises(CodeTooLargeError, match="16777216 bytes"):
        client.run("x" * 16 * 1024 * 1024, env="python")


@pytest.mark.parametrize("raised", [BrokenPipeError, SystemExit])
def test_an_error_in_a_callback_cancels_the_run_and_comes_out(
    supervisor: FakeSupervisor, client: nsm.Client, raised: type[BaseException]
) -> None:
    cancelled = threading.Event()

    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "x")
        exchange.cancelled.wait()
        cancelled.set()
        exchange.output("stdout", "y")
        return samples.run_result()

    def on_output(_stream: str, _text: str) -> None:
        raise raised

    supervisor.handlers.update(run=run, ping=lambda _exchange: {}, kill=lambda _exchange: killed)
    killed: dict[str, Any] = {"killed": [], "errors": []}
    with pytest.raises(raised):
        client.run("x", env="python", on_output=on_output)
    assert cancelled.wait(120)
    if not issubclass(raised, Exception):
        return  # which closes the client
    client.ping()  # it is as before, whatever is still told of that run
    assert supervisor.cancelled == [1]
    client.ping()
    assert client.kill("a").errors == ()
    assert len(supervisor.hellos) == 1


def interrupt_us() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_interrupts_the_run_and_brings_its_result(
    supervisor: FakeSupervisor, client: nsm.Client
) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        interrupt_us()
        exchange.cancelled.wait()
        return samples.run_result(interrupted=True, exit_code=130)

    supervisor.handlers |= {"run": run, "ping": answer()}
    result = client.run("x", env="python")
    assert (result.interrupted, result.exit_code) == (True, 130)
    assert supervisor.cancelled == [1]
    client.ping()  # and the client is usable
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_gives_up(supervisor: FakeSupervisor, client: nsm.Client) -> None:
    given_up = threading.Event()

    def run(exchange: Exchange) -> dict[str, Any]:
        interrupt_us()
        exchange.cancelled.wait()  # the first one has been told
        interrupt_us()
        given_up.wait()
        return samples.run_result()

    supervisor.handlers["run"] = run
    with pytest.raises(KeyboardInterrupt):
        client.run("x", env="python")
    given_up.set()
    with pytest.raises(DisconnectedError):
        client.ping()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_s_own_handler_is_left_alone(
    supervisor: FakeSupervisor, client: nsm.Client
) -> None:
    seen = threading.Event()
    before = signal.signal(signal.SIGINT, lambda _number, _frame: seen.set())

    def run(_: Exchange) -> dict[str, Any]:
        interrupt_us()
        assert seen.wait(120)
        return samples.run_result()

    supervisor.handlers["run"] = run
    try:
        assert not client.run("x", env="python").interrupted
    finally:
        signal.signal(signal.SIGINT, before)
    assert supervisor.cancelled == []


def test_ctrl_c_ends_following_and_brings_the_end(
    supervisor: FakeSupervisor, client: nsm.Client
) -> None:
    def follow(exchange: Exchange) -> dict[str, Any]:
        exchange.emit("session", samples.session_start())
        interrupt_us()
        exchange.cancelled.wait()
        return samples.log_end(state="running")

    supervisor.handlers |= {"logs": follow, "ping": answer()}
    end = client.logs("a", follow=True, on_entry=lambda _: None)
    assert end.state == "running"
    client.ping()


def test_threads_wait_for_each_other(supervisor: FakeSupervisor, client: nsm.Client) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "x" * 5000)
        return samples.run_result(stdout=exchange.args["code"])

    supervisor.handlers["run"] = run
    codes = [str(number) for number in range(200)]

    def answered(code: str) -> str:
        return client.run(code, env="python").stdout

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(answered, codes)) == codes


def test_a_callback_cannot_use_the_client_that_calls_it(
    supervisor: FakeSupervisor, client: nsm.Client
) -> None:
    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "x")
        return samples.run_result()

    def call(_stream: str, _text: str) -> None:
        client.run("y", env="python")

    supervisor.handlers["run"] = run
    with pytest.raises(BadRequestError, match="a callback"):
        client.run("x", env="python", on_output=call)


def test_another_thread_can_close_it(supervisor: FakeSupervisor) -> None:
    client = nsm.Client(connection=supervisor.connect(), project=None)

    def run(exchange: Exchange) -> dict[str, Any]:
        exchange.output("stdout", "x")
        exchange.cancelled.wait()
        return samples.run_result()

    def in_another_thread(*_: object) -> None:
        closing = threading.Thread(target=client.close)
        closing.start()
        closing.join()

    supervisor.handlers["run"] = run
    with pytest.raises(DisconnectedError):
        client.run("x", env="python", on_output=in_another_thread)
    assert "closed" in repr(client)


def test_the_package_gives_its_names_lazily() -> None:
    assert nsm.Client is blocking.Client
    for name in nsm.__all__:
        assert getattr(nsm, name) is not None
    assert dir(nsm) == sorted(nsm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Clint'"):
        getattr(nsm, "Clint")  # noqa: B009  # checkers know that it is not there


def test_arguments_that_there_are_not_are_refused(client: nsm.Client) -> None:
    """The client takes them as one mapping, which would take any name."""
    misspelt: Any = {"allow_build": True}
    for call in (
        partial(client.builds.add_packages, "science", pip=["numpy"]),
        partial(client.exec, "work", ["true"]),
        partial(client.run, "1", env="python"),
    ):
        with pytest.raises(TypeError, match="'allow_build'"):
            call(**misspelt)


# Files.


CONTENT = bytes(range(256)) * 2500  # three pieces


@pytest.fixture
def files(supervisor: FakeSupervisor) -> Iterator[FakeFiles]:
    """Files of a session, of which none may stay open."""
    files = FakeFiles()
    files.files["/workspace/x"] = CONTENT, 0o644
    supervisor.handlers |= files.handlers()
    yield files
    assert not files.open


def test_a_transfer_that_fails_leaves_no_file(files: FakeFiles, client: nsm.Client) -> None:
    files.full_bytes = PIECE_BYTES
    with pytest.raises(FileError, match="no space is left"):
        client.files("a").write_from("new", io.BytesIO(CONTENT).read)
    assert files.files.keys() == {"/workspace/x"}


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_that_is_larger_than_wanted_is_refused(
    files: FakeFiles, supervisor: FakeSupervisor, client: nsm.Client, announced: bool
) -> None:
    open_file = supervisor.handlers["file_open"]
    if not announced:  # it grows while it is read
        supervisor.handlers["file_open"] = lambda exchange: open_file(exchange) | {"size": 1}
    received = bytearray()
    with pytest.raises(FileTooLargeError, match="/workspace/x"):
        client.files("a").read_to("x", received.extend, max_bytes=PIECE_BYTES)
    assert len(received) <= PIECE_BYTES


async def test_a_cancelled_transfer_closes_its_file(
    files: FakeFiles, supervisor: FakeSupervisor
) -> None:
    stuck = threading.Event()

    def read(exchange: Exchange) -> dict[str, Any]:
        stuck.set()
        exchange.cancelled.wait()
        return {"data": b"", "eof": False}

    supervisor.handlers["file_read"] = read
    async with (
        nsm.AsyncClient(connection=supervisor.connect()) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.files("a").read_to, "x", bytearray().extend)
        await trio.to_thread.run_sync(stuck.wait)
        nursery.cancel_scope.cancel()
    assert files.opened == ["x"]


# Ctrl-C during a blocking call: the first one is a request, and none is lost.


def default_handler_is_back() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_nobody_was_told_of_comes_out_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        signal.raise_signal(signal.SIGINT)
    assert default_handler_is_back()


def test_other_signals_do_not_end_the_wait() -> None:
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: theirs.send(b"x") and None)
    try:
        with ours, theirs, Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert interrupts.wait(ours.fileno()) is False
            assert ours.recv(1) == b"x"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_descriptors_and_the_wakeup_descriptor_are_given_back() -> None:
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        open_before = set(os.listdir("/proc/self/fd"))
        with Interrupts():
            pass
        assert set(os.listdir("/proc/self/fd")) == open_before
        assert signal.set_wakeup_fd(before) == write_end
    finally:
        signal.set_wakeup_fd(before)
        os.close(read_end)
        os.close(write_end)


def test_interrupts_can_be_opened_again_with_another_descriptor() -> None:
    interrupts = Interrupts()
    for number in range(3):
        ours, theirs = socket.socketpair()
        with ours, theirs, interrupts:
            if number == 1:
                signal.raise_signal(signal.SIGINT)
                assert interrupts.wait(ours.fileno()) is True
            theirs.send(b"x")
            assert interrupts.wait(ours.fileno()) is False
        assert default_handler_is_back()
    interrupts.close()


def test_closed_while_open_its_descriptors_stay_until_the_end() -> None:
    """They are where Python writes when a signal comes, and another's number soon."""
    open_before = set(os.listdir("/proc/self/fd"))
    interrupts = Interrupts()
    with interrupts:
        interrupts.close()
        assert set(os.listdir("/proc/self/fd")) > open_before
    assert set(os.listdir("/proc/self/fd")) == open_before
