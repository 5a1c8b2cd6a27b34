"""Handler of a jail's requests: it sends pages rewritten, and files as they are."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from urllib.parse import unquote

import trio

from nsmd.environments.packages.index_proxy.connection import Reply, RequestHead
from nsmd.environments.packages.index_proxy.errors import FetchError
from nsmd.environments.packages.index_proxy.fetching import Fetcher, IndexAnswer
from nsmd.environments.packages.index_proxy.known_indexes import KnownIndex
from nsmd.environments.packages.index_proxy.page_reading import PageMemory, read_page
from nsmd.environments.packages.index_proxy.page_rewriting import (
    HTML_TYPES,
    JSON_TYPE,
    BadPageError,
    rewrite_html,
    rewrite_json,
    rewrite_packument,
)
from nsmd.environments.packages.index_proxy.proxy_urls import (
    LISTED,
    CondaFile,
    LinkedFile,
    LinkPage,
    NpmFile,
    NpmPage,
    ProxyRequest,
    ProxyUrls,
    PythonPage,
)
from nsmd.environments.packages.web_urls import WebUrl
from nsmd.model.host_rules import show_host

PAGE_TIMEOUT_S = 180.0
"""Time for a whole page: an index may send a byte now and then."""

_SMALL_PAGE = 64 * 1024
"""Size of a page that is rewritten at once; larger ones in a thread."""

_MAX_REWRITING = 2
"""Large pages that are rewritten at once: parsed, they are several times as large."""

_PAGE_REQUEST = (b"accept", b"user-agent", b"if-none-match", b"if-modified-since", b"cache-control")
_FILE_REQUEST = (
    *(b"accept", b"user-agent", b"if-none-match", b"if-modified-since", b"if-match"),
    *(b"range", b"if-range"),
)
_PAGE_ANSWER = (b"etag", b"last-modified", b"cache-control", b"date", b"age", b"vary")
_FILE_ANSWER = (
    *_PAGE_ANSWER,
    *(b"content-type", b"content-length", b"content-range", b"accept-ranges", b"content-encoding"),
)
"""Headers that pass. All others stay here: cookies and addresses are among them."""

_PYPI = "pypi.org"
_PYPI_FRESH = b"max-age=600"
"""How long PyPI's pages are fresh. PyPI says it itself, but a proxy in front of it may leave it
out. uv assumes it for PyPI, too, but takes nsm's proxy for another index.
"""

_FILE_STATUSES = frozenset({200, 206, 304, 416})


class RequestHandler:
    """Handler of all requests of one proxy.

    Args:
        python: fetches what is of Python, and files of hosts that the user lists.
        npm: fetches what is of npm.
        failed: called with a sentence about each failed request.
    """

    def __init__(
        self,
        known: Iterable[KnownIndex],
        *,
        urls: ProxyUrls,
        python: Fetcher,
        npm: Fetcher,
        failed: Callable[[str], None],
    ) -> None:
        self._known: Mapping[tuple[str, str], KnownIndex] = {
            (each.kind, each.slug): each for each in known
        }
        self._urls = urls
        self._python = python
        self._npm = npm
        self._failed = failed
        self._memory = PageMemory()
        self._rewriting = trio.CapacityLimiter(_MAX_REWRITING)

    async def handle(self, head: RequestHead, reply: Reply) -> None:
        """Answer a request.

        Raises:
            FetchError: it is refused, or the index does not answer as expected.
        """
        try:
            await self._handle(head, reply)
        except FetchError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                self._failed(error.detail)
            raise

    async def _handle(self, head: RequestHead, reply: Reply) -> None:
        request = self._urls.parse(head.path)
        target = None if request is None else self.target(request)
        if request is None or target is None:
            raise FetchError(
                HTTPStatus.NOT_FOUND, "the proxy for packages has nothing under this URL"
            )
        if isinstance(request, LinkedFile | NpmFile | CondaFile):
            await self._file(head, reply, request, target)
        else:
            await self._page(head, reply, request, target)

    def target(self, request: ProxyRequest) -> WebUrl | None:
        """Return the URL that is fetched for a request; None if its index is not known."""
        if isinstance(request, LinkedFile):
            there = request.index == LISTED or self._index_of(request.index) is not None
            return request.url if there else None
        index = self._known.get((_KINDS[type(request)], request.index))
        if index is None:
            return None
        match request:
            case PythonPage():
                # As pip and uv write it (PEP 503); some indexes know no other form.
                project = re.sub(r"[-_.]+", "-", request.project).lower()
                return index.url.as_directory().with_suffix(f"{project}/")
            case LinkPage():
                return index.url
            case NpmPage():
                return index.url.with_suffix(request.package)
            case NpmFile() | CondaFile():
                return index.url.with_suffix(request.path)

    def _index_of(self, slug: str) -> KnownIndex | None:
        found = (self._known.get((kind, slug)) for kind in ("python", "links", "npm", "conda"))
        return next((index for index in found if index is not None), None)

    async def _page(
        self,
        head: RequestHead,
        reply: Reply,
        request: PythonPage | LinkPage | NpmPage,
        target: WebUrl,
    ) -> None:
        index = self._known[_KINDS[type(request)], request.index]
        fetcher = self._npm if isinstance(request, NpmPage) else self._python
        headers = [*_passing(head, _PAGE_REQUEST), (b"Accept-Encoding", b"gzip")]
        with trio.move_on_after(PAGE_TIMEOUT_S) as patience:
            async with fetcher.fetch(head.method, target, headers, source=None) as answer:
                kept = _kept(answer, _PAGE_ANSWER)
                if index.url.host == _PYPI and b"cache-control" not in answer.headers:
                    kept.append((b"Cache-Control", _PYPI_FRESH))
                if answer.status == HTTPStatus.NOT_MODIFIED:
                    patience.deadline = float("inf")
                    await reply.start(answer.status, kept)
                    await reply.end()
                    return
                if answer.status != HTTPStatus.OK:
                    raise _status_error(index.name, answer, _what(request))
                with self._memory.share() as share:
                    encoding = answer.headers.get(b"content-encoding", b"").strip().lower()
                    is_head = head.method == b"HEAD"
                    page = (
                        b""
                        if is_head
                        else await read_page(answer.chunks, encoding, share, index.name)
                    )
                    kind, made = await self._rewritten(index, answer, page, is_head=is_head)
                    patience.deadline = float("inf")
                    kept.append((b"Content-Type", kind))
                    if not is_head:
                        kept.append((b"Content-Length", str(len(made)).encode()))
                    await reply.start(answer.status, kept)
                    await reply.send(made)
                    await reply.end()
                return
        raise FetchError(
            HTTPStatus.GATEWAY_TIMEOUT,
            f"{index.name} takes longer than {PAGE_TIMEOUT_S:g} s for a page",
        )

    async def _rewritten(
        self, index: KnownIndex, answer: IndexAnswer, page: bytes, *, is_head: bool
    ) -> tuple[bytes, bytes]:
        """Rewrite a page. Returns its type and its bytes."""
        said = answer.headers.get(b"content-type", b"").decode("latin-1")
        kind, rewrite = self._rewriter(index, answer.url, said)
        if is_head:
            return kind, b""
        try:
            if len(page) <= _SMALL_PAGE:
                return kind, rewrite(page)
            made = await trio.to_thread.run_sync(rewrite, page, limiter=self._rewriting)
        except BadPageError as error:
            raise FetchError(
                HTTPStatus.BAD_GATEWAY, f"{index.name} sends a page that {error}"
            ) from None
        return kind, made

    def _rewriter(
        self, index: KnownIndex, url: WebUrl, said: str
    ) -> tuple[bytes, Callable[[bytes], bytes]]:
        def link(found: WebUrl, name: str) -> str:
            return self._urls.file(index.slug, found, name)

        if index.kind == "npm":
            rewrite = partial(self._urls.npm_file, index.slug, index.url)
            return b"application/json", partial(rewrite_packument, page=url, rewrite=rewrite)
        kind = said.partition(";")[0].strip().lower()
        if kind == JSON_TYPE:
            return kind.encode(), partial(rewrite_json, page=url, rewrite=link)
        if kind in HTML_TYPES:
            charset = _charset(said)
            return f"{kind}; charset=utf-8".encode(), lambda page: rewrite_html(
                page.decode(charset, "replace"), url, link
            ).encode()
        raise FetchError(
            HTTPStatus.BAD_GATEWAY,
            f"{index.name} sends no page of packages; is its URL the one that ends in /simple/?",
        )

    async def _file(
        self,
        head: RequestHead,
        reply: Reply,
        request: LinkedFile | NpmFile | CondaFile,
        target: WebUrl,
    ) -> None:
        index = self._index_of(request.index)
        is_npm = index is not None and index.kind == "npm"
        fetcher = self._npm if is_npm else self._python
        source = index.url if index is not None and isinstance(request, LinkedFile) else None
        packing = head.header(b"accept-encoding") or b"identity"
        headers = [*_passing(head, _FILE_REQUEST), (b"Accept-Encoding", packing)]
        async with fetcher.fetch(head.method, target, headers, source=source) as answer:
            if answer.status not in _FILE_STATUSES:
                raise _status_error(show_host(answer.url.host), answer, _what(request))
            kept = _kept(answer, _FILE_ANSWER)
            if answer.status == HTTPStatus.NOT_MODIFIED:
                kept = [(name, value) for name, value in kept if name != b"content-length"]
            await reply.start(answer.status, kept)
            if answer.status != HTTPStatus.NOT_MODIFIED:
                async for chunk in answer.chunks:
                    await reply.send(chunk)
            await reply.end()


_KINDS: Mapping[type, str] = {
    PythonPage: "python",
    LinkPage: "links",
    NpmPage: "npm",
    NpmFile: "npm",
    CondaFile: "conda",
}


def _passing(head: RequestHead, names: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name in names if (value := head.header(name))]


def _kept(answer: IndexAnswer, names: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    return [(name, answer.headers[name]) for name in names if name in answer.headers]


def _charset(said: str) -> str:
    found = re.search(r"charset=\"?([A-Za-z0-9_.:-]{1,40})", said)
    try:
        return codecs.lookup(found[1]).name if found else "utf-8"
    except LookupError:
        return "utf-8"


def _what(request: ProxyRequest) -> str:
    """Name what was asked for, as the jail knows it."""
    match request:
        case PythonPage():
            return request.project
        case LinkPage():
            return "such page"
        case NpmPage():
            return unquote(request.package)
        case NpmFile() | CondaFile():
            return request.path.rpartition("/")[2]
        case LinkedFile():
            return request.url.file_name or "such file"


def _status_error(name: str, answer: IndexAnswer, what: str) -> FetchError:
    """Say why there is no page or file. What the index itself says is not repeated."""
    status = answer.status
    said = answer.headers.get(b"retry-after", b"")
    retry_after = said if re.fullmatch(rb"\d{1,5}", said) else b""
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return FetchError(status, f"{name} has no {what}")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return FetchError(
            status,
            f"{name} answers {status}: the user's credentials for it are missing or not accepted",
        )
    if 400 <= status < 600:
        return FetchError(status, f"{name} answers {status}", retry_after=retry_after)
    return FetchError(HTTPStatus.BAD_GATEWAY, f"{name} answers {status}, which was not expected")
