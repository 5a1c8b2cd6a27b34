"""Connections to indexes: only to addresses that were checked.

A name is looked up once, and the connection goes to an address that was checked then. So a name
that means another address a moment later (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any

import httpcore2
import trio

from nsmd.environments.packages.index_proxy.errors import FetchError
from nsmd.model.host_rules import Address, Host, parse_host, show_host
from nsmd.network.addresses import is_own, why_not_public
from nsmd.network.resolver import MAX_ADDRESSES, RESOLVE_TIMEOUT_S, Resolve, connect

IsNamed = Callable[[Host, int], bool]


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Network backend of httpcore.

    Args:
        is_named: tells whether a host may have a private address; None if all may, since only the
            user's own proxy is connected to.
    """

    def __init__(self, resolve: Resolve, is_named: IsNamed | None) -> None:
        self._resolve = resolve
        self._is_named = is_named

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  # httpcore's interface
        local_address: str | None = None,  # noqa: ARG002  # pools of ours set neither
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        """Connect; as in httpcore.

        Raises:
            FetchError: it has no address, or only private ones.
            httpcore2.ConnectError: nobody answers there.
            httpcore2.ConnectTimeout: nobody answers there in time.
        """
        try:
            with trio.fail_after(float("inf") if timeout is None else timeout):
                stream = await open_connection(
                    self._resolve, self._is_named, parse_host(host.strip("[]")), port
                )
        except (trio.TooSlowError, TimeoutError):
            raise httpcore2.ConnectTimeout("nobody answers") from None
        except OSError as error:
            raise httpcore2.ConnectError(error.strerror or "nobody answers") from error
        return _Stream(stream)

    async def sleep(self, seconds: float) -> None:
        """Wait between attempts; as in httpcore."""
        await trio.sleep(seconds)


async def open_connection(
    resolve: Resolve, is_named: IsNamed | None, host: Host, port: int
) -> trio.SocketStream:
    """Connect to a checked address of a host.

    Args:
        is_named: as for `CheckedBackend`.

    Raises:
        FetchError: it has no address, or only private ones.
        OSError: nobody answers there.
    """
    found = await _look_up(resolve, host) if isinstance(host, str) else [host]
    addresses = found[:MAX_ADDRESSES]
    if is_named is not None and not is_named(host, port):
        addresses = _public(host, addresses)
    stream, _ = await connect(addresses, port)
    return stream


def _public(host: Host, addresses: Sequence[Address]) -> Sequence[Address]:
    public: list[Address] = []
    kinds: list[str] = []
    for address in addresses:
        kind = why_not_public(address) or ("this machine's own" if is_own(address) else None)
        if kind is None:
            public.append(address)
        else:
            kinds.append(kind)
    if public:
        return public
    raise FetchError(
        HTTPStatus.FORBIDDEN,
        f"{show_host(host)} has an address that is {' and '.join(dict.fromkeys(kinds))}, and the "
        "user's configuration does not name that host",
    )


async def _look_up(resolve: Resolve, name: str) -> Sequence[Address]:
    found: Sequence[Address] = ()
    try:
        with trio.move_on_after(RESOLVE_TIMEOUT_S):
            found = await resolve(name)
    except (OSError, ValueError):
        found = ()
    if not found:
        raise FetchError(HTTPStatus.BAD_GATEWAY, f"nobody knows an address of {name}")
    return found


class _Stream(httpcore2.AsyncNetworkStream):
    """A stream of trio as httpcore wants it."""

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            with trio.fail_after(float("inf") if timeout is None else timeout):
                return bytes(await self._stream.receive_some(max_bytes))
        except trio.TooSlowError:
            raise httpcore2.ReadTimeout("nothing more comes") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.ReadError("the connection broke") from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        try:
            with trio.fail_after(float("inf") if timeout is None else timeout):
                await self._stream.send_all(buffer)
        except trio.TooSlowError:
            raise httpcore2.WriteTimeout("nothing is read") from None
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore2.WriteError("the connection broke") from error

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        assert isinstance(self._stream, trio.SocketStream), "TLS begins once"
        secured = trio.SSLStream(
            self._stream, ssl_context, server_hostname=server_hostname, https_compatible=True
        )
        try:
            with trio.fail_after(float("inf") if timeout is None else timeout):
                await secured.do_handshake()
        except BaseException as error:
            await self.aclose()
            if isinstance(error, trio.TooSlowError):
                raise httpcore2.ConnectTimeout("TLS takes too long") from None
            if isinstance(error, trio.BrokenResourceError):
                raise httpcore2.ConnectError("TLS fails") from error
            raise
        return _Stream(secured)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            stream = self._stream
            inner = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
            return inner.socket.is_readable()
        return None
