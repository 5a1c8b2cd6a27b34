"""Rules on what a build may fetch; pure.

The user's configuration names hosts: those of indexes, with those that are known to belong to a
public index, and those listed for builds. A named host may have any address. Other hosts are
reached only if a page of an index, or a redirect from there, leads to them, at their usual port,
and only at public addresses. If the user has a proxy, names are looked up there, and nobody here
can tell whether an address is public. So only named hosts are reached through it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from itertools import takewhile

from nsmd.environments.packages.index_proxy.errors import FetchError
from nsmd.environments.packages.indexes.values import Index, IndexCredentials
from nsmd.environments.packages.web_urls import (
    DEFAULT_PORT_OF,
    BadUrlError,
    Origin,
    WebUrl,
    parse_url,
)
from nsmd.model.host_rules import AllowList, Host, show_host

BELONGING: Mapping[Host, frozenset[Host]] = {
    "pypi.org": frozenset({"files.pythonhosted.org"}),
    "test.pypi.org": frozenset({"test-files.pythonhosted.org"}),
    "download.pytorch.org": frozenset({"download-r2.pytorch.org"}),
}
"""Hosts on which public indexes have their files."""


class FetchRules:
    """Hosts that one build may reach, and the credentials for them.

    Args:
        indexes: all indexes with `http:` and `https:` URLs.
        listed: further hosts that the user lists.
        logins: credentials by host, from netrc; used for listed hosts.
    """

    def __init__(
        self, indexes: Iterable[Index], listed: AllowList, logins: Mapping[str, IndexCredentials]
    ) -> None:
        self._listed = listed
        self._logins = logins
        self._origins: dict[Origin, list[tuple[WebUrl, IndexCredentials | None]]] = {}
        for index in indexes:
            try:
                url, _ = parse_url(index.url)
            except BadUrlError:
                continue
            self._origins.setdefault(url.origin, []).append((url, index.credentials))
        hosts = {host for _, host, _ in self._origins}
        self._hosts = hosts.union(*(BELONGING.get(host, ()) for host in hosts))

    def check(self, url: WebUrl, *, source: WebUrl | None) -> None:
        """Check a URL before it is fetched.

        Args:
            source: page or redirect of an index that leads there; None if there is none.

        Raises:
            FetchError: it may not be fetched.
        """
        host, port = url.host, url.port
        if url.origin in self._origins or self._listed.permits(host, port):
            return
        shown = show_host(host, port)
        if ("https", host, port) in self._origins:
            raise _refused(f"{shown} is an index with https, and is not asked without it")
        if source is None:
            raise _refused(f"{shown} is no host of the user's indexes")
        if port != DEFAULT_PORT_OF[url.scheme]:
            raise _refused(f"{shown} is at an unusual port; the user can list it for builds")
        if url.scheme == "http" and source.scheme == "https":
            raise _refused(f"{shown} is linked to without TLS; the user can list it for builds")

    def names(self, host: Host, port: int) -> bool:
        """Return whether the user's configuration names a host. It may then be private, and is
        reached through the user's own proxy.
        """
        if host in self._hosts:
            return True
        return any(
            rule.takes_port(port) and rule.names(host) and (rule.name or rule.network)
            for rule in self._listed.rules
        )

    def credentials(self, url: WebUrl) -> IndexCredentials | None:
        """Return the credentials for a URL, of exactly its scheme, host and port. Of several
        indexes there, the one counts whose path has most in common with the URL's.
        """
        if (indexes := self._origins.get(url.origin)) is not None:
            return max(indexes, key=lambda each: _common(each[0].path, url.path))[1]
        if url.scheme == "https" and self._listed.permits(url.host, url.port):
            return self._logins.get(show_host(url.host))
        return None


def _common(one: str, other: str) -> int:
    """Count the segments with which both paths begin."""
    pairs = zip(one.strip("/").split("/"), other.strip("/").split("/"), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _refused(detail: str) -> FetchError:
    return FetchError(HTTPStatus.FORBIDDEN, detail)
