"""Requests to indexes: TLS, credentials, redirects, limits."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus

import httpcore2
import trio

from nsm.dataclass import dataclass
from nsmd.environments.packages.index_proxy.connecting import CheckedBackend
from nsmd.environments.packages.index_proxy.errors import FetchError
from nsmd.environments.packages.index_proxy.rules import FetchRules
from nsmd.environments.packages.index_proxy.variables import READ_TIMEOUT_S
from nsmd.environments.packages.indexes.user_proxy import is_excepted
from nsmd.environments.packages.indexes.values import IndexAccess
from nsmd.environments.packages.web_urls import BadUrlError, WebUrl, join, parse_url
from nsmd.model.host_rules import Host, show_host
from nsmd.network.resolver import Resolve

CONNECT_TIMEOUT_S = 20.0
"""Time to connect, including TLS."""

MAX_CONNECTIONS = 64
"""Connections to indexes at once; uv begins 50 downloads. Further requests wait."""

WAIT_FOR_CONNECTION_S = 300.0

KEEP_ALIVE_S = 30.0

MAX_REDIRECTS = 5

_REDIRECTS = frozenset({301, 302, 303, 307, 308})

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAnswer:
    """Answer of an index, after redirects.

    Attributes:
        url: URL that it came from.
        headers: names in lower case.
        chunks: its body; reading it raises `FetchError`.
    """

    status: int
    url: WebUrl
    headers: Mapping[bytes, bytes]
    chunks: AsyncIterable[bytes]


class Fetcher:
    """All requests of one build to one kind of index.

    Args:
        received: called with the size of each piece of a body.
    """

    def __init__(
        self,
        access: IndexAccess,
        rules: FetchRules,
        resolve: Resolve,
        received: Callable[[int], None],
    ) -> None:
        self._access = access
        self._rules = rules
        self._resolve = resolve
        self._received = received
        self._pools: dict[tuple[bool, str], httpcore2.AsyncConnectionPool] = {}

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.aclose()

    @asynccontextmanager
    async def fetch(
        self, method: bytes, url: WebUrl, headers: Headers, *, source: WebUrl | None
    ) -> AsyncGenerator[IndexAnswer]:
        """Request a URL.

        Args:
            source: page that leads there; None for an index's own URL.

        Raises:
            FetchError: it is refused, or nobody answers as expected.
        """
        for _ in range(MAX_REDIRECTS + 1):
            self._rules.check(url, source=source)
            async with self._request(method, url, headers) as response:
                if response.status not in _REDIRECTS:
                    async with aclosing(self._chunks(response, url)) as chunks:
                        yield IndexAnswer(
                            status=response.status,
                            url=url,
                            headers={name.lower(): value for name, value in response.headers},
                            chunks=chunks,
                        )
                    return
                source, url = url, _target(url, response)
        raise FetchError(
            HTTPStatus.BAD_GATEWAY,
            f"{show_host(url.host)} redirects more than {MAX_REDIRECTS} times",
        )

    @asynccontextmanager
    async def _request(
        self, method: bytes, url: WebUrl, headers: Headers
    ) -> AsyncGenerator[httpcore2.Response]:
        read_s = self._access.timeout_s or READ_TIMEOUT_S
        sent = [(b"Host", url.authority.encode()), *headers]
        if (credentials := self._rules.credentials(url)) is not None:
            sent.append((b"Authorization", credentials.authorization()))
        request = httpcore2.Request(
            method,
            httpcore2.URL(scheme=url.scheme, host=str(url.host), port=url.port, target=url.target),
            headers=sent,
            extensions={
                "timeout": {
                    "connect": CONNECT_TIMEOUT_S,
                    "read": read_s,
                    "write": read_s,
                    "pool": WAIT_FOR_CONNECTION_S,
                }
            },
        )
        pool = self._pool(url)
        try:
            response = await pool.handle_async_request(request)
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise _failure(url, error) from error
        except (httpcore2.TimeoutException, httpcore2.ProxyError) as error:
            raise _failure(url, error) from error
        try:
            yield response
        finally:
            with trio.CancelScope(shield=True):
                await response.aclose()

    async def _chunks(self, response: httpcore2.Response, url: WebUrl) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(response.aiter_stream()) as pieces:
                async for piece in pieces:
                    self._received(len(piece))
                    yield piece
        except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise _failure(url, error) from error
        except httpcore2.TimeoutException as error:
            raise _failure(url, error) from error

    def _pool(self, url: WebUrl) -> httpcore2.AsyncConnectionPool:
        proxy = self._proxy(url)
        insecure = _is_insecure(url, self._access.insecure_hosts)
        pool = self._pools.get((insecure, proxy))
        if pool is None:
            pool = self._pools[insecure, proxy] = httpcore2.AsyncConnectionPool(
                ssl_context=_context(self._access, insecure=insecure),
                proxy=_user_proxy(proxy, self._access) if proxy else None,
                max_connections=MAX_CONNECTIONS,
                max_keepalive_connections=MAX_CONNECTIONS,
                keepalive_expiry=KEEP_ALIVE_S,
                retries=1,
                network_backend=CheckedBackend(self._resolve, None if proxy else self._rules.names),
            )
        return pool

    def has_user_proxy(self, host: Host, port: int, scheme: str = "https") -> bool:
        """Return whether a host is reached through the user's own proxy."""
        proxy = self._access.proxies.get(scheme)
        return bool(proxy) and not is_excepted(host, port, self._access.no_proxy)

    def _proxy(self, url: WebUrl) -> str:
        if not self.has_user_proxy(url.host, url.port, url.scheme):
            return ""
        if not self._rules.names(url.host, url.port):
            raise FetchError(
                HTTPStatus.FORBIDDEN,
                f"{show_host(url.host)} is linked to, but behind the user's proxy nsm cannot tell "
                "whether its address is public; the user can list it for builds",
            )
        return self._access.proxies[url.scheme]


def _target(url: WebUrl, response: httpcore2.Response) -> WebUrl:
    shown = show_host(url.host)
    location = next((v for name, v in response.headers if name.lower() == b"location"), b"")
    try:
        found, _ = join(url, location.decode("latin-1"))
    except BadUrlError as error:
        raise FetchError(
            HTTPStatus.BAD_GATEWAY, f"{shown} redirects to a place that {error}"
        ) from None
    return found


def _is_insecure(url: WebUrl, hosts: Sequence[str]) -> bool:
    host = show_host(url.host)
    return any(each in ("*", host, f"{host}:{url.port}") for each in hosts)


def _context(access: IndexAccess, *, insecure: bool) -> ssl.SSLContext:
    """Make the settings of TLS.

    Raises:
        FetchError: a file of the user's configuration cannot be used.
    """
    try:
        context = _trusting(access)
        if access.more_certificates:
            context.load_verify_locations(access.more_certificates)
        if access.client_certificate:
            context.load_cert_chain(access.client_certificate, access.client_key)
    except (OSError, ValueError) as error:  # an error of TLS is an OSError
        raise FetchError(
            HTTPStatus.BAD_GATEWAY,
            "a file of certificates that the configuration of pip, uv or npm names cannot be used: "
            f"{getattr(error, 'strerror', None) or error}",
        ) from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _trusting(access: IndexAccess) -> ssl.SSLContext:
    if access.certificate_texts:
        return ssl.create_default_context(cadata="\n".join(access.certificate_texts))
    directories = _directories(access.certificates or "")
    if directories:
        context = ssl.create_default_context(capath=directories[0])
        for directory in directories[1:]:
            context.load_verify_locations(capath=directory)
        return context
    if access.certificates:
        return ssl.create_default_context(cafile=access.certificates)
    return httpcore2.default_ssl_context()


def _directories(places: str) -> list[str]:
    """Directories of certificates; SSL_CERT_DIR may name several, as for OpenSSL."""
    if os.path.isdir(places):
        return [places]
    return [each for each in places.split(os.pathsep) if os.path.isdir(each)]


def _user_proxy(text: str, access: IndexAccess) -> httpcore2.Proxy:
    """Make the settings for the user's own proxy.

    Raises:
        FetchError: it is none that can be used.
    """
    try:
        url, login = parse_url(text if "://" in text else f"http://{text}")
    except BadUrlError as error:
        why = (
            "is a SOCKS proxy, which nsm does not support" if "socks" in text[:8].lower() else error
        )
        raise FetchError(HTTPStatus.BAD_GATEWAY, f"the user's own proxy {why}") from None
    return httpcore2.Proxy(
        httpcore2.URL(scheme=url.scheme, host=str(url.host), port=url.port, target="/"),
        auth=(login[0].encode(), login[1].encode()) if login else None,
        ssl_context=_context(access, insecure=False) if url.scheme == "https" else None,
    )


def _failure(url: WebUrl, error: Exception) -> FetchError:
    """Say why an index does not answer. Errors of libraries may quote headers, so they are not
    repeated.
    """
    shown = show_host(url.host)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return FetchError(
                HTTPStatus.BAD_GATEWAY,
                f"the certificate of {shown} is not accepted: {cause.verify_message}; the setting "
                "`cert` of pip names further ones, `cafile` of npm",
            )
        if isinstance(cause, ssl.SSLError):
            return FetchError(HTTPStatus.BAD_GATEWAY, f"{shown} does not speak TLS as expected")
        cause = cause.__cause__ or cause.__context__  # httpcore raises `from None`
    if isinstance(error, httpcore2.ProxyError):
        return FetchError(
            HTTPStatus.BAD_GATEWAY,
            f"the user's own proxy does not lead to {shown}: it says {str(error)[:60]}",
        )
    if isinstance(error, httpcore2.TimeoutException):
        return FetchError(HTTPStatus.GATEWAY_TIMEOUT, f"{shown} does not answer in time")
    if isinstance(error, httpcore2.ConnectError):
        return FetchError(HTTPStatus.BAD_GATEWAY, f"no connection to {shown}: {error}")
    return FetchError(
        HTTPStatus.BAD_GATEWAY, f"{shown} ended its answer early, or gave none that is valid"
    )
