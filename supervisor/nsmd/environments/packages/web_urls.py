"""URLs of indexes, and of what their pages link to; pure.

A URL is parsed here and nowhere else, so that a check and the connection after it read it alike.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import quote, unquote, urljoin, urlsplit

from nsm.dataclass import dataclass
from nsmd.model.host_rules import BadHostError, Host, parse_authority, show_host

DEFAULT_PORT_OF = {"http": 80, "https": 443}

MAX_URL = 8192
"""Longest URL; signed ones of object stores take one or two thousand characters."""

_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
"""Characters that programs read in different ways, or that end a line of a request."""

_SAFE = "/%:@!$&'()*+,;=-._~?"
"""Characters of a path or query that stay as they are (RFC 3986, 3.3 and 3.4)."""

_PLAIN = re.compile(r"(https?)://([a-z0-9.-]+)((?:/[A-Za-z0-9_~+-][A-Za-z0-9._~+-]*)+)(?:#.*)?")
"""Link in which nothing has to be resolved or quoted, as all links of large indexes are. A page has
thousands, and reading such a one takes a tenth of the time.
"""

Origin = tuple[str, Host, int]
"""Scheme, host and port."""


class BadUrlError(ValueError):
    """An invalid URL. The message does not repeat it, since it may hold a password."""


@dataclass(frozen=True, slots=True)
class WebUrl:
    """URL of `http` or `https`, without user, password and fragment.

    Attributes:
        path: in ASCII, begins with a slash, has no segment ``.`` or ``..``.
        query: without its question mark.
    """

    scheme: str
    host: Host
    port: int
    path: str
    query: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.target}"

    @property
    def authority(self) -> str:
        """Host, and the port if it is not the scheme's own."""
        if self.port == DEFAULT_PORT_OF[self.scheme]:
            return show_host(self.host)
        return show_host(self.host, self.port)

    @property
    def origin(self) -> Origin:
        """Scheme, host and port."""
        return self.scheme, self.host, self.port

    @property
    def target(self) -> str:
        """Path and query, as in a request."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def file_name(self) -> str:
        """Last segment of the path, decoded."""
        return unquote(self.path.rpartition("/")[2])

    def with_suffix(self, suffix: str) -> WebUrl:
        """Return the URL with more text at the end of its path."""
        return WebUrl(self.scheme, self.host, self.port, self.path + _quoted(suffix), self.query)

    def as_directory(self) -> WebUrl:
        """Return the URL with a slash at the end of its path."""
        path = self.path if self.path.endswith("/") else f"{self.path}/"
        return WebUrl(self.scheme, self.host, self.port, path, self.query)

    def below(self, base: WebUrl) -> str | None:
        """Return the path below a directory, which may be empty; None if it is not below it."""
        if self.origin != base.origin or self.query or not self.path.startswith(base.path):
            return None
        return self.path[len(base.path) :]


def parse_url(text: str) -> tuple[WebUrl, tuple[str, str] | None]:
    """Parse a URL. Returns it, and the user and password in it.

    Raises:
        BadUrlError: it is no URL of `http` or `https`.
    """
    text = text.strip(" \t\r\n\f")
    if len(text) > MAX_URL:
        raise BadUrlError(f"has more than {MAX_URL} characters")
    if _FORBIDDEN.search(text):
        raise BadUrlError("has a control character or a backslash")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise BadUrlError("is no URL") from None
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORT_OF:
        raise BadUrlError("is no http:// or https:// URL")
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
    return WebUrl(scheme, host, port, _clean_path(parts.path), _quoted(parts.query)), login


def join(page: WebUrl, link: str) -> tuple[WebUrl, tuple[str, str] | None]:
    """Resolve a link of a page. Returns as `parse_url`.

    Raises:
        BadUrlError: it leads to no URL of `http` or `https`.
    """
    if (plain := _PLAIN.fullmatch(link)) is not None and len(link) <= MAX_URL:
        return WebUrl(*_place(plain[1], plain[2]), plain[3]), None
    if _FORBIDDEN.search(link.strip(" \t\r\n\f")):
        raise BadUrlError("has a control character or a backslash")
    if len(link) > MAX_URL:
        raise BadUrlError(f"has more than {MAX_URL} characters")
    try:
        return parse_url(urljoin(str(page), link.strip(" \t\r\n\f")))
    except BadUrlError:
        raise
    except ValueError:
        raise BadUrlError("is no URL") from None


@lru_cache(256)
def _place(scheme: str, authority: str) -> Origin:
    url, _ = parse_url(f"{scheme}://{authority}/")
    return url.origin


def _quoted(text: str) -> str:
    return quote(text, safe=_SAFE)


def _clean_path(path: str) -> str:
    """Quote a path, and resolve its ``.`` and ``..`` (RFC 3986, 5.2.4)."""
    kept: list[str] = []
    segments = _quoted(path).split("/")
    for place, segment in enumerate(segments):
        plain = segment.replace("%2e", ".").replace("%2E", ".")
        if plain in (".", ".."):
            if plain == ".." and len(kept) > 1:
                kept.pop()
            if place == len(segments) - 1:
                kept.append("")
        else:
            kept.append(segment)
    cleaned = "/".join(kept)
    return cleaned if cleaned.startswith("/") else f"/{cleaned}"
