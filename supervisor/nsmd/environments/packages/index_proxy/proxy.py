"""The proxy of one build."""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

import trio

from nsmd.environments.packages.index_proxy.connecting import open_connection
from nsmd.environments.packages.index_proxy.connection import elsewhere, serve_connection
from nsmd.environments.packages.index_proxy.errors import FetchError
from nsmd.environments.packages.index_proxy.fetching import Fetcher
from nsmd.environments.packages.index_proxy.handler import RequestHandler
from nsmd.environments.packages.index_proxy.known_indexes import KnownIndexes
from nsmd.environments.packages.index_proxy.proxy_urls import BASE
from nsmd.environments.packages.indexes.values import Indexes
from nsmd.model.host_rules import AllowList, BadHostError, parse_authority, show_host
from nsmd.network.resolver import Resolve, SystemResolver
from nsmd.network.serving import relay

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 128
"""Connections of jails at once; further ones wait."""

MAX_PROBLEMS = 50


class IndexProxy(KnownIndexes):
    """The proxy of one build.

    Attributes:
        bytes_received: bytes that came from the indexes so far.
        problems: sentences about requests that failed, each once, the last 50.
    """

    def __init__(
        self, indexes: Indexes, *, key: bytes, listed: AllowList, resolve: Resolve
    ) -> None:
        super().__init__(indexes, key=key, listed=listed)
        self.bytes_received = 0
        self.problems: deque[str] = deque(maxlen=MAX_PROBLEMS)
        self._listed = listed
        self._resolve = resolve
        self._fetchers = [
            Fetcher(access, self.rules, resolve, self._received)
            for access in (indexes.python_access, indexes.npm_access)
        ]
        self._handler = RequestHandler(
            self._known,
            urls=self.urls,
            python=self._fetchers[0],
            npm=self._fetchers[1],
            failed=self._failed,
        )
        self._places = trio.Semaphore(MAX_CONNECTIONS)

    def _received(self, size: int) -> None:
        self.bytes_received += size

    def _failed(self, detail: str) -> None:
        if detail not in self.problems:
            self.problems.append(detail)
            log.info("packages: %s", detail)

    async def aclose(self) -> None:
        """Close all connections to indexes."""
        for fetcher in self._fetchers:
            await fetcher.aclose()

    async def serve(self, listener: socket.socket) -> None:
        """Serve connections until cancelled.

        Args:
            listener: a listening TCP socket of the jail, which nobody inside has any more; closed
                at the end.
        """
        listener.setblocking(False)
        accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        async with accepting, trio.open_nursery() as nursery:
            while True:
                await self._places.acquire()
                nursery.start_soon(self._serve, await accepting.accept())

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            await serve_connection(stream, self._handler.handle, self._tunnel)
        except Exception:  # a fault of ours costs this connection
            log.exception("a connection of a build failed")
        finally:
            self._places.release()

    async def _tunnel(self, target: str, client: trio.SocketStream, early: bytes) -> None:
        """Serve `CONNECT`, which only reaches hosts that the user lists.

        Raises:
            FetchError: it is refused, or nobody answers.
        """
        try:
            host, port = parse_authority(target)
        except BadHostError as error:
            raise FetchError(HTTPStatus.BAD_REQUEST, f"the target of CONNECT {error}") from None
        shown = show_host(host, port)
        if not self._listed.permits(host, port):
            self._failed(f"{shown} was asked for, and the user does not list it for builds")
            raise elsewhere()
        if self._fetchers[0].has_user_proxy(host, port):
            raise FetchError(
                HTTPStatus.BAD_GATEWAY,
                f"{shown} is not reached: only packages get through the user's own proxy",
            )
        try:
            server = await open_connection(self._resolve, self.rules.names, host, port)
        except OSError as error:
            raise FetchError(HTTPStatus.BAD_GATEWAY, f"no connection to {shown}: {error}") from None
        async with server:
            await client.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await server.send_all(early)
            await relay(client, server, _ignore, self._received)

    def index_url(self, proxy_url: str) -> str | None:
        """Return the URL behind a URL of the proxy, without credentials; None if there is none."""
        request = self.urls.parse(proxy_url.removeprefix(BASE).partition("#")[0])
        target = None if request is None else self._handler.target(request)
        return None if target is None else str(target)


@asynccontextmanager
async def open_index_proxy(
    indexes: Indexes,
    *,
    key: bytes,
    hosts: Sequence[str] = (),
    resolve: Resolve | None = None,
) -> AsyncGenerator[IndexProxy]:
    """Make a proxy, which `serve`s sockets of jails.

    Args:
        indexes: indexes that builds may reach.
        key: 32 secret random bytes, the same for all builds of the user.
        hosts: patterns of further hosts that the user lists.
        resolve: looks up names; None for the host's resolver.

    Raises:
        HostRuleError: a pattern is invalid.
    """
    listed = AllowList.of(hosts)
    proxy = IndexProxy(indexes, key=key, listed=listed, resolve=resolve or SystemResolver())
    try:
        yield proxy
    finally:
        with trio.CancelScope(shield=True):
            await proxy.aclose()


def _ignore(_size: int) -> None:
    """Count nothing: sent bytes are in no progress."""
