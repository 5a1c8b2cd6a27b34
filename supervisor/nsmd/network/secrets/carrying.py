"""One connection of code to a host of its secrets: TLS on both sides, HTTP in between."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Literal

import h11
import trio

from nsmd.model.host_rules import AllowList
from nsmd.network.secrets.authority import PROTOCOL, Authority, now_utc
from nsmd.network.secrets.client_hello import ClientHello, NoTlsError, read_client_hello
from nsmd.network.secrets.host_rules import CheckedRequest, HostRules, RefusedRequestError
from nsmd.network.secrets.http1 import Http1
from nsmd.network.secrets.vault import Vault

HANDSHAKE_S = 30.0
"""Time for both sides to agree on TLS."""

IDLE_S = 900.0
"""A connection without a byte in either direction ends after that time, as in `nsmd.network`."""


Outcome = Literal["", "no-tls", "server-name", "certificate", "server-tls", "client-tls"]
"""How a connection failed before its first request; empty if it did not."""


CLOSE_S = 1.0
"""Time to tell a client that nothing follows."""

Tell = Callable[[dict[str, object]], Awaitable[None]]


class ReplayStream(trio.abc.Stream):
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


class CountedTraffic:
    """`ConnectionTraffic` of one connection.

    Args:
        scope: ends the connection; its deadline moves with each byte.
        tell: tells the supervisor something; returns once that cannot be lost.

    Attributes:
        sent_bytes, received_bytes: bytes of requests and responses.
    """

    def __init__(self, host: str, port: int, scope: trio.CancelScope, tell: Tell) -> None:
        self._facts = {"host": host, "port": port}
        self._scope = scope
        self._tell = tell
        self.sent_bytes = self.received_bytes = 0

    async def used(self, request: CheckedRequest) -> None:
        method = request.method.decode("ascii", "replace")
        await self._tell(
            {
                "op": "used",
                **self._facts,
                "secrets": list(request.secrets),
                "method": method,
                "path": request.path,
            }
        )

    async def refused(self, refusal: RefusedRequestError, method: str, path: str) -> None:
        await self._tell(
            {
                "op": "refused",
                **self._facts,
                "verdict": refusal.verdict,
                "secret": refusal.secret,
                "why": str(refusal),
                "method": method[:32],
                "path": path,
            }
        )

    def sent(self, size: int) -> None:
        self.sent_bytes += size
        self._lives()

    def received(self, size: int) -> None:
        self.received_bytes += size
        self._lives()

    def _lives(self) -> None:
        self._scope.deadline = trio.current_time() + IDLE_S


class SecretCarrier:
    """Carries connections of one session or box.

    Args:
        request_rules: all rules for requests.
        trusted: TLS context with the authorities that the system trusts.
        tell: as for `CountedTraffic`.
    """

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

    async def carry(
        self, client: trio.abc.Stream, server: trio.abc.Stream, host: str, port: int, early: bytes
    ) -> tuple[int, int]:
        """Carry one connection to its end.

        Args:
            host, port: where the client asked the proxy to connect to.
            early: bytes that it has sent after that.

        Returns:
            Numbers of bytes to the server, and from it.
        """
        scope = trio.CancelScope()
        traffic = CountedTraffic(host, port, scope, self._tell)
        with scope:
            scope.deadline = trio.current_time() + HANDSHAKE_S
            try:
                await self._carry(client, server, host, port, early, traffic)
            except NoTlsError as error:
                await self._failed(host, port, "no-tls", str(error))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
        return traffic.sent_bytes, traffic.received_bytes

    async def _carry(
        self,
        client: trio.abc.Stream,
        server: trio.abc.Stream,
        host: str,
        port: int,
        early: bytes,
        traffic: CountedTraffic,
    ) -> None:
        hello, first = await _read_hello(client, early)
        if hello is None:
            return
        if hello.server_name != host:
            asked = hello.server_name or "no name"
            why = f"the client asked the proxy for {host}, and the server for {asked:.100}"
            await self._failed(host, port, "server-name", why)
            return
        if hello.protocols and PROTOCOL not in hello.protocols:
            why = (
                f"the client speaks {', '.join(hello.protocols):.100} only, and nsm reads requests "
                f"to {host} in HTTP/1.1: have it use that"
            )
            await self._failed(host, port, "client-tls", why)
            return
        problem = ""
        outside = trio.SSLStream(server, self._trusted, server_hostname=host, https_compatible=True)
        try:
            await outside.do_handshake()
        except trio.BrokenResourceError as error:
            problem = _why(error, host)
            outcome: Outcome = "certificate" if _is_of_certificate(error) else "server-tls"
            await self._failed(host, port, outcome, problem)
        inside = trio.SSLStream(
            ReplayStream(client, first),
            self._authority.context(host, now_utc()),
            server_side=True,
        )
        try:
            await inside.do_handshake()
        except trio.BrokenResourceError as error:
            why = f"the client does not accept nsm's certificate for {host}: {_reason(error)}"
            await self._failed(host, port, "client-tls", why)
            return
        traffic.received(0)
        try:
            request_rules = self._request_rules.requests_to(host, port)
            rules = HostRules(host, port, self._vault, request_rules)
            if problem:
                await _answer_problem(inside, problem)
            else:
                await Http1(inside, outside, rules, traffic).run()
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await inside.aclose()

    async def _failed(self, host: str, port: int, outcome: Outcome, why: str) -> None:
        await self._tell(
            {
                "op": "refused",
                "host": host,
                "port": port,
                "verdict": outcome,
                "secret": "",
                "why": why,
                "method": "",
                "path": "",
            }
        )


async def _read_hello(client: trio.abc.Stream, first: bytes) -> tuple[ClientHello | None, bytes]:
    """Read a client's first message; it, and all that was read.

    Raises:
        NoTlsError: it does not speak TLS.
    """
    while (hello := read_client_hello(first)) is None:
        data = await client.receive_some(16 * 1024)
        if not data:
            return None, first
        first += data
    return hello, first


async def _answer_problem(client: trio.abc.Stream, problem: str) -> None:
    """Answer the client's first request with what is wrong with the server."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=64 * 1024)
    try:
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(bytes(await client.receive_some(64 * 1024)))
    except h11.RemoteProtocolError:
        return
    if not isinstance(event, h11.Request):
        return
    body = f"nsm: {problem}\n".encode()
    headers = [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Content-Length", str(len(body))),
        ("Proxy-Status", "nsm; error=tls_certificate_error"),
        ("Connection", "close"),
    ]
    answer = connection.send(h11.Response(status_code=502, headers=headers)) or b""
    if event.method != b"HEAD":
        answer += connection.send(h11.Data(data=body)) or b""
    await client.send_all(answer)


def _is_of_certificate(error: BaseException) -> bool:
    return isinstance(error.__cause__, ssl.SSLCertVerificationError)


def _why(error: BaseException, host: str) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the certificate of {host} is not trusted: {cause.verify_message}"
    return f"no TLS with {host}: {_reason(error)}"


def _reason(error: BaseException) -> str:
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        return (cause.reason or "unknown").replace("_", " ").lower()
    return "the connection ended"
