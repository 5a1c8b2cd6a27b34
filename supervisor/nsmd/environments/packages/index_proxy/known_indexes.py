"""The user's indexes as the jail of a build names them.

A build from caches alone needs these names, and nobody who serves them.
"""

from __future__ import annotations

from collections.abc import Mapping

from nsm.dataclass import dataclass
from nsmd.environments.packages.index_proxy.errors import FetchError
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
from nsmd.environments.packages.web_urls import BadUrlError, WebUrl, parse_url
from nsmd.model.host_rules import AllowList

PORT = ADDRESS[1]
"""Port of the proxy on the jail's own loopback. It is always the same, since variables of a build
name it before there is a jail.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIndex:
    """An index that jails can ask.

    Attributes:
        name: name for errors.
        slug: its name in URLs of jails.
        kind: part of a jail's URL: ``python``, ``links``, ``npm`` or ``conda``.
    """

    name: str
    url: WebUrl
    slug: str
    kind: str

    @property
    def proxy_url(self) -> str:
        """Its URL in jails."""
        return f"{BASE}/{self.kind}/{self.slug}/{'simple/' if self.kind == 'python' else ''}"


class KnownIndexes:
    """All indexes of one build. Their URLs are the same in each build, so that caches work.

    Args:
        key: 32 secret random bytes, the same for all builds of the user.
        listed: further hosts that the user lists.

    Attributes:
        urls: translates URLs.
        rules: say what a build may fetch.
        python_index_urls: indexes as the jail has to name them, the default first; a ``file:``
            index has its own URL.
        link_page_urls: pages for `--find-links`.
        conda_channels: channels of conda as the jail has to name them.
        npm_registries: registries by scope; the default one has an empty scope.
        environment: variables for uv and npm in the jail. Local directories
            (`Indexes.directories`) have to be at their own paths there.
    """

    def __init__(self, indexes: Indexes, *, key: bytes, listed: AllowList) -> None:
        self.urls = ProxyUrls(key)
        self.rules = FetchRules(
            (*indexes.python, *indexes.link_pages, *indexes.npm, *indexes.conda),
            listed,
            indexes.logins,
        )
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._known)} indexes>"

    def _add(self, index: Index, kind: str) -> str:
        """Make an index known. Returns its URL for the jail."""
        if index.url.startswith("file:"):
            return index.url
        url, _ = parse_url(index.url)
        known = KnownIndex(name=index.name, url=url, slug=self.urls.slug(url), kind=kind)
        self._known.append(known)
        return known.proxy_url

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
                    return self.urls.npm_file(known.slug, known.url, parsed)
            self.rules.check(parsed, source=None)
        except (BadUrlError, FetchError):
            return None
        return self.urls.file(LISTED, parsed)
