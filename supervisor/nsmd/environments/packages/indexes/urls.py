"""URLs of indexes; pure."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote, urlsplit

from nsm.dataclass import dataclass
from nsmd.model.host_rules import BadHostError, Host, parse_authority, show_host

DEFAULT_PORT_OF = {"http": 80, "https": 443}

MAX_URL = 8192

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
"""Characters that programs read in different ways, or that separate URLs in a variable."""


class BadUrlError(ValueError):
    """An invalid URL. The message does not repeat it, since it may hold a password."""


@dataclass(frozen=True, slots=True)
class WebUrl:
    """URL of `http` or `https`, without user, password and fragment.

    Attributes:
        path: in ASCII, begins with a slash.
        query: without its question mark.
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
    """Parse a URL. Returns it, and the user and password in it.

    Raises:
        BadUrlError: it is no URL of `http` or `https`.
    """
    text = text.strip(" \t\r\n\f")
    if len(text) > MAX_URL:
        raise BadUrlError(f"has more than {MAX_URL} characters")
    if _FORBIDDEN.search(text):
        raise BadUrlError("has a space, a control character or a backslash")
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
    path, query = (quote(each, safe="/%:@!$&'()*+,;=-._~?") for each in (parts.path, parts.query))
    return WebUrl(scheme, host, port, path or "/", query), login
