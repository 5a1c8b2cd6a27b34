"""Requests to a SOCKS 5 proxy (RFC 1928): `CONNECT` without authentication; no I/O."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from nsm.dataclass import dataclass
from nsmd.model.host_rules import BadHostError, Host, parse_host
from nsmd.network.refusal import RefusedError, socks_code

VERSION = 5

_NO_AUTHENTICATION = 0
_CONNECT = 1
_ADDRESS_4, _NAME, _ADDRESS_6 = 1, 3, 4
_NOTHING_ACCEPTABLE = b"\x05\xff"
_BOUND = b"\x00\x01\x00\x00\x00\x00\x00\x00"
"""Address that we claim to connect from: code must not know the real one."""

_UNKNOWN_COMMAND, _UNKNOWN_ADDRESS_TYPE = 7, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SocksRequest:
    """Connection that a client asks for."""

    host: Host
    port: int


class SocksProxy:
    """One connection of a SOCKS client, from its first byte to its request."""

    def __init__(self) -> None:
        self._data = b""
        self._greeted = False
        self._answers = b""
        self._code: int | None = None

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the client."""
        self._data += data

    def answers(self) -> bytes:
        """Return the bytes to send before more arrive; each byte once."""
        answers, self._answers = self._answers, b""
        return answers

    def next_request(self) -> SocksRequest | None:
        """Read the request; None until it is complete. Its size is bounded: 519 bytes.

        Raises:
            RefusedError: it is refused; `refusal` has the answer.
        """
        if not self._greeted and not self._greet():
            return None
        if len(self._data) < 5:
            return None
        version, command, _, kind, size = self._data[:5]
        if version != VERSION:
            raise _bad("it has another version")
        if command != _CONNECT:
            self._code = _UNKNOWN_COMMAND
            raise _bad("only CONNECT is known")
        length = {_ADDRESS_4: 4, _ADDRESS_6: 16, _NAME: 1 + size}.get(kind)
        if length is None:
            self._code = _UNKNOWN_ADDRESS_TYPE
            raise _bad("it has an unknown type of address")
        end = 4 + length + 2
        if len(self._data) < end:
            return None
        address = self._data[4 : 4 + length]
        port = int.from_bytes(self._data[4 + length : end], "big")
        self._data = self._data[end:]
        return SocksRequest(host=_host_of(kind, address), port=_checked(port))

    def begin_tunnel(self) -> tuple[bytes, bytes]:
        """The answer, and the bytes that the client has already sent for the server."""
        early, self._data = self._data, b""
        return bytes((VERSION, 0)) + _BOUND, early

    def refusal(self, refused: RefusedError) -> bytes:
        """Make the answer for a refused request."""
        if not self._greeted:
            return _NOTHING_ACCEPTABLE
        code = socks_code(refused) if self._code is None else self._code
        return bytes((VERSION, code)) + _BOUND

    def _greet(self) -> bool:
        if len(self._data) < 2 or len(self._data) < 2 + self._data[1]:
            return False
        if self._data[0] != VERSION:
            raise _bad("it has another version")
        methods = self._data[2 : 2 + self._data[1]]
        if _NO_AUTHENTICATION not in methods:
            raise _bad("it insists on authentication")
        self._data = self._data[2 + len(methods) :]
        self._greeted = True
        self._answers += bytes((VERSION, _NO_AUTHENTICATION))
        return True


def _host_of(kind: int, data: bytes) -> Host:
    if kind == _ADDRESS_4:
        return IPv4Address(data)
    if kind == _ADDRESS_6:
        return IPv6Address(data)
    try:
        # A name with a NUL in it once passed a check of its end, and was resolved up to the NUL.
        return parse_host(data[1:].decode("ascii"))
    except (BadHostError, UnicodeDecodeError) as error:
        raise _bad(f"its host {error}") from None


def _checked(port: int) -> int:
    if not port:
        raise _bad("it has no port")
    return port


def _bad(why: str) -> RefusedError:
    return RefusedError("bad-request", f"nsm's proxy does not accept this SOCKS request: {why}.")
