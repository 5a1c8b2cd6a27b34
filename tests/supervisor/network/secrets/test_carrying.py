"""TLS on both sides of one connection, with real sockets."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

import pytest
import trio

from nsmd.model.host_rules import AllowList
from nsmd.network.secrets.authority import Authority, now_utc
from nsmd.network.secrets.carrying import SecretCarrier
from nsmd.network.secrets.vault import Vault
from secret_server import NAME, TestAuthority, secret_server

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("kind", "why"),
    [("usual", ""), ("pins", "does not accept nsm's certificate"), ("http2", "in HTTP/1.1")],
)
async def test_a_client_that_cannot_be_served_is_reported(
    tmp_path: Path, kind: str, why: str
) -> None:
    """A client that trusts only the server's own authority, or that speaks HTTP/2 only, gets no
    connection, and others get their answer.
    """
    outside, inside = TestAuthority(tmp_path), Authority.make([NAME], now_utc())
    told: list[dict[str, object]] = []

    async def tell(message: dict[str, object]) -> None:
        told.append(message)

    def ask(link: socket.socket) -> str:
        trusted = outside.bundle.read_text() if kind == "pins" else inside.certificate
        context = ssl.create_default_context(cadata=trusted)
        context.set_alpn_protocols(["h2"] if kind == "http2" else ["h2", "http/1.1"])
        try:
            with context.wrap_socket(link, server_hostname=NAME) as secure:
                secure.sendall(f"GET /x HTTP/1.1\r\nHost: {NAME}:{server.port}\r\n\r\n".encode())
                return secure.recv(4096).decode().partition("\r\n")[0]
        except (ssl.SSLError, OSError):
            return ""

    with secret_server(outside.certificate()) as server:
        trusted = ssl.create_default_context(cafile=str(outside.bundle))
        rules = AllowList.of([f"* https://{NAME}:{server.port}/*"])
        carrier = SecretCarrier(inside, Vault([]), rules, trusted=trusted, tell=tell)
        ours, its = socket.socketpair()
        ours.setblocking(False)
        answers: list[str] = []

        async def client() -> None:
            answers.append(await trio.to_thread.run_sync(ask, its))
            its.close()

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client)
                async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
                    link = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
                    async with link:
                        await carrier.carry(link, stream, NAME, server.port, b"")
    assert answers == ["" if why else "HTTP/1.1 200 OK"]
    assert [row["verdict"] for row in told] == ["client-tls"] * bool(why)
    assert all(why in str(row["why"]) for row in told)
