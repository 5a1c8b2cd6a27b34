"""The user's indexes of packages, their URLs, and the directories of those on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from urllib.parse import quote, unquote, urljoin, urlsplit

from nsm.dataclass import dataclass, field
from nsmd.model.host_rules import BadHostError, Host, parse_authority, show_host

DEFAULT_PORT_OF = {"http": 80, "https": 443}

MAX_URL = 8192

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
"""Characters that programs read in different ways, or that separate URLs in a variable."""


class BadUrlError(ValueError):
    """An invalid URL. The message does not repeat it, since it may hold a password."""


@dataclass(frozen=True, slots=True)
class WebUrl:
    """URL of `http` or `https`, without user, password and fragment. Its path is in ASCII and
    begins with a slash; its query has no question mark.
    """

    scheme: str
    host: Host
    port: int
    path: str
    query: str = ""

    def __str__(self) -> str:
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.authority}{self.path}{query}"

    @property
    def authority(self) -> str:
        """Host, and the port if it is not the scheme's own."""
        if self.port == DEFAULT_PORT_OF[self.scheme]:
            return show_host(self.host)
        return show_host(self.host, self.port)

    @property
    def place(self) -> str:
        """Host and port, as a pattern for a list of hosts."""
        return show_host(self.host, self.port)

    def as_directory(self) -> WebUrl:
        """Return the URL with a slash at the end of its path."""
        path = self.path if self.path.endswith("/") else f"{self.path}/"
        return WebUrl(self.scheme, self.host, self.port, path, self.query)

    def with_login(self, user: str, password: str) -> str:
        """Return the URL as a text with a login, as programs take it."""
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return str(self).replace("://", f"://{login}@", 1)


def parse_url(text: str) -> tuple[WebUrl, tuple[str, str] | None]:
    """Parse a URL, or raise BadUrlError. Returns it, and the user and password in it."""
    text = text.strip(" \t\r\n\f")
    if len(text) > MAX_URL:
        raise BadUrlError(f"has more than {MAX_URL} characters")
    if _FORBIDDEN.search(text):
        raise BadUrlError("has a space, a control character or a backslash")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise BadUrlError("is not a URL") from None
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORT_OF:
        raise BadUrlError("is not an http:// or https:// URL")
    userinfo, at, authority = parts.netloc.rpartition("@")
    if "@" in userinfo:
        raise BadUrlError("has more than one @ before its path")
    try:
        host, port = parse_authority(authority.removesuffix(":"), DEFAULT_PORT_OF[scheme])
    except BadHostError as error:
        raise BadUrlError(f"has an invalid host: it {error}") from None
    login = None
    if at:
        user, _, password = userinfo.partition(":")
        login = unquote(user), unquote(password)
    path, query = (quote(each, safe="/%:@!$&'()*+,;=-._~?") for each in (parts.path, parts.query))
    return WebUrl(scheme, host, port, path or "/", query), login


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """One index.

    Attributes:
        name: name for messages, from the configuration or made of the host.
        url: its URL, without credentials: ``http:``, ``https:`` or ``file:``.
        login: user and password. Those of npm are in its settings.
        scope: of npm: the scope that it serves (``@company``); empty for all others.
        named: by the user, or it is a public service. Else a project names it, and a pattern of the
            user's permits that, perhaps one for every host: it must have a public address then.
    """

    name: str
    url: str = field(repr=False)  # some have a token in their path
    login: tuple[str, str] | None = field(default=None, repr=False)
    scope: str = ""
    named: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAccess:
    """Settings for connections to all indexes of one kind.

    Attributes:
        certificates: file of certificates to trust in place of the usual ones, or directories.
        more_certificates: file of certificates to trust as well.
        client_certificate: file with the user's own certificate and its key.
        insecure_hosts: ``HOST`` or ``HOST:PORT`` whose certificate is not checked.
        proxies: the user's own proxy for ``http`` and ``https``; may hold a password.
        no_proxy: hosts that are reached without it, as in ``NO_PROXY``.
        timeout_s: None for the usual one.
        retries: None for the usual number.
    """

    certificates: str | None = None
    more_certificates: str | None = None
    client_certificate: str | None = None
    insecure_hosts: tuple[str, ...] = ()
    proxies: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    no_proxy: tuple[str, ...] = ()
    timeout_s: float | None = None
    retries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexes:
    """All indexes of the user.

    Attributes:
        python: the first one is the default.
        npm: the one without a scope is the default.
        conda: places of the channels of conda that a build asks, the first one preferred.
        link_pages: pages with links to Python packages (`--find-links URL`).
        find_links: absolute local directories with wheels, or pages with links.
        directories: all local directories that a build has to see: those of `find_links` and of
            ``file:`` indexes.
        constraints: absolute paths of files with constraints for every resolution.
        index_strategy: uv's setting of that name; empty if there is none.
        npm_settings: npm's settings that concern registries, as its variables; with credentials.
        logins: users and passwords by host, from netrc.
        python_problems: sentences about configuration of pip and uv that is invalid or cannot be
            read. A build must not begin then: it might take packages from elsewhere than the user
            has chosen.
        npm_problems: the same for npm.
        conda_problems: the same for channels of conda.
        notes: sentences about what is left out and does no harm.
    """

    python: tuple[Index, ...] = ()
    npm: tuple[Index, ...] = ()
    conda: tuple[Index, ...] = ()
    link_pages: tuple[Index, ...] = ()
    find_links: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    index_strategy: str = ""
    python_access: IndexAccess = IndexAccess()
    npm_access: IndexAccess = IndexAccess()
    npm_settings: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    logins: Mapping[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]], repr=False
    )
    python_problems: tuple[str, ...] = ()
    npm_problems: tuple[str, ...] = ()
    conda_problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


MAX_PAGES = 64
"""Pages of one index that are read; an index has its files in few directories."""

MAX_PAGE_BYTES = 4 * 1024 * 1024
MAX_DIRECTORIES = 16


def local_path(url: str) -> str | None:
    """Return the path of a ``file:`` URL of this machine; None if it is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        return None
    path = os.path.normpath(unquote(parts.path))
    return path if os.path.isabs(path) and "\0" not in path else None


def linked_directories(place: str) -> list[str]:
    """Return the directory of an index or page, and those of files that its pages link to.

    A local index often keeps its pages in one directory and its files in another. A build sees only
    directories that it is shown.
    """
    found = {place: None} if os.path.isdir(place) else {os.path.dirname(place): None}
    for page in _pages(place):
        for link in _links(page):
            path = local_path(urljoin(f"file://{page}", link))
            if path is None or any(_is_below(path, known) for known in found):
                continue
            directory = os.path.dirname(path)
            if os.path.isfile(path) and directory != "/" and len(found) < MAX_DIRECTORIES:
                found[directory] = None
    return list(found)


def _pages(place: str) -> list[str]:
    if os.path.isfile(place):
        return [place]
    try:
        with os.scandir(place) as entries:
            names = sorted(entry.name for entry in entries)
    except OSError:
        return []
    inner = (os.path.join(place, name, "index.html") for name in names)
    pages = [page for page in inner if os.path.isfile(page)]
    step = max(1, len(pages) // MAX_PAGES)
    return pages[::step][:MAX_PAGES]


def _links(page: str) -> list[str]:
    try:
        with open(page, "rb") as file:
            text = file.read(MAX_PAGE_BYTES).decode(errors="replace")
    except OSError:
        return []
    parser = _Links()
    parser.feed(text)
    return parser.found


def _is_below(path: str, directory: str) -> bool:
    return path.startswith(f"{directory.rstrip('/')}/")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]
