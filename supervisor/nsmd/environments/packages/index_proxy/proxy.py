"""The proxy of one build."""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

import trio

from nsmd.environments.packages.index_proxy.connecting import open_connection
from nsmd.environments.packages.index_proxy.connection import elsewhere, serve_connection
from nsmd.environments.packages.index_proxy.errors import FetchError
from nsmd.environments.packages.index_proxy.fetching import Fetcher
from nsmd.environments.packages.index_proxy.handler import KnownIndex, RequestHandler
from nsmd.environments.packages.index_proxy.proxy_urls import BASE, LISTED, ProxyUrls
from nsmd.environments.packages.index_proxy.rules import FetchRules
from nsmd.environments.packages.index_proxy.variables import (
    conda_variables,
    npm_variables,
    proxy_variables,
    python_variables,
)
from nsmd.environments.packages.indexes.values import Index, Indexes
from nsmd.environments.packages.jail_start import ADDRESS
from nsmd.environments.packages.web_urls import BadUrlError, parse_url
from nsmd.model.host_rules import AllowList, BadHostError, parse_authority, show_host
from nsmd.network.resolver import Resolve, SystemResolver
from nsmd.network.serving import relay

log = logging.getLogger(__name__)

PORT = ADDRESS[1]
"""Port of the proxy on the jail's own loopback. It is always the same, since variables of a build
name it before there is a jail.
"""

MAX_CONNECTIONS = 128
"""Connections of jails at once; further ones wait."""

MAX_PROBLEMS = 50


class IndexProxy:
    """The proxy of one build. All its URLs are the same in each build, so that caches work.

    Attributes:
        python_index_urls: indexes as the jail has to name them, the default first; a ``file:``
            index has its own URL.
        link_page_urls: pages for `--find-links`.
        conda_channels: channels of conda as the jail has to name them.
        npm_registries: registries by scope; the default one has an empty scope.
        environment: variables for pip, uv and npm in the jail. Local directories
            (`Indexes.directories`) have to be at their own paths there.
        bytes_received: bytes that came from the indexes so far.
        problems: sentences about requests that failed, each once, the last 50.
    """

    def __init__(
        self, indexes: Indexes, *, key: bytes, listed: AllowList, resolve: Resolve
    ) -> None:
        self.bytes_received = 0
        self.problems: deque[str] = deque(maxlen=MAX_PROBLEMS)
        self._listed = listed
        self._resolve = resolve
        self._urls = ProxyUrls(key)
        self._known: list[KnownIndex] = []
        self.python_index_urls = tuple(self._add(each, "python") for each in indexes.python)
        self.link_page_urls = tuple(self._add(each, "links") for each in indexes.link_pages)
        self.npm_registries: Mapping[str, str] = {
            each.scope: self._add(each, "npm") for each in indexes.npm
        }
        self.conda_channels = tuple(self._add(each, "conda") for each in indexes.conda)
        self.environment: Mapping[str, str] = {
            **proxy_variables(PORT),
            **python_variables(indexes, self.python_index_urls, self.link_page_urls),
            **npm_variables(indexes, self.npm_registries),
            **conda_variables(self.conda_channels),
        }
        self._rules = FetchRules(
            (*indexes.python, *indexes.link_pages, *indexes.npm, *indexes.conda),
            listed,
            indexes.logins,
        )
        self._fetchers = [
            Fetcher(access, self._rules, resolve, self._received)
            for access in (indexes.python_access, indexes.npm_access)
        ]
        self._handler = RequestHandler(
            self._known,
            urls=self._urls,
            python=self._fetchers[0],
            npm=self._fetchers[1],
            failed=self._failed,
        )
        self._places = trio.Semaphore(MAX_CONNECTIONS)

    def __repr__(self) -> str:
        return f"<IndexProxy of {len(self._known)} indexes>"

    def _add(self, index: Index, kind: str) -> str:
        """Make an index known. Returns its URL for the jail."""
        if index.url.startswith("file:"):
            return index.url
        url, _ = parse_url(index.url)
        known = KnownIndex(name=index.name, url=url, slug=self._urls.slug(url), kind=kind)
        self._known.append(known)
        return known.proxy_url

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
            server = await open_connection(self._resolve, self._rules.names, host, port)
        except OSError as error:
            raise FetchError(HTTPStatus.BAD_GATEWAY, f"no connection to {shown}: {error}") from None
        async with server:
            await client.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await server.send_all(early)
            await relay(client, server, _ignore, self._received)

    def proxy_url(self, url: str) -> str | None:
        """Return the URL under which the jail may fetch a file of an index or of a host that the
        user lists; None if it may not.
        """
        try:
            parsed, _ = parse_url(url)
            for known in self._known:
                below = parsed.below(known.url)
                if known.kind == "conda" and below is not None:
                    return known.proxy_url + below
                if known.kind == "npm" and below is not None:
                    return self._urls.npm_file(known.slug, known.url, parsed)
            self._rules.check(parsed, source=None)
        except (BadUrlError, FetchError):
            return None
        return self._urls.file(LISTED, parsed)

    def index_url(self, proxy_url: str) -> str | None:
        """Return the URL behind a URL of the proxy, without credentials; None if there is none."""
        request = self._urls.parse(proxy_url.removeprefix(BASE).partition("#")[0])
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
