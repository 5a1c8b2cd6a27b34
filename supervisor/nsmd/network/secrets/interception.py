"""One connection of code to a host with secrets or rules for requests.

Both sides use TLS, and HTTP/1.1.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress

import h11
import trio

from nsmd.model.host_rules import AllowList
from nsmd.network.proxy_requests import WrongLengthError, check_length
from nsmd.network.secrets.authority import Authority, now_utc
from nsmd.network.secrets.host_rules import (
    BodyFilter,
    CheckedRequest,
    HostRules,
    RefusedRequestError,
    RefusedResponseError,
    shown_path,
)
from nsmd.network.secrets.vault import Vault

HANDSHAKE_S = 30.0
"""Time for both sides to agree on TLS."""

IDLE_S = 900.0
"""A connection without a byte in either direction ends after that time, as in `nsmd.network`."""

CLOSE_S = 1.0
"""Time to tell a client that nothing follows."""

LINGER_S = 5.0
"""Time for a client to send the rest of a request that was answered early, and to read a refusal.
"""

MAX_HEAD_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024

_TLS_HANDSHAKE = 22
"""First byte of a client that speaks TLS."""

_HTTP_1_1_REQUIRED = 13

Tell = Callable[[dict[str, object]], Awaitable[None]]
"""Tells the supervisor something; returns once that cannot be lost."""


class Interceptor:
    """Reader of the connections of one session or box, which passes them on for its `Helper`."""

    def __init__(
        self,
        authority: Authority,
        vault: Vault,
        request_rules: AllowList,
        *,
        trusted: ssl.SSLContext,
        tell: Tell,
    ) -> None:
        self._authority = authority
        self._vault = vault
        self._request_rules = request_rules
        self._trusted = trusted
        self._tell = tell

    async def intercept(
        self, client: trio.abc.Stream, server: trio.abc.Stream, host: str, port: int, early: bytes
    ) -> tuple[int, int]:
        """Pass on one connection to its end; returns numbers of bytes to the server, and from it.
        The client has asked the proxy to connect to that host, and sent `early` after that.
        """
        scope = trio.CancelScope()
        traffic = ConnectionTraffic(host, port, scope, self._tell)
        with scope:
            scope.deadline = trio.current_time() + HANDSHAKE_S
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._agree_on_tls(client, server, early, traffic)
        return traffic.sent_bytes, traffic.received_bytes

    async def _agree_on_tls(
        self,
        client: trio.abc.Stream,
        server: trio.abc.Stream,
        early: bytes,
        traffic: ConnectionTraffic,
    ) -> None:
        """Agree on TLS with both sides, the client first, and pass on its requests."""
        host = traffic.host
        first = early or bytes(await client.receive_some(PIECE_BYTES))
        if not first:
            return
        if first[0] != _TLS_HANDSHAKE:
            await traffic.refused("no-tls", "the client does not speak TLS")
            return
        inside = trio.SSLStream(
            _ReplayStream(client, first), self._authority.context(host, now_utc()), server_side=True
        )
        try:
            await inside.do_handshake()
        except trio.BrokenResourceError as error:
            if _names_another(error):
                why = f"the client asked the proxy for {host}, and the server for another name"
                await traffic.refused("server-name", why)
            else:
                why = f"the client does not accept nsm's certificate for {host}: {_reason(error)}"
                await traffic.refused("client-tls", why)
            return
        try:
            if inside.selected_alpn_protocol() == "h2":
                await self._refuse_http2(inside, traffic)
                return
            outside = trio.SSLStream(
                server, self._trusted, server_hostname=host, https_compatible=True
            )
            request_rules = self._request_rules.requests_to(host, traffic.port)
            rules = HostRules(host, traffic.port, self._vault, request_rules)
            http = Http1(inside, outside, rules, traffic)
            try:
                await outside.do_handshake()
            except trio.BrokenResourceError as error:
                untrusted = isinstance(error.__cause__, ssl.SSLCertVerificationError)
                problem = _tls_problem(error, host)
                await traffic.refused("certificate" if untrusted else "server-tls", problem)
                await http.answer_first(problem)
                return
            traffic.received(0)
            await http.run()
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await inside.aclose()

    async def _refuse_http2(self, client: trio.abc.Stream, traffic: ConnectionTraffic) -> None:
        """Tell a client that speaks HTTP/2 only, in HTTP/2, to use HTTP/1.1."""
        why = (
            f"the client speaks HTTP/2 only, and nsm reads requests to {traffic.host} in HTTP/1.1: "
            "have it use that"
        )
        await traffic.refused("client-tls", why)
        text = f"nsm: {why}".encode()
        settings = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # RFC 9113, 6.5 and 6.8
        await client.send_all(
            settings
            + (8 + len(text)).to_bytes(3, "big")
            + bytes((7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, _HTTP_1_1_REQUIRED))
            + text
        )
        with trio.move_on_after(CLOSE_S):
            while await client.receive_some(PIECE_BYTES):
                pass


class ConnectionTraffic:
    """Record of what a connection carries; its deadline moves with each byte."""

    def __init__(self, host: str, port: int, scope: trio.CancelScope, tell: Tell) -> None:
        self.host = host
        self.port = port
        self._scope = scope
        self._tell = tell
        self.sent_bytes = self.received_bytes = 0

    async def used(self, request: CheckedRequest) -> None:
        """Record a request with secrets; returns once that cannot be lost."""
        await self._tell(
            {
                "op": "used",
                "host": self.host,
                "port": self.port,
                "secrets": list(request.secrets),
                "method": request.method.decode("ascii", "replace"),
                "path": request.path,
            }
        )

    async def refused(
        self, verdict: str, why: str, *, secret: str = "", method: str = "", path: str = ""
    ) -> None:
        """Record a refused request, or a connection that has failed before its first one: `no-tls`,
        `server-name`, `certificate`, `server-tls` or `client-tls`.
        """
        await self._tell(
            {
                "op": "refused",
                "host": self.host,
                "port": self.port,
                "verdict": verdict,
                "secret": secret,
                "why": why,
                "method": method[:32],
                "path": path,
            }
        )

    def sent(self, size: int) -> None:
        """Count bytes for the server, and note that the connection lives."""
        self.sent_bytes += size
        self._scope.deadline = trio.current_time() + IDLE_S

    def received(self, size: int) -> None:
        """Count bytes of the server, likewise."""
        self.received_bytes += size
        self._scope.deadline = trio.current_time() + IDLE_S


class _Over(Exception):  # noqa: N818 - no error
    """Nothing more can be done on this connection."""


class Http1:
    """HTTP of both sides of a connection, after TLS.

    h11 reads both strictly, and writes each message again: a server gets no byte of a request that
    was not understood here.
    """

    def __init__(
        self,
        client: trio.abc.Stream,
        server: trio.abc.Stream,
        rules: HostRules,
        traffic: ConnectionTraffic,
    ) -> None:
        self._client = client
        self._server = server
        self._rules = rules
        self._traffic = traffic
        self._from_client = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._to_server = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._request: CheckedRequest | None = None
        self._sent = trio.Event()
        self._answered = trio.Event()
        self._switched = False
        self._for_server = self._for_client = b""

    async def run(self) -> None:
        """Pass on requests until one side ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_over, self._return_responses, nursery.cancel_scope)
            nursery.start_soon(self._until_over, self._send_requests, nursery.cancel_scope)

    async def answer_first(self, problem: str) -> None:
        """Answer the first request with what is wrong with the server."""
        with suppress(h11.RemoteProtocolError):
            event = await self._next(self._from_client, self._client)
            if isinstance(event, h11.Request):
                await self._answer(502, problem, event.method, error="tls_certificate_error")

    async def _until_over(
        self, work: Callable[[], Awaitable[None]], scope: trio.CancelScope
    ) -> None:
        try:
            await work()
        except (_Over, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except h11.LocalProtocolError:
            pass  # one side sent what the other one cannot get, as a 101 that nobody asked for
        except RefusedResponseError as refused:
            await self._answer(502, str(refused))
        except h11.RemoteProtocolError as error:
            if work == self._return_responses:
                await self._answer(502, "the server's response is not valid HTTP")
            else:
                await self._answer(error.error_status_hint, "this is not a valid HTTP/1.1 request")
        scope.cancel()

    # Requests.

    async def _send_requests(self) -> None:
        while True:
            event = await self._next(self._from_client, self._client)
            if not isinstance(event, h11.Request):
                return
            try:
                request = self._check(event)
                headers = await self._rules.with_values(request)
                if request.secrets:
                    await self._traffic.used(request)
                self._rules.check_not_revoked(request)
            except RefusedRequestError as refusal:
                await self._refuse(refusal, event.method, event.target)
                return
            self._request = request
            await self._to_server_send(
                h11.Request(method=request.method, target=request.target, headers=headers)
            )
            try:
                await self._send_body()
            except RefusedRequestError as refusal:  # the server never sees the request's end
                await self._refuse(refusal, request.method, request.target)
                return
            await self._await_answer()

    def _check(self, event: h11.Request) -> CheckedRequest:
        """Check a request: its length, its upgrade, and by the rules of the host."""
        try:
            check_length(event)
        except WrongLengthError as error:
            raise RefusedRequestError("bad-request", f"nsm does not pass it on: {error}") from None
        headers = event.headers.raw_items()
        upgrades = [v.strip().lower() for name, v in headers if name.lower() == b"upgrade"]
        if upgrades and (upgrades != [b"websocket"] or not self._rules.same_length):
            # Without it, the server answers in HTTP/1.1.
            headers = [row for row in headers if row[0].lower() not in (b"upgrade", b"connection")]
        return self._rules.check(event.method, event.target, headers)

    async def _refuse(self, refusal: RefusedRequestError, method: bytes, target: bytes) -> None:
        await self._traffic.refused(
            refusal.verdict,
            str(refusal),
            secret=refusal.secret,
            method=method.decode("ascii", "replace"),
            path=shown_path(target),
        )
        await self._answer(refusal.status, str(refusal), method)

    async def _send_body(self) -> None:
        """Pass on a request's body and what is behind it, for which it may still be refused."""
        while True:
            event = await self._next(self._from_client, self._client)
            if isinstance(event, h11.Data):
                await self._to_server_send(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._rules.check_trailers(event.headers.raw_items())
                await self._to_server_send(h11.EndOfMessage(headers=event.headers))
                await self._flush_server()
                return
            else:
                raise _Over

    async def _await_answer(self) -> None:
        """Wait for the end of the response, and begin the next cycle if there can be one."""
        self._sent.set()
        await self._answered.wait()
        self._sent, self._answered = trio.Event(), trio.Event()
        if self._switched:
            await self._send_raw()
            raise _Over
        ends = (self._from_client, self._to_server)
        if any(h11.MUST_CLOSE in (end.our_state, end.their_state) for end in ends):
            raise _Over
        if any((end.our_state, end.their_state) != (h11.DONE, h11.DONE) for end in ends):
            raise _Over
        self._from_client.start_next_cycle()
        self._to_server.start_next_cycle()

    async def _send_raw(self) -> None:
        data, _ = self._from_client.trailing_data
        while True:
            if data:
                await self._server.send_all(data)
                self._traffic.sent(len(data))
            data = bytes(await self._client.receive_some(PIECE_BYTES))
            if not data:
                return

    # Responses.

    async def _return_responses(self) -> None:
        while True:
            event = await self._next(self._to_server, self._server)
            if isinstance(event, h11.InformationalResponse):
                headers = self._rules.redacted(event.headers.raw_items())
                await self._to_client_send(
                    h11.InformationalResponse(
                        status_code=event.status_code, reason=event.reason, headers=headers
                    )
                )
                await self._flush_client()
                if event.status_code == 101:
                    self._switched = True
                    self._answered.set()
                    await self._return_raw()
                    return
            elif isinstance(event, h11.Response):
                await self._return_response(event)
            else:
                return

    async def _return_response(self, response: h11.Response) -> None:
        request = self._request
        if request is None:
            raise _Over  # the server answers before anything was asked
        self._rules.answered(request, response.status_code)
        headers = self._rules.redacted(response.headers.raw_items())
        body, headers = self._rules.body_of(request, response.status_code, headers)
        await self._to_client_send(
            h11.Response(
                status_code=response.status_code,
                reason=self._rules.redacted([(b"", response.reason)])[0][1],
                headers=headers,
            )
        )
        await self._return_body(body)

    async def _return_body(self, body: BodyFilter) -> None:
        while True:
            event = await self._next(self._to_server, self._server)
            if isinstance(event, h11.Data):
                data, more = body.feed(bytes(event.data), PIECE_BYTES)
                await self._send_piece(data)
                while more:
                    data, more = body.feed(b"", PIECE_BYTES)
                    await self._send_piece(data)
            elif isinstance(event, h11.EndOfMessage):
                await self._send_piece(body.finish())
                headers = self._rules.redacted(event.headers.raw_items())
                await self._to_client_send(h11.EndOfMessage(headers=headers))
                await self._flush_client()
                break
            else:
                raise _Over
        with trio.move_on_after(LINGER_S):  # an early answer, which the client should read
            await self._sent.wait()
            self._answered.set()
            return
        raise _Over

    async def _send_piece(self, data: bytes) -> None:
        if data:
            await self._to_client_send(h11.Data(data=data))

    async def _return_raw(self) -> None:
        redactor = self._rules.redactor()
        data, _ = self._to_server.trailing_data
        while True:
            if data and (out := redactor.feed(data)):
                await self._client.send_all(out)
            data = bytes(await self._server.receive_some(PIECE_BYTES))
            self._traffic.received(len(data))
            if not data:
                break
        await self._client.send_all(redactor.finish())

    # Both.

    async def _next(self, connection: h11.Connection, stream: trio.abc.Stream) -> object:
        """Read the next event of one side; it waits while the other one answers."""
        while True:
            event = connection.next_event()
            if event is not h11.NEED_DATA:
                return event
            if connection is self._to_server:
                await self._flush_client()
                data = bytes(await stream.receive_some(PIECE_BYTES))
                self._traffic.received(len(data))
            else:
                await self._flush_server()
                data = bytes(await stream.receive_some(PIECE_BYTES))
            connection.receive_data(data)

    async def _to_server_send(self, event: h11.Event) -> None:
        self._for_server += self._to_server.send(event) or b""
        if len(self._for_server) >= PIECE_BYTES:
            await self._flush_server()

    async def _flush_server(self) -> None:
        """Send what waits: a head and a short body go together, as each send costs a wake-up."""
        data, self._for_server = self._for_server, b""
        if data:
            await self._server.send_all(data)
            self._traffic.sent(len(data))

    async def _to_client_send(self, event: h11.Event) -> None:
        self._for_client += self._from_client.send(event) or b""
        if len(self._for_client) >= PIECE_BYTES:
            await self._flush_client()

    async def _flush_client(self) -> None:
        data, self._for_client = self._for_client, b""
        if data:
            await self._client.send_all(data)

    async def _answer(
        self,
        status: int,
        text: str,
        method: bytes = b"",
        *,
        error: str = "http_request_denied",
    ) -> None:
        """Answer in the server's place, if it has not begun to; nothing follows.

        Without a method, the answer is to the last request.
        """
        if self._from_client.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"nsm: {text}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Proxy-Status", f"nsm; error={error}"),
            ("Connection", "close"),
        ]
        try:
            head = h11.Response(status_code=status, headers=headers, reason=b"Refused (nsm)")
            await self._to_client_send(head)
            if not method and self._request is not None:
                method = self._request.method
            if method != b"HEAD":
                await self._to_client_send(h11.Data(data=body))
            await self._to_client_send(h11.EndOfMessage())
            await self._flush_client()
            with trio.move_on_after(LINGER_S):
                while await self._client.receive_some(PIECE_BYTES):
                    pass
        except (h11.LocalProtocolError, trio.BrokenResourceError, trio.ClosedResourceError):
            return


class _ReplayStream(trio.abc.Stream):
    """A stream some bytes of which were read already."""

    def __init__(self, stream: trio.abc.Stream, first: bytes) -> None:
        self._stream = stream
        self._first = first

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._first:
            size = len(self._first) if max_bytes is None else max_bytes
            first, self._first = self._first[:size], self._first[size:]
            return first
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _names_another(error: BaseException) -> bool:
    """Return whether a handshake failed since the client wants another server (`Authority`)."""
    cause = error.__cause__
    return isinstance(cause, ssl.SSLError) and cause.reason == "CALLBACK_FAILED"


def _tls_problem(error: BaseException, host: str) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate of {host} is not trusted: {cause.verify_message}"
    return f"no TLS with {host}: {_reason(error)}"


def _reason(error: BaseException) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        return (cause.reason or "unknown").replace("_", " ").lower()
    return "the connection ended"
