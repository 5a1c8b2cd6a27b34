"""Files over the control socket, to agents that are honest and to some that are not."""

from __future__ import annotations

import base64
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from control_bench import MAX_FILE_BYTES, Bench, Peer, bench
from fakes import CAPABILITIES
from nsm.wire.errors import (
    BadRequestError,
    FileError,
    FileTooLargeError,
    NsmError,
    SessionEndedError,
    UnknownSessionError,
)
from nsm.wire.messages import Cancel
from nsm.wire.operation import PIECE_BYTES
from nsmd.sessions.files import ANSWER_TIMEOUT_S
from virtual_time import virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fakes import FakeAgent, FakeJail

pytestmark = virtual_time

Frame = dict[str, Any]


class FileAgent:
    """An agent with files in memory. `lie` may change each of its answers about files."""

    def __init__(self, lie: Callable[[Frame], Frame] = lambda frame: frame) -> None:
        self.files: dict[str, bytes] = {}
        self.open: dict[str, tuple[str, str, bytearray]] = {}
        self.requests: list[Mapping[str, Any]] = []
        self.free_bytes: int | None = 10_000_000
        self.silent = trio.Event()  # is set: requests about files have no answer
        self._lie = lie

    async def __call__(self, agent: FakeAgent, jail: FakeJail) -> None:
        del jail
        await agent.be_ready([*CAPABILITIES, "files.direct"])
        while True:
            frame = await agent.receive()
            match frame["type"]:
                case "execute":
                    await agent.answer(frame, stdout=frame["code"])
                case "status":
                    await agent.send({"type": "status", "running": None, "background": 0})
                case _:
                    self.requests.append(frame)
                    if not self.silent.is_set():
                        await agent.send(self._lie({"id": frame["id"], **self._answer(frame)}))

    def _answer(self, frame: Mapping[str, Any]) -> Frame:
        path, mode, data = self.open.get(frame["id"], ("", "", bytearray()))
        match frame["type"]:
            case "file_open":
                path, mode = f"/workspace/{frame['path']}", frame["mode"]
                if mode == "read" and path not in self.files:
                    return {"type": "file_error", "message": f"{path}: none", "code": "ENOENT"}
                data = bytearray(self.files[path] if mode == "read" else b"")
                self.open[frame["id"]] = path, mode, data
                size = len(data)
                answer = {"type": "file", "path": path, "size": size, "permissions": 0o644}
                return answer | ({} if mode == "read" else {"free_bytes": self.free_bytes})
            case "file_entries" | "file_mkdir":
                told: Frame = {"path": "/workspace/d", "free_bytes": self.free_bytes}
                if frame["type"] == "file_mkdir":
                    return {"type": "file_directory", **told}
                return {"type": "file_entries", **told, "entries": [["a", "file", 3, 0o644, 0]]}
            case _ if not path:
                return {"type": "file_error", "message": "no file is open under this id"}
            case "file_read":
                piece = bytes(data[: frame["bytes"]])
                del data[: frame["bytes"]]
                text = base64.b64encode(piece).decode()
                return {"type": "file_data", "data": text, "eof": not data}
            case "file_write":
                data += base64.b64decode(frame["data"])
                size = len(data)
                return {"type": "file", "path": path, "size": size, "permissions": 0o644}
            case _:
                del self.open[frame["id"]]
                if mode == "write" and frame["keep"]:
                    self.files[path] = bytes(data)
                size = len(data) if mode == "write" else len(self.files[path]) - len(data)
                return {"type": "file_closed", "path": path, "size": size}


async def client_of(it: Bench) -> Peer:
    """A client, and a session `a` with files."""
    peer = await it.connect()
    await peer.call("run", env="python", code="x", session="a")
    return peer


async def open_file(peer: Peer, path: str, mode: str, **args: Any) -> int:
    answer = await peer.call("file_open", target="a", path=path, mode=mode, **args)
    handle = answer["file"]
    assert isinstance(handle, int)
    return handle


async def test_directories_are_listed_and_made() -> None:
    agent = FileAgent()
    async with bench(agent) as it:
        peer = await client_of(it)
        made = {"path": "/workspace/d", "free_bytes": 10_000_000}
        assert await peer.call("file_mkdir", target="a", path="d") == made
        listed = await peer.call("file_entries", target="a", path="d")
        entry = {"name": "a", "kind": "file", "size": 3, "permissions": 0o644, "modified_at": 0.0}
        assert listed == {**made, "entries": [entry], "more": False}
        with pytest.raises(BadRequestError):
            await peer.call("file_entries", target="a", path="")
    agent = FileAgent(lambda frame: frame | {"entries": [["../x", "file", 3, 0o644, 0]]})
    async with bench(agent) as it:
        peer = await client_of(it)
        with pytest.raises(SessionEndedError):
            await peer.call("file_entries", target="a", path="d")


async def test_a_file_that_cannot_fit_is_refused_at_once() -> None:
    agent = FileAgent()
    async with bench(agent) as it:
        peer = await client_of(it)
        with pytest.raises(FileTooLargeError):
            await open_file(peer, "f", "write", size=2**40)
        await trio.testing.wait_all_tasks_blocked()
        assert agent.requests == []
        agent.free_bytes = 100
        with pytest.raises(FileError, match="101 bytes do not fit, 100 are free there") as caught:
            await open_file(peer, "f", "write", size=101)
        assert caught.value.data["errno"] == "ENOSPC"
        await trio.testing.wait_all_tasks_blocked()
        assert (agent.open, agent.files) == ({}, {})
        await open_file(peer, "f", "write", size=100)
        agent.free_bytes = None  # not known
        await open_file(peer, "f", "write", size=101)


async def test_a_file_of_unknown_size_is_bounded() -> None:
    agent = FileAgent()
    agent.files = {"/workspace/large": bytes(MAX_FILE_BYTES + 1)}
    async with bench(agent) as it:
        peer = await client_of(it)
        with pytest.raises(FileTooLargeError, match="max_file_mb"):
            await open_file(peer, "large", "read")
        file = await open_file(peer, "f", "write")
        for _ in range(MAX_FILE_BYTES // PIECE_BYTES):
            await peer.call("file_write", file=file, data=bytes(PIECE_BYTES))
        with pytest.raises(FileTooLargeError, match=str(MAX_FILE_BYTES)):
            await peer.call("file_write", file=file, data=b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert (agent.open, [*agent.files]) == ({}, ["/workspace/large"])


async def test_after_an_error_the_transfer_is_over() -> None:
    def full(frame: Frame) -> Frame:
        if frame["type"] == "file" and frame["size"]:
            return {"type": "file_error", "id": frame["id"], "message": "no space is left"}
        return frame

    async with bench(FileAgent(full)) as it:
        peer = await client_of(it)
        file = await open_file(peer, "f", "write")
        with pytest.raises(FileError, match="no space"):
            await peer.call("file_write", file=file, data=b"x")
        with pytest.raises(FileError, match=f"No file {file} is open"):
            await peer.call("file_close", file=file, keep=True)


async def test_a_file_belongs_to_its_connection() -> None:
    agent = FileAgent()
    async with bench(agent) as it:
        peer, other = await client_of(it), await it.connect()
        file = await open_file(peer, "f", "write")
        with pytest.raises(FileError, match="No file"):
            await other.call("file_write", file=file, data=b"x")
        await peer.call("file_write", file=file, data=b"half")
        await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert agent.open == {}
        assert agent.files == {}


async def test_a_client_that_vanishes_while_a_file_opens() -> None:
    agent = FileAgent()
    async with bench(agent) as it:
        peer = await client_of(it)
        agent.silent.set()
        await peer.start("file_open", target="a", path="f", mode="write")
        await trio.testing.wait_all_tasks_blocked()
        await peer.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        opened, closed = agent.requests
        assert (closed["type"], closed["id"], closed["keep"]) == ("file_close", opened["id"], False)


async def test_opening_can_be_cancelled() -> None:
    agent = FileAgent()
    async with bench(agent) as it:
        peer = await client_of(it)
        agent.silent.set()
        opening = await peer.start("file_open", target="a", path="f", mode="write")
        await trio.testing.wait_all_tasks_blocked()
        await peer.send(Cancel(opening))
        with pytest.raises(NsmError, match="cancelled"):
            await peer.answer(opening)
        await trio.testing.wait_all_tasks_blocked()
        assert agent.requests[-1]["type"] == "file_close"


async def test_a_session_that_ends_in_the_middle() -> None:
    agent = FileAgent()
    async with bench(agent) as it:
        peer = await client_of(it)
        file = await open_file(peer, "f", "write")
        agent.silent.set()
        writing = await peer.start("file_write", file=file, data=b"x")
        await trio.testing.wait_all_tasks_blocked()
        it.run_service.find("a").end("test")
        with pytest.raises(SessionEndedError, match="test"):
            await peer.answer(writing)
        with pytest.raises(FileError):
            await peer.call("file_close", file=file, keep=True)


async def test_an_agent_that_does_not_answer() -> None:
    agent = FileAgent()
    async with bench(agent) as it:
        peer = await client_of(it)
        file = await open_file(peer, "f", "write")
        agent.silent.set()
        start_s = trio.current_time()
        with pytest.raises(FileError, match="not answered within 30 s"):
            await peer.call("file_write", file=file, data=b"x")
        assert trio.current_time() - start_s == pytest.approx(ANSWER_TIMEOUT_S)
        await trio.testing.wait_all_tasks_blocked()
        assert agent.requests[-1]["type"] == "file_close"
        # Only this transfer is over.
        assert (await peer.call("run_in", target="a", code="fine"))["stdout"] == "fine"


async def test_a_transfer_is_activity() -> None:
    agent = FileAgent()
    async with bench(agent, idle_timeout_s=100) as it:
        peer = await client_of(it)
        file = await open_file(peer, "f", "write")
        for _ in range(5):
            await trio.sleep(90)
            await peer.call("file_write", file=file, data=b"x")
        session = it.run_service.find("a")
        start_s = trio.current_time()
        await session.wait_ended()
        assert session.end_reason == "idle timeout"
        assert trio.current_time() - start_s == pytest.approx(100, abs=1)


async def test_activity_overtakes_the_question_for_it() -> None:
    """At its idle limit a session asks its agent; what comes meanwhile makes that out of date."""
    answer = trio.Event()

    async def slow_to_tell(agent: FakeAgent, jail: FakeJail) -> None:
        await agent.be_ready()
        await agent.answer(await agent.receive())
        assert (await agent.receive())["type"] == "status"
        frame = await agent.receive()
        checked = {"type": "checked", "id": frame["id"], "status": "complete", "indent": ""}
        await agent.send(checked)
        await answer.wait()
        await agent.send({"type": "status", "running": None, "background": 0})
        await agent.receive()

    async with bench(slow_to_tell, idle_timeout_s=100) as it:
        peer = await client_of(it)
        await trio.sleep(101)
        await peer.call("check", target="a", code="x")
        answer.set()
        await trio.sleep(50)
        assert it.run_service.find("a").state.value == "idle"


# Lies


def more_than_asked(frame: Frame) -> Frame:
    if frame["type"] == "file_data":
        return frame | {"data": base64.b64encode(bytes(200_000)).decode(), "eof": False}
    return frame


def no_end(frame: Frame) -> Frame:
    if frame["type"] == "file_data":
        return frame | {"data": "", "eof": False}
    return frame


def miscounted(frame: Frame) -> Frame:
    return frame | {"size": 77} if frame["type"] in ("file", "file_closed") else frame


def something_else(frame: Frame) -> Frame:
    return {"type": "checked", "id": frame["id"], "status": "complete", "indent": ""}


def no_base64(frame: Frame) -> Frame:
    return frame | {"data": "?"} if frame["type"] == "file_data" else frame


async def read_all(peer: Peer) -> None:
    file = await open_file(peer, "f", "read")
    while not (await peer.call("file_read", file=file, bytes=1000))["eof"]:
        pass
    await peer.call("file_close", file=file, keep=True)


async def write_all(peer: Peer) -> None:
    file = await open_file(peer, "g", "write")
    await peer.call("file_write", file=file, data=b"x")
    await peer.call("file_close", file=file, keep=True)


@pytest.mark.parametrize(
    ("lie", "transfer"),
    [
        (more_than_asked, read_all),
        (no_end, read_all),
        (miscounted, read_all),
        (miscounted, write_all),
        (something_else, read_all),
        (something_else, write_all),
        (no_base64, read_all),
    ],
)
async def test_a_lying_agent_loses_its_own_session(
    lie: Callable[[Frame], Frame], transfer: Any
) -> None:
    agent = FileAgent(lie)
    agent.files = {"/workspace/f": bytes(5000)}
    async with bench(agent) as it:
        peer = await client_of(it)
        await peer.call("run", env="bash", code="x", session="b")
        with pytest.raises(SessionEndedError, match="broke the protocol"):
            await transfer(peer)
        await trio.testing.wait_all_tasks_blocked()
        assert [session.name for session in it.run_service.live_sessions()] == ["b"]
        assert await peer.call("ping") == {}


def _socket_end() -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


@pytest.mark.parametrize(
    ("mode", "make"),
    [
        ("read", lambda: os.open("/", os.O_RDONLY)),
        ("read", _socket_end),
        ("read", lambda: os.open("/proc/self/status", os.O_RDONLY)),
        ("read", lambda: os.open("/dev/null", os.O_RDONLY)),
        ("read", lambda: os.open(__file__, os.O_PATH)),
        ("read", lambda: os.memfd_create("both ways")),
        ("write", lambda: os.memfd_create("both ways")),
        ("write", lambda: os.open(__file__, os.O_RDONLY)),
        ("write", lambda: os.open("/proc/self/comm", os.O_WRONLY)),
        ("archive", lambda: os.open(__file__, os.O_RDONLY)),
        ("unpack", lambda: os.open("/dev/null", os.O_WRONLY)),
    ],
    ids=[
        *("directory", "socket", "proc", "device", "path only", "read and write"),
        *("write and read", "read only", "proc to write", "archive no pipe", "unpack no pipe"),
    ],
)
async def test_an_agent_that_passes_a_wrong_descriptor_loses_its_own_session(
    mode: str, make: Callable[[], int]
) -> None:
    async def hostile(agent: FakeAgent, jail: FakeJail) -> None:
        del jail
        await agent.be_ready([*CAPABILITIES, "files.direct"])
        while True:
            frame = await agent.receive()
            if frame["type"] == "execute":
                await agent.answer(frame)
                continue
            told = {"type": "file", "id": frame["id"], "path": "/workspace/f", "size": 1}
            descriptor = make()
            try:
                await agent.send({**told, "permissions": 0o644, "descriptor": True}, descriptor)
            finally:
                os.close(descriptor)

    async with bench(hostile) as it:
        peer = await client_of(it)
        await peer.call("run", env="bash", code="x", session="b")
        session = it.run_service.find("a")
        with pytest.raises(SessionEndedError, match="broke the protocol"):
            await peer.call("file_open", target="a", path="f", mode=mode, descriptor=True)
        await session.wait_ended()
        assert [session.name for session in it.run_service.live_sessions()] == ["b"]
        assert await peer.call("ping") == {}


# What is refused


@pytest.mark.parametrize(
    "wrong", [{"bytes": PIECE_BYTES + 1}, {}, {"data": bytes(PIECE_BYTES + 1)}]
)
async def test_wrong_requests_leave_the_transfer_as_it_is(wrong: dict[str, Any]) -> None:
    agent = FileAgent()
    async with bench(agent) as it:
        peer = await client_of(it)
        file = await open_file(peer, "f", "write")
        for op in ("file_read", "file_write"):
            for number in (file, file + 99):
                with pytest.raises(NsmError):
                    await peer.call(op, file=number, **wrong)
        with pytest.raises(UnknownSessionError):
            await peer.call("file_open", target="nobody", path="x", mode="read")
        await peer.call("file_write", file=file, data=b"x")
        await peer.call("file_close", file=file, keep=True)
        assert agent.files == {"/workspace/f": b"x"}
