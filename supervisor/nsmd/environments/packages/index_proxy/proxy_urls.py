"""URLs of the proxy: made of those of the indexes, and back; pure.

They show the jail nothing but the index's host and a file's name: paths and queries of some indexes
hold tokens. So a link is encrypted. That it can be decrypted proves that the proxy has made it from
a page of that index, in this build or an earlier one, and nothing has to be remembered. The
encryption is deterministic (AES-SIV, RFC 5297): the same link has the same URL in each build.
"""

from __future__ import annotations

import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from urllib.parse import quote, unquote

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from nsm.dataclass import dataclass
from nsmd.environments.packages.web_urls import BadUrlError, WebUrl, parse_url

HOST = "index.nsm.internal"
"""Name of the proxy in a jail."""

BASE = f"http://{HOST}"

LISTED = "listed"
"""Name for hosts that the user lists, where others have the name of an index."""

NOTHING = f"{BASE}/nothing/"
"""URL of an index without packages."""

METADATA = ".metadata"
"""End of the URL of a wheel's metadata (PEP 658)."""

_LAYOUT = b"1"
"""Increased whenever the same page is rewritten in another way: caches in jails keep pages."""

_PROJECT = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9])?")
_PACKAGE = r"(?:@[A-Za-z0-9~-][A-Za-z0-9._~-]{0,213}/)?[A-Za-z0-9~_-][A-Za-z0-9._~-]{0,213}"
_NPM_PAGE = re.compile(_PACKAGE)
_NPM_FILE = re.compile(rf"{_PACKAGE}/-/(?:@[A-Za-z0-9._~-]+/)?[A-Za-z0-9_~-][A-Za-z0-9._~+-]*")
_CONDA_FILE = re.compile(r"[a-z0-9]+(?:-[a-z0-9_]+)?/[A-Za-z0-9_][A-Za-z0-9._+!~-]*")
_BEFORE_FILE = re.compile(rf"{BASE}/(?:files/[^/\s]+/[^/\s]+|(?:npm|conda)/[^/\s]+)/")
_PARTS = re.compile(r"/(python|links|npm|conda|files)/([a-z0-9_.-]+)/(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PythonPage:
    """Request for the page of a project."""

    index: str
    project: str


@dataclass(frozen=True, slots=True)
class LinkPage:
    """Request for a page of `--find-links`."""

    index: str


@dataclass(frozen=True, slots=True)
class NpmPage:
    """Request for the description of a package of npm, in its form as a path."""

    index: str
    package: str


@dataclass(frozen=True, slots=True)
class NpmFile:
    """Request for a file that is at its usual place below a registry."""

    index: str
    path: str


@dataclass(frozen=True, slots=True)
class CondaFile:
    """Request for a file of a channel of conda, such as its list of packages."""

    index: str
    path: str


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """Request for something that a page links to."""

    index: str
    url: WebUrl


ProxyRequest = PythonPage | LinkPage | NpmPage | NpmFile | CondaFile | LinkedFile


class ProxyUrls:
    """Translation of URLs.

    Args:
        key: 32 secret bytes.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError(f"the key has {len(key)} bytes, expected 32")
        self._seal = AESSIV(hmac.digest(key, b"links" + _LAYOUT, "sha256"))
        self._slug_key = hmac.digest(key, b"names" + _LAYOUT, "sha256")

    def slug(self, url: WebUrl) -> str:
        """Return the name of an index in URLs: another one for each URL and key."""
        digest = hmac.digest(self._slug_key, str(url).encode(), "sha256")
        return f"{str(url.host).replace(':', '-')}-{digest.hex()[:12]}"

    def file(self, index: str, url: WebUrl, name: str = "") -> str:
        """Return the URL of a file that a page of an index links to.

        Args:
            index: name of the index.
            name: name of the file; empty for the one in its URL.
        """
        sealed = self._seal.encrypt(str(url).encode(), [index.encode()])
        token = urlsafe_b64encode(sealed).rstrip(b"=").decode()
        return f"{BASE}/files/{index}/{token}/{quote(name or url.file_name or 'file')}"

    def npm_file(self, index: str, registry: WebUrl, url: WebUrl) -> str:
        """Return the URL of a file of npm. At its usual place it stays readable, so that a lock
        file can have it.
        """
        path = url.below(registry)
        if path is not None and _NPM_FILE.fullmatch(unquote(path)) and ".." not in path:
            return f"{BASE}/npm/{index}/{path}"
        return self.file(index, url)

    def parse(self, path: str) -> ProxyRequest | None:
        """Read the path of a request of a jail; None if there is nothing under it."""
        if "?" in path or (parts := _PARTS.fullmatch(path)) is None:
            return None
        kind, index, rest = parts[1], parts[2], parts[3]
        if kind == "python":
            project = rest.removeprefix("simple/").removesuffix("/")
            there = rest.startswith("simple/") and _PROJECT.fullmatch(project)
            return PythonPage(index, project) if there else None
        if kind == "links":
            return LinkPage(index) if not rest else None
        if kind == "npm":
            return _npm(index, rest)
        if kind == "conda":
            return CondaFile(index, unquote(rest)) if _CONDA_FILE.fullmatch(unquote(rest)) else None
        return self._linked(index, rest)

    def _linked(self, index: str, rest: str) -> LinkedFile | None:
        token, slash, quoted = rest.partition("/")
        name = unquote(quoted)
        if not slash:
            return None
        try:
            sealed = urlsafe_b64decode(token + "=" * (-len(token) % 4))
            url, _ = parse_url(self._seal.decrypt(sealed, [index.encode()]).decode())
        except (InvalidTag, ValueError, BadUrlError):
            return None
        if name.endswith(METADATA) and not url.path.endswith(METADATA):
            url = url.with_suffix(METADATA)
        return LinkedFile(index, url)


def shortened(text: str) -> str:
    """Replace URLs of files in a text by the names of the files or packages, which people know."""
    return _BEFORE_FILE.sub("", text)


def _npm(index: str, rest: str) -> NpmPage | NpmFile | None:
    path = unquote(rest)  # `@scope%2fname`
    if ".." in path:
        return None
    if _NPM_PAGE.fullmatch(path):
        return NpmPage(index, path.replace("/", "%2f"))
    if _NPM_FILE.fullmatch(path):
        return NpmFile(index, path)
    return None
