"""First messages of TLS clients."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsmd.network.secrets.client_hello import ClientHello, NoTlsError, read_client_hello


def hello(name: str | None = "api.example.org", protocols: tuple[str, ...] = ("h2",)) -> bytes:
    """The first bytes of a client of OpenSSL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if protocols:
        context.set_alpn_protocols(list(protocols))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname=name).do_handshake()
    return outgoing.read()


def test_a_client_of_openssl() -> None:
    assert read_client_hello(hello()) == ClientHello(
        server_name="api.example.org", protocols=("h2",)
    )
    assert read_client_hello(hello(None, ())) == ClientHello(server_name="", protocols=())


def test_every_beginning_of_a_message_needs_more() -> None:
    data = hello()
    assert [at for at in range(len(data)) if read_client_hello(data[:at]) is not None] == []


def test_a_message_in_many_records() -> None:
    message = hello()[5:]
    data = b"".join(b"\x16\x03\x01\x00\x01" + message[at : at + 1] for at in range(len(message)))
    found = read_client_hello(data)
    assert found is not None
    assert found.server_name == "api.example.org"


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x00\x00", b"\x16\x01\x01\x00\x05"]
)
def test_other_protocols(data: bytes) -> None:
    with pytest.raises(NoTlsError):
        read_client_hello(data)


HELLO = hello()


@given(place=st.integers(5, 200), byte=st.integers(0, 255))
def test_damaged_messages_raise_nothing_else(place: int, byte: int) -> None:
    data = bytearray(HELLO)
    data[place] = byte
    with contextlib.suppress(NoTlsError):
        read_client_hello(bytes(data))
