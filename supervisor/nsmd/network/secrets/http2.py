"""HTTP/2 of one connection: requests to the server with values, responses back without.

Both sides speak HTTP/2, and neither sees a frame of the other: h2 reads each side strictly, and
what was understood is written again. A stream of the client becomes one to the server. Bytes are
acknowledged once they were passed on, so a slow side slows down the other one.
"""

from __future__ import annotations

import math
import re

import trio
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    RequestReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from hpack.struct import NeverIndexedHeaderTuple

from nsmd.network.secrets.host_rules import (
    BodyFilter,
    CheckedRequest,
    Headers,
    HostRules,
    RefusedRequestError,
    RefusedResponseError,
    bad_request,
    shown_path,
)
from nsmd.network.secrets.http1 import LINGER_S, PIECE_BYTES, ConnectionTraffic
from nsmd.network.secrets.http2_end import MAX_STREAMS, RESET_COSTS, FloodError, Http2End

MAX_EXCHANGES = 2 * MAX_STREAMS
"""Requests at once, with those that the client has taken back and that still ask for a value."""

CLOSE_S = 1.0
"""Time for the peers to read the last frames."""

_VISIBLE = re.compile(rb"[!-~]+")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"[^\0\r\n]*")


class _Exchange:
    """One request and its response.

    Attributes:
        client_id, server_id: its streams.
        has_no_body: the request is its headers.
        asked: the whole request has gone to the server.
        client_ended, server_ended: that side sends no more on its stream.
        begun, answered: the client has the head of the response, or all of it.
        refusal: why the server does not get the end of the request.
        code: why its stream to the client ends early.
        unread: bytes of each side that were not acknowledged.
    """

    def __init__(self, client_id: int) -> None:
        self.client_id = client_id
        self.server_id: int | None = None
        self.scope = trio.CancelScope()
        self.has_no_body = self.asked = self.client_ended = self.server_ended = False
        self.begun = self.answered = self.taken_back = False
        self.code: int = ErrorCodes.CANCEL
        self.refusal: RefusedRequestError | None = None
        self.unread = {"client": 0, "server": 0}
        self.send_request, self.request = trio.open_memory_channel[Event](math.inf)
        self.send_response, self.response = trio.open_memory_channel[Event | None](math.inf)
        self.sent = trio.Event()


class Http2:
    """Both sides of a connection.

    Args:
        client, server: after TLS.
    """

    def __init__(
        self,
        client: trio.abc.Stream,
        server: trio.abc.Stream,
        rules: HostRules,
        traffic: ConnectionTraffic,
    ) -> None:
        self._client = Http2End(client, to_client=True)
        self._server = Http2End(server, to_client=False)
        self._rules = rules
        self._traffic = traffic
        self._by_client: dict[int, _Exchange] = {}
        self._by_server: dict[int, _Exchange] = {}
        self._last_stream = 0
        self._leaving = False
        self._lost = ""
        self._over = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Pass on requests until one side ends."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._write, self._client)
            nursery.start_soon(self._write, self._server)
            nursery.start_soon(self._read_client)
            nursery.start_soon(self._read_server)
            await self._over.wait()
            with trio.move_on_after(CLOSE_S):
                await self._client.drain()
                await self._server.drain()
            nursery.cancel_scope.cancel()

    async def _write(self, end: Http2End) -> None:
        try:
            await end.write()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._over.set()

    # What the client sends.

    async def _read_client(self) -> None:
        try:
            while data := await self._client.receive(PIECE_BYTES):
                self._traffic.sent(0)
                for event in self._client.events(data):
                    self._take_from_client(event)
                if self._client.watch.last_stream is not None:
                    self._leave()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except FloodError as error:
            self._client.end(ErrorCodes.ENHANCE_YOUR_CALM)
            await self._tell("flood", f"the client floods this connection of HTTP/2: {error}")
        except ProtocolError:
            await self._tell("bad-request", "the client does not speak valid HTTP/2")
        self._over.set()

    async def _tell(self, verdict: str, why: str) -> None:
        await self._traffic.refused(RefusedRequestError(verdict, why), "", "")

    def _take_from_client(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._begin(event)
            return
        exchange = self._by_client.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, DataReceived):
            if exchange is None:
                self._client.acknowledge(event.stream_id, event.flow_controlled_length)
                return
            exchange.unread["client"] += event.flow_controlled_length
        if exchange is None:
            return
        if isinstance(event, (DataReceived, TrailersReceived)):
            exchange.client_ended = event.stream_ended is not None
            exchange.send_request.send_nowait(event)
        elif isinstance(event, StreamReset):
            if not event.remote_reset:  # h2 has done it, as the client had wanted
                self._client.watch.count(RESET_COSTS, "an error of a stream")
            exchange.taken_back = True
            exchange.scope.cancel()

    def _begin(self, event: RequestReceived) -> None:
        if self._leaving or len(self._by_client) >= MAX_EXCHANGES:
            self._client.reset(event.stream_id, ErrorCodes.REFUSED_STREAM)
            return
        self._last_stream = event.stream_id
        exchange = self._by_client[event.stream_id] = _Exchange(event.stream_id)
        exchange.has_no_body = exchange.client_ended = event.stream_ended is not None
        assert self._nursery is not None, "it runs"
        self._nursery.start_soon(self._exchange, exchange, event.headers)

    # What the server sends.

    async def _read_server(self) -> None:
        why = "the server has ended the connection"
        try:
            while data := await self._server.receive(PIECE_BYTES):
                self._traffic.received(len(data))
                for event in self._server.events(data):
                    self._take_from_server(event)
                self._follow_goaway()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except FloodError as error:
            self._server.end(ErrorCodes.ENHANCE_YOUR_CALM)
            why = f"the server floods this connection of HTTP/2: {error}"
            await self._tell("flood", why)
        except ProtocolError:
            why = "the server's response is no valid HTTP"
        self._lost = why
        for exchange in self._by_client.values():
            exchange.send_response.send_nowait(None)
        self._server.note()
        self._leave()

    def _take_from_server(self, event: Event) -> None:
        exchange = self._by_server.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, DataReceived):
            if exchange is None:
                self._server.acknowledge(event.stream_id, event.flow_controlled_length)
                return
            exchange.unread["server"] += event.flow_controlled_length
        if exchange is None:
            return
        if isinstance(
            event,
            (InformationalResponseReceived, ResponseReceived, DataReceived, TrailersReceived),
        ):
            ended = getattr(event, "stream_ended", None)
            exchange.server_ended = ended is not None
            exchange.send_response.send_nowait(event)
        elif isinstance(event, StreamReset):
            exchange.asked = exchange.server_ended = True  # nothing is left to end there
            exchange.send_response.send_nowait(event)

    def _follow_goaway(self) -> None:
        last = self._server.watch.last_stream
        if last is None:
            return
        for stream_id, exchange in list(self._by_server.items()):
            if stream_id > last:
                exchange.code = ErrorCodes.REFUSED_STREAM  # the client may send it again
                exchange.scope.cancel()
        self._leave()

    def _leave(self) -> None:
        """Take no new request; end after the last response."""
        if not self._leaving:
            self._leaving = True
            self._client.leave(self._last_stream)
            self._server.note()
        if not self._by_client:
            self._over.set()

    # One request.

    async def _exchange(self, exchange: _Exchange, headers: Headers) -> None:
        try:
            with exchange.scope:
                await self._carry(exchange, headers)
        except ProtocolError:
            pass  # that stream has ended meanwhile
        finally:
            self._forget(exchange)

    async def _carry(self, exchange: _Exchange, headers: Headers) -> None:
        head = dict(headers)
        method, target = head.get(b":method", b""), head.get(b":path", b"")
        try:
            request = self._check(method, target, headers)
            values = await self._rules.with_values(request)
            if request.secrets:
                await self._traffic.used(request)
            while not (self._leaving or self._server.may_open):
                await self._server.change()
            self._rules.check_not_revoked(request)  # which may have waited for a stream
        except RefusedRequestError as refusal:
            await self._tell_of(refusal, method, target)
            await self._answer(exchange, refusal.status, str(refusal), head_only=method == b"HEAD")
            return
        if self._leaving:
            exchange.code = ErrorCodes.REFUSED_STREAM
            return
        self._open(exchange, request, values)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_body, exchange, request)
            try:
                await self._return_response(exchange, request)
            except (RefusedRequestError, RefusedResponseError) as refused:
                head_only = request.method == b"HEAD"
                await self._answer(exchange, refused.status, str(refused), head_only=head_only)
            except ProtocolError:
                pass  # the client has ended its stream
            else:
                with trio.move_on_after(LINGER_S):
                    await exchange.sent.wait()
            nursery.cancel_scope.cancel()

    async def _tell_of(self, refusal: RefusedRequestError, method: bytes, target: bytes) -> None:
        await self._traffic.refused(refusal, method.decode("ascii", "replace"), shown_path(target))

    def _check(self, method: bytes, target: bytes, headers: Headers) -> CheckedRequest:
        """Check a request.

        Raises:
            RefusedRequestError: it is refused.
        """
        pseudo = {name: value for name, value in headers if name.startswith(b":")}
        rest = [(name, value) for name, value in headers if not name.startswith(b":")]
        hosts = {value for name, value in rest if name == b"host"}
        if b":authority" in pseudo:
            hosts.add(pseudo[b":authority"])
        fields = [(name, value) for name, value in rest if name != b"host"]
        if pseudo.get(b":scheme") != b"https" or not _VISIBLE.fullmatch(target):
            raise bad_request(
                "its scheme is not https, or its path has a character that is not allowed"
            )
        _check_characters(fields)
        return self._rules.check(method, target, [(b"host", host) for host in hosts] + fields)

    def _open(self, exchange: _Exchange, request: CheckedRequest, headers: Headers) -> None:
        """Begin the request at the server.

        Raises:
            ProtocolError: the connection to it is over.
        """
        connection = self._server.connection
        stream_id = connection.get_next_available_stream_id()
        host = next(value for name, value in headers if name.lower() == b"host")
        made: list[tuple[bytes, bytes]] = [
            (b":method", request.method),
            (b":scheme", b"https"),
            (b":authority", host),
            (b":path", request.target),
        ]
        plain = frozenset(request.headers)
        for name, value in headers:
            if name.lower() == b"host":
                continue
            if (name, value) in plain:
                made.append((name.lower(), value))
            else:  # it has a value, which is to be in no table of the other side
                made.append(NeverIndexedHeaderTuple(name.lower(), value))
        connection.send_headers(stream_id, made, end_stream=exchange.has_no_body)
        exchange.server_id = stream_id
        exchange.asked = exchange.has_no_body
        self._by_server[stream_id] = exchange
        self._server.watch.earn()
        self._server.take()
        self._traffic.sent(sum(len(name) + len(value) for name, value in made))

    async def _send_body(self, exchange: _Exchange, request: CheckedRequest) -> None:
        assert exchange.server_id is not None, "it is open"
        try:
            while not exchange.asked:
                event = await exchange.request.receive()
                if isinstance(event, DataReceived):
                    end = event.stream_ended is not None
                    await self._server.send_data(exchange.server_id, event.data, end=end)
                    exchange.unread["client"] -= event.flow_controlled_length
                    self._client.acknowledge(exchange.client_id, event.flow_controlled_length)
                    self._traffic.sent(len(event.data))
                    exchange.asked = end
                elif isinstance(event, TrailersReceived):
                    _check_characters(event.headers)
                    self._rules.check_trailers(event.headers)
                    await self._server.send_headers(exchange.server_id, event.headers, end=True)
                    exchange.asked = True
        except ProtocolError:
            pass  # the server has ended its stream
        except RefusedRequestError as refusal:
            await self._tell_of(refusal, request.method, request.target)
            exchange.refusal = refusal
            exchange.send_response.send_nowait(None)
        exchange.sent.set()

    # Its response.

    async def _return_response(self, exchange: _Exchange, request: CheckedRequest) -> None:
        """Pass on a response.

        Raises:
            RefusedRequestError: the request was refused for what is behind its body.
            RefusedResponseError: there is none that can be passed on.
            ProtocolError: the client has ended the stream.
        """
        body: BodyFilter | None = None
        while not exchange.answered:
            event = await exchange.response.receive()
            if event is None:
                raise exchange.refusal or RefusedResponseError(self._lost)
            if isinstance(event, StreamReset):
                exchange.code = int(event.error_code)
                return
            if isinstance(event, InformationalResponseReceived):
                await self._client.send_headers(
                    exchange.client_id, self._rules.redacted(event.headers)
                )
            elif isinstance(event, ResponseReceived):
                body = await self._return_head(exchange, request, event)
            elif isinstance(event, DataReceived) and body is not None:
                await self._return_data(exchange, body, event)
            elif isinstance(event, TrailersReceived) and body is not None:
                await self._client.send_data(exchange.client_id, body.finish())
                trailers = self._rules.redacted(event.headers)
                await self._client.send_headers(exchange.client_id, trailers, end=True)
                exchange.answered = True

    async def _return_head(
        self, exchange: _Exchange, request: CheckedRequest, event: ResponseReceived
    ) -> BodyFilter:
        status = int(dict(event.headers)[b":status"])
        self._rules.answered(request, status)
        headers = self._rules.redacted(event.headers)
        body, headers = self._rules.body_of(request, status, headers)
        ended = event.stream_ended is not None
        await self._client.send_headers(exchange.client_id, headers, end=ended)
        exchange.begun = True
        exchange.answered = ended
        return body

    async def _return_data(
        self, exchange: _Exchange, body: BodyFilter, event: DataReceived
    ) -> None:
        assert exchange.server_id is not None, "it is open"
        data, more = body.feed(event.data, PIECE_BYTES)
        await self._client.send_data(exchange.client_id, data)
        while more:
            data, more = body.feed(b"", PIECE_BYTES)
            await self._client.send_data(exchange.client_id, data)
        exchange.unread["server"] -= event.flow_controlled_length
        self._server.acknowledge(exchange.server_id, event.flow_controlled_length)
        if event.stream_ended is not None:
            await self._client.send_data(exchange.client_id, body.finish(), end=True)
            exchange.answered = True

    async def _answer(
        self, exchange: _Exchange, status: int, text: str, *, head_only: bool
    ) -> None:
        """Answer in the server's place, if it has not begun to."""
        if exchange.begun:
            exchange.code = ErrorCodes.INTERNAL_ERROR
            return
        body = f"nsm: {text}\n".encode()
        headers = [
            (b":status", b"%d" % status),
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"proxy-status", b"nsm; error=http_request_denied"),
        ]
        exchange.begun = True
        await self._client.send_headers(exchange.client_id, headers, end=head_only)
        if not head_only:
            await self._client.send_data(exchange.client_id, body, end=True)
        exchange.answered = True

    def _forget(self, exchange: _Exchange) -> None:
        """End what is left of its streams."""
        if exchange.server_id is not None:
            del self._by_server[exchange.server_id]
            if not (exchange.asked and exchange.server_ended):
                self._server.reset(exchange.server_id, ErrorCodes.CANCEL)
            self._server.acknowledge(exchange.server_id, exchange.unread["server"])
        del self._by_client[exchange.client_id]
        if not exchange.answered and not exchange.taken_back:
            self._client.reset(exchange.client_id, exchange.code)
        elif not exchange.client_ended and not exchange.taken_back:
            self._client.reset(exchange.client_id, ErrorCodes.NO_ERROR)
        self._client.acknowledge(exchange.client_id, exchange.unread["client"])
        self._server.note()
        if self._leaving and not self._by_client:
            self._over.set()


def _check_characters(headers: Headers) -> None:
    """Check headers or trailers.

    Raises:
        RefusedRequestError: they have a character that is not allowed.
    """
    if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in headers):
        raise bad_request("its headers or trailers have a character that is not allowed")
