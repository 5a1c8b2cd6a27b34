"""HTTP/2 with a secret, between a scripted client and a scripted server that both have h2."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RequestReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from nsmd.model.host_rules import AllowList
from nsmd.model.secrets import parse_secret
from nsmd.network.secrets.host_rules import CheckedRequest, HostRules, RefusedRequestError
from nsmd.network.secrets.http2 import Http2
from nsmd.network.secrets.http2_end import (
    CONNECTION_WINDOW,
    FLOOD_FRAMES,
    STREAM_WINDOW,
    FloodError,
    FrameWatch,
)
from nsmd.network.secrets.vault import HeldSecret, Vault

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

HOST = "api.example.org"
VALUE, STAND_IN = "token-with-the-value", "token-in-its-place-1"

Headers = list[tuple[bytes, bytes]]
Kind = TypeVar("Kind", bound=Event)


def make_vault() -> Vault:
    secret = parse_secret("key", "file: /x", [HOST], ("env: KEY",))
    held = HeldSecret(secret=secret, stand_in=STAND_IN, value=VALUE, read_s=time.monotonic())
    return Vault([held])


class Http2Record:
    """`ConnectionTraffic` of a test."""

    def __init__(self) -> None:
        self.uses: list[tuple[str, Sequence[str]]] = []
        self.refusals: list[tuple[str, str]] = []

    async def used(self, request: CheckedRequest) -> None:
        self.uses.append((request.path, request.secrets))

    async def refused(self, refusal: RefusedRequestError, method: str, path: str) -> None:
        del method, path
        self.refusals.append((refusal.verdict, str(refusal)))

    def sent(self, size: int) -> None:
        """Count nothing."""

    received = sent


class ScriptedPeer:
    """The other end of one side."""

    def __init__(self, stream: trio.abc.Stream, *, client: bool) -> None:
        self.stream = stream
        self.connection = H2Connection(H2Configuration(client_side=client, header_encoding=None))
        self.connection.initiate_connection()
        self.watch = FrameWatch(preface=not client)
        self.got: list[Event] = []
        self.ended = False

    async def flush(self) -> None:
        if data := self.connection.data_to_send():
            await self.stream.send_all(data)

    async def read(self) -> None:
        """Take what comes next."""
        data = bytes(await self.stream.receive_some(65536))
        if data:
            self.got += self.connection.receive_data(self.watch.feed(data))
            with suppress(trio.BrokenResourceError):  # it has said its last
                await self.flush()
        self.ended = not data

    async def until(self, kind: type[Kind], stream_id: int | None = None) -> Kind:
        """Read until something of that kind comes."""
        while True:
            for event in self.got:
                if isinstance(event, kind) and (
                    stream_id is None or getattr(event, "stream_id", None) == stream_id
                ):
                    self.got.remove(event)
                    return event
            assert not self.ended, "it has ended"
            await self.read()

    async def read_to_end(self) -> None:
        while not self.ended:
            await self.read()

    async def ask(
        self, *more: tuple[bytes, bytes], end: bool = True, path: bytes = b"/x", host: str = HOST
    ) -> int:
        stream_id = self.connection.get_next_available_stream_id()
        head = [
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", host.encode()),
            (b":path", path),
        ]
        self.connection.send_headers(stream_id, [*head, *more], end_stream=end)
        await self.flush()
        return stream_id

    async def answer(self, stream_id: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
        self.connection.send_headers(stream_id, [(b":status", b"200"), *more])
        self.connection.send_data(stream_id, body, end_stream=True)
        await self.flush()

    async def send_frames(self, *frames: Frame) -> None:
        await self.stream.send_all(b"".join(frame.serialize() for frame in frames))


@asynccontextmanager
async def both_sides(
    *requests: str, record: Http2Record | None = None, vault: Vault | None = None
) -> AsyncGenerator[tuple[ScriptedPeer, ScriptedPeer, Http2Record]]:
    """A client and a server with `Http2` between them, which ends with the block."""
    client, our_client = memory_stream_pair()
    server, our_server = memory_stream_pair()
    record = record or Http2Record()
    allowed = AllowList.of(requests).requests_to(HOST, 443)
    rules = HostRules(HOST, 443, vault or make_vault(), allowed)
    ends = (ScriptedPeer(client, client=True), ScriptedPeer(server, client=False))

    async def carry() -> None:
        await Http2(our_client, our_server, rules, record).run()
        await our_client.aclose()
        await our_server.aclose()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry)
            for end in ends:
                await end.flush()
            yield (*ends, record)
            await client.aclose()


async def test_a_value_goes_out_and_does_not_come_back() -> None:
    async with both_sides() as (client, server, record):
        stream = await client.ask((b"authorization", f"Bearer {STAND_IN}".encode()))
        asked = await server.until(RequestReceived)
        headers = dict(asked.headers)
        assert headers[b"authorization"] == f"Bearer {VALUE}".encode()
        assert headers[b":authority"] == HOST.encode()
        assert headers[b"accept-encoding"] == b"gzip"
        assert record.uses == [("/x", ("key",))]
        connection = server.connection
        connection.send_headers(
            asked.stream_id, [(b":status", b"200"), (b"x-echo", VALUE.encode())]
        )
        for part in (VALUE[:7], VALUE[7:]):
            connection.send_data(asked.stream_id, part.encode())
        connection.send_headers(asked.stream_id, [(b"x-trailer", VALUE.encode())], end_stream=True)
        await server.flush()
        answer = await client.until(ResponseReceived, stream)
        assert dict(answer.headers)[b"x-echo"] == STAND_IN.encode()
        trailers = await client.until(TrailersReceived, stream)
        assert dict(trailers.headers) == {b"x-trailer": STAND_IN.encode()}
        body = b"".join(event.data for event in client.got if isinstance(event, DataReceived))
        assert body == STAND_IN.encode()


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        ({"host": "other.example.org"}, b"400"),
        ({"host": f"{HOST}:444"}, b"400"),
        ({"path": f"/?{STAND_IN}".encode()}, b"403"),
        ({"path": b"/a b"}, b"400"),
        ({"path": b"https://other.example.org/"}, b"400"),
        ({"path": b"*"}, b"400"),
        ({"path": b"/\xff"}, b"400"),
    ],
)
async def test_requests_that_no_server_gets(ask: dict[str, str], status: bytes) -> None:
    async with both_sides() as (client, server, record):
        refused = await client.ask(**ask)  # type: ignore[arg-type]
        answer = await client.until(ResponseReceived, refused)
        assert dict(answer.headers)[b":status"] == status
        good = await client.ask()
        await server.answer((await server.until(RequestReceived)).stream_id, b"ok")
        await client.until(ResponseReceived, good)
        assert len(record.refusals) == 1
        assert not [event for event in server.got if isinstance(event, RequestReceived)]


async def test_a_secret_that_is_revoked_while_its_request_waits_for_a_stream() -> None:
    vault = make_vault()
    async with both_sides(vault=vault) as (client, server, record):
        server.connection.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        await server.flush()
        first = await client.ask()
        asked = await server.until(RequestReceived)
        waits = await client.ask((b"authorization", f"Bearer {STAND_IN}".encode()))
        await wait_all_tasks_blocked()
        assert [secrets for _, secrets in record.uses if secrets] == [("key",)]
        vault.revoke("key")
        await server.answer(asked.stream_id, b"ok")
        await client.until(ResponseReceived, first)
        refused = await client.until(ResponseReceived, waits)
        assert dict(refused.headers)[b":status"] == b"403"
        assert not [event for event in server.got if isinstance(event, RequestReceived)]


async def test_rules_for_requests() -> None:
    async with both_sides(f"POST https://{HOST}/x/*") as (client, server, record):
        for path in (b"/y", b"/x/../y", b"/x/%2e%2e/y", b"//x/y", b"/x/\\y"):
            refused = await client.ask(path=path)
            answer = await client.until(ResponseReceived, refused)
            assert dict(answer.headers)[b":status"] == b"403"
        await client.ask(path=b"/x/y")
        asked = await server.until(RequestReceived)
        assert dict(asked.headers)[b":path"] == b"/x/y"
        assert {verdict for verdict, _ in record.refusals} == {"rule"}


@pytest.mark.parametrize(
    ("trailer", "status", "verdict"),
    [
        ((b"x-key", STAND_IN.encode()), b"403", "stand-in"),
        ((b"x-http-method-override", b"DELETE"), b"403", "rule"),
        ((b"host", b"evil.example.org"), b"400", "bad-request"),
        ((b"x(key)", b"y"), b"400", "bad-request"),
    ],
)
async def test_trailers_that_are_refused(
    trailer: tuple[bytes, bytes], status: bytes, verdict: str
) -> None:
    """The server gets neither them nor the end of the request, and other requests go on."""
    async with both_sides(f"POST https://{HOST}/x") as (client, server, record):
        stream = await client.ask(end=False)
        asked = await server.until(RequestReceived)
        client.connection.send_data(stream, b"body")
        await client.flush()
        await server.until(DataReceived)
        block = HeadersFrame(stream, client.connection.encoder.encode([trailer]))
        block.flags |= {"END_HEADERS", "END_STREAM"}
        await client.send_frames(block)
        reset = await server.until(StreamReset)
        assert (reset.stream_id, reset.error_code) == (asked.stream_id, ErrorCodes.CANCEL)
        assert not [event for event in server.got if isinstance(event, TrailersReceived)]
        answer = await client.until(ResponseReceived, stream)
        assert dict(answer.headers)[b":status"] == status
        assert [each for each, _ in record.refusals] == [verdict]
        good = await client.ask()
        await server.answer((await server.until(RequestReceived)).stream_id, b"ok")
        await client.until(ResponseReceived, good)


async def test_other_trailers_pass() -> None:
    async with both_sides() as (client, server, record):
        stream = await client.ask(end=False)
        await server.until(RequestReceived)
        client.connection.send_headers(stream, [(b"x-checksum", b"abc")], end_stream=True)
        await client.flush()
        trailers = await server.until(TrailersReceived)
        assert dict(trailers.headers) == {b"x-checksum": b"abc"}
        assert record.refusals == []


async def test_a_body_that_the_client_does_not_read_stops_the_server_not_other_streams() -> None:
    async with both_sides() as (client, server, _):
        stuck = await client.ask()
        asked = (await server.until(RequestReceived)).stream_id
        server.connection.send_headers(asked, [(b":status", b"200")])
        sent = 0
        while True:  # the client acknowledges nothing
            while size := min(16384, server.connection.local_flow_control_window(asked)):
                server.connection.send_data(asked, b"x" * size)
                sent += size
            await server.flush()
            if sent >= STREAM_WINDOW:
                break
            await server.until(WindowUpdated)
        assert sent < CONNECTION_WINDOW
        other = await client.ask()
        reply = (await server.until(RequestReceived)).stream_id
        server.connection.send_headers(reply, [(b":status", b"204")], end_stream=True)
        await server.flush()
        await client.until(ResponseReceived, other)
        got = sum(
            event.flow_controlled_length
            for event in client.got
            if isinstance(event, DataReceived) and event.stream_id == stuck
        )
        assert got == 65535


async def test_an_upload_is_taken_as_fast_as_the_server_reads() -> None:
    async with both_sides() as (client, server, _):
        await client.ask(end=False)
        stream = (await server.until(RequestReceived)).stream_id
        while not client.connection.remote_flow_control_window(1):
            await client.read()
        got = sent = 0
        size = 3_000_000
        while sent < size:
            room = min(16384, size - sent, client.connection.local_flow_control_window(1))
            if room:
                client.connection.send_data(1, b"x" * room, end_stream=sent + room == size)
                sent += room
                await client.flush()
                continue
            assert sent - got <= STREAM_WINDOW + 65535
            event = await server.until(DataReceived)
            got += len(event.data)
            server.connection.acknowledge_received_data(event.flow_controlled_length, stream)
            await server.flush()
            if not [event for event in server.got if isinstance(event, DataReceived)]:
                await client.until(WindowUpdated)
        while got < size:
            event = await server.until(DataReceived)
            got += len(event.data)
            server.connection.acknowledge_received_data(event.flow_controlled_length, stream)
            await server.flush()
        await server.answer(stream, b"ok")
        await client.until(ResponseReceived)


async def test_a_body_that_is_there_before_the_request_has_gone_out() -> None:
    async with both_sides() as (client, server, _):
        stream = client.connection.get_next_available_stream_id()
        head = [(b":method", b"PUT"), (b":scheme", b"https"), (b":path", b"/")]
        client.connection.send_headers(stream, [*head, (b":authority", HOST.encode())])
        client.connection.send_data(stream, b"body", end_stream=True)
        await client.flush()
        assert (await server.until(DataReceived)).data == b"body"


async def test_a_request_that_is_taken_back_ends_at_the_server() -> None:
    async with both_sides() as (client, server, _):
        stream = await client.ask(end=False)
        asked = (await server.until(RequestReceived)).stream_id
        client.connection.reset_stream(stream, ErrorCodes.CANCEL)
        await client.flush()
        assert (await server.until(StreamReset)).stream_id == asked


async def test_a_server_resets_a_stream() -> None:
    async with both_sides() as (client, server, _):
        stream = await client.ask()
        asked = (await server.until(RequestReceived)).stream_id
        server.connection.reset_stream(asked, ErrorCodes.HTTP_1_1_REQUIRED)
        await server.flush()
        reset = await client.until(StreamReset)
        assert (reset.stream_id, reset.error_code) == (stream, ErrorCodes.HTTP_1_1_REQUIRED)


async def test_a_server_says_goodbye() -> None:
    """Requests that it has taken get responses, and the others can be sent again."""
    async with both_sides() as (client, server, _):
        first = await client.ask()
        taken = (await server.until(RequestReceived)).stream_id
        second = await client.ask()
        await server.until(RequestReceived)
        await server.send_frames(GoAwayFrame(0, last_stream_id=taken))
        reset = await client.until(StreamReset)
        assert (reset.stream_id, reset.error_code) == (second, ErrorCodes.REFUSED_STREAM)
        assert client.watch.last_stream == second
        await server.answer(taken, b"ok")
        await client.read_to_end()
        (body,) = (event for event in client.got if isinstance(event, DataReceived))
        assert (body.stream_id, body.data) == (first, b"ok")


async def test_a_server_that_ends_in_the_middle() -> None:
    async with both_sides() as (client, server, _):
        begun = await client.ask()
        asked = (await server.until(RequestReceived)).stream_id
        waiting = await client.ask()
        await server.until(RequestReceived)
        server.connection.send_headers(asked, [(b":status", b"200")])
        await server.flush()
        await client.until(ResponseReceived, begun)
        await server.stream.aclose()
        await client.read_to_end()
        reset = await client.until(StreamReset, begun)
        assert reset.error_code == ErrorCodes.INTERNAL_ERROR
        answer = await client.until(ResponseReceived, waiting)
        assert dict(answer.headers)[b":status"] == b"502"


async def test_a_coding_that_cannot_be_searched() -> None:
    async with both_sides() as (client, server, _):
        stream = await client.ask()
        asked = (await server.until(RequestReceived)).stream_id
        await server.answer(asked, b"x", (b"content-encoding", b"br"))
        answer = await client.until(ResponseReceived, stream)
        assert dict(answer.headers)[b":status"] == b"502"


def _pings() -> Iterator[Frame]:
    yield PingFrame(0, opaque_data=b"12345678")


def _settings() -> Iterator[Frame]:
    yield SettingsFrame(0)


def _empty_data() -> Iterator[Frame]:
    yield DataFrame(1)


def _goaways() -> Iterator[Frame]:
    yield GoAwayFrame(0, last_stream_id=1)


async def _flood(
    peer: ScriptedPeer, frames: Callable[[], Iterator[Frame]], record: Http2Record
) -> None:
    piece = list(frames()) * 50
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            try:
                for _ in range(2 * FLOOD_FRAMES // 50):
                    await peer.send_frames(*piece)
            except trio.BrokenResourceError:
                pass

        nursery.start_soon(send)
        while bytes(await peer.stream.receive_some(65536)):
            pass
    assert [verdict for verdict, _ in record.refusals] == ["flood"]


@pytest.mark.parametrize("frames", [_pings, _settings, _empty_data, _goaways])
async def test_floods_end_the_connection(frames: Callable[[], Iterator[Frame]]) -> None:
    async with both_sides() as (client, server, record):
        await client.ask(end=False)
        await server.until(RequestReceived)
        await _flood(client, frames, record)


async def test_a_server_that_floods_with_goodbyes() -> None:
    """The client is told, by the answer to its request and by the end of the connection."""
    async with both_sides() as (client, server, record):
        stream = await client.ask()
        await server.until(RequestReceived)
        await _flood(server, _goaways, record)
        answer = await client.until(ResponseReceived, stream)
        assert dict(answer.headers)[b":status"] == b"502"
        await client.read_to_end()


@pytest.mark.parametrize("floods", ["client", "server"])
async def test_a_goodbye_that_is_too_long_ends_the_connection(floods: str) -> None:
    async with both_sides() as (client, server, record):
        await client.ask()
        await server.until(RequestReceived)
        peer = client if floods == "client" else server
        await peer.stream.send_all(GoAwayFrame(0, 1, 0, bytes(16384 - 7)).serialize())
        while bytes(await peer.stream.receive_some(65536)):
            pass
        assert [verdict for verdict, _ in record.refusals] == ["flood"]


class SlowRecord(Http2Record):
    """Has nobody who takes what it is told, until that is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.go_on = trio.Event(), trio.Event()

    async def refused(self, refusal: RefusedRequestError, method: str, path: str) -> None:
        self.waits.set()
        await self.go_on.wait()
        await super().refused(refusal, method, path)


async def test_a_request_after_a_server_s_flood_gets_an_end_while_that_is_told() -> None:
    """The others get theirs, too: nothing of it ends the whole connection at once."""
    record = SlowRecord()
    async with both_sides(record=record) as (client, server, _):
        first = await client.ask()
        await server.until(RequestReceived)
        await server.send_frames(*list(_pings()) * (FLOOD_FRAMES + 1))
        await record.waits.wait()
        late = await client.ask()
        reset = await client.until(StreamReset, late)
        assert reset.error_code == ErrorCodes.CANCEL
        record.go_on.set()
        answer = await client.until(ResponseReceived, first)
        assert dict(answer.headers)[b":status"] == b"502"


async def test_rapid_resets_end_the_connection() -> None:
    async with both_sides() as (client, server, record):
        encoder, asked = Encoder(), 0
        head = [(":method", "GET"), (":scheme", "https"), (":authority", HOST), (":path", "/")]

        async def serve() -> None:
            with suppress(trio.BrokenResourceError):
                await server.read_to_end()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)

            async def send() -> None:
                nonlocal asked
                try:
                    for stream in range(1, 4 * FLOOD_FRAMES, 2):
                        request = HeadersFrame(stream, encoder.encode(head))
                        request.flags |= {"END_HEADERS", "END_STREAM"}
                        await client.send_frames(request, RstStreamFrame(stream, error_code=8))
                        asked += 1
                except trio.BrokenResourceError:
                    pass

            nursery.start_soon(send)
            while bytes(await client.stream.receive_some(65536)):
                pass
        assert asked < FLOOD_FRAMES // 2
        assert [verdict for verdict, _ in record.refusals] == ["flood"]


async def test_headers_without_end_are_refused() -> None:
    async with both_sides() as (client, _, record):
        await client.send_frames(
            HeadersFrame(1, b"\x82"), *(ContinuationFrame(1, b"\x82") for _ in range(100))
        )
        while bytes(await client.stream.receive_some(65536)):
            pass
        assert [verdict for verdict, _ in record.refusals] == ["bad-request"]


async def test_the_watch_takes_a_goodbye_in_any_pieces() -> None:
    frames = [PingFrame(0, opaque_data=b"12345678"), DataFrame(1, b"abc")]
    goodbye = GoAwayFrame(0, last_stream_id=5, additional_data=b"so long")
    data = b"".join(each.serialize() for each in (frames[0], goodbye, frames[1]))
    for size in range(1, len(data) + 1):
        watch = FrameWatch(preface=False)
        got = b"".join(watch.feed(data[at : at + size]) for at in range(0, len(data), size))
        assert got == b"".join(each.serialize() for each in frames)
        assert watch.last_stream == 5


async def test_the_watch_forgets_with_time(autojump_clock: trio.abc.Clock) -> None:
    watch = FrameWatch(preface=False)
    ping = PingFrame(0, opaque_data=b"12345678").serialize()
    for _ in range(3):
        watch.feed(ping * FLOOD_FRAMES)
        await trio.sleep(11)
    watch.feed(ping * FLOOD_FRAMES)
    with pytest.raises(FloodError):
        watch.feed(ping)
