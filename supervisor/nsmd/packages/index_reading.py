"""All indexes of the user: from the configuration of pip, uv, npm and conda, and netrc."""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from nsm.dataclass import dataclass
from nsmd.model.host_rules import Host, show_host
from nsmd.network.upstream import no_proxy_of, proxies_of
from nsmd.packages.index_configuration import (
    TRUE,
    UvIndex,
    config_home,
    expand,
    read_netrc,
    read_npm_settings,
    read_pip_settings,
    read_text,
    read_uv_settings,
    to_count,
    to_seconds,
)
from nsmd.packages.index_values import (
    BadUrlError,
    Index,
    IndexAccess,
    Indexes,
    WebUrl,
    linked_directories,
    local_path,
    parse_url,
)
from nsmd.packages.text_files import YamlError, parse_yaml, rows, table, words

ALIAS = "https://conda.anaconda.org"
DEFAULTS = ("https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r")
USUAL = ("conda-forge",)
"""Channels where neither the project nor the user names one."""

PUBLIC = frozenset(
    (
        "conda.anaconda.org",
        "repo.anaconda.com",
        "prefix.dev",
        "repo.prefix.dev",
        "conda.modular.com",
    )
)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")
_TOKEN = re.compile(r"/t/[^/]+/")


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaSettings:
    """Settings of the user's `.condarc`.

    Attributes:
        alias: URL before names of channels.
        custom: such URLs for some channels, by the first word of their name.
        defaults: what the channel `defaults` means.
        channels: those where a project names none.
    """

    alias: str
    custom: Mapping[str, str]
    defaults: Sequence[str]
    channels: Sequence[str]

    @property
    def urls(self) -> Iterator[str]:
        """All URLs that the user has written."""
        yield from (self.alias, *self.custom.values(), *self.defaults)
        yield from (name for name in self.channels if "://" in name)

    def places(self, channel: str) -> Sequence[str]:
        """Return the URLs that a channel means."""
        if channel == "nodefaults":
            return ()
        if channel == "defaults":
            return [url for each in self.defaults for url in self._place(each)]
        return self._place(channel)

    def _place(self, channel: str) -> Sequence[str]:
        if "://" in channel:
            return (channel,)
        base = self.custom.get(channel, self.custom.get(channel.partition("/")[0], self.alias))
        return (f"{base.rstrip('/')}/{channel}",)


def read_conda_settings(
    environ: Mapping[str, str], home: str, *, etc: str, problems: list[str]
) -> CondaSettings:
    """Read the user's `.condarc` files; the last one that has a setting counts."""
    paths = [
        *(f"{etc}/conda/.condarc", f"{config_home(environ, home)}/conda/.condarc"),
        *(f"{home}/.conda/.condarc", f"{home}/.condarc", f"{home}/.mambarc"),
    ]
    if chosen := environ.get("CONDARC"):
        paths.append(expand(chosen, home))
    found: dict[str, object] = {}
    for path in paths:
        text = read_text(path, problems)
        if text is not None and text.strip():
            try:
                found.update(table(parse_yaml(text)))
            except YamlError as error:
                problems.append(f"{path} cannot be used: {error}")
    custom = table(found.get("custom_channels"))
    return CondaSettings(
        alias=environ.get("CONDA_CHANNEL_ALIAS") or words(found.get("channel_alias")) or ALIAS,
        custom={name: words(url) for name, url in custom.items()},
        defaults=[words(each) for each in rows(found.get("default_channels"))] or DEFAULTS,
        channels=[words(each) for each in rows(found.get("channels"))] or USUAL,
    )


class ChannelReader:
    """Reader of channels of conda packages.

    A project names channels, so a project's file may come from anybody. A channel is reached only
    if its host is that of a public service, if the user's configuration names it, or if the user
    lists it for builds (`permits`).
    """

    def __init__(
        self,
        settings: CondaSettings,
        logins: Mapping[str, tuple[str, str]],
        permits: Callable[[Host, int], bool],
        problems: list[str],
    ) -> None:
        self._settings = settings
        self._logins = logins
        self._permits = permits
        self._problems = problems
        self._own = {
            (url.scheme, url.place) for url in map(_parsed, settings.urls) if url is not None
        }

    def read(self, channels: Sequence[str]) -> list[Index]:
        """Return the places of channels, the first one preferred; each has its channel's name."""
        found: list[Index] = []
        for channel in channels:
            for text in self._settings.places(channel):
                if why := self._why_not(text):
                    self._problems.append(f"the channel {channel[:200]} {why}")
                    continue
                url, login = parse_url(text)
                index = Index(
                    name=channel,
                    url=str(url.as_directory()),
                    login=login or self._logins.get(show_host(url.host)),
                    named=self._is_named(url),
                )
                if index.url not in (each.url for each in found):
                    found.append(index)
        return found

    def _why_not(self, text: str) -> str:
        """Return why a channel is not used, as the end of a sentence; empty if it is."""
        try:
            url, _ = parse_url(text)
        except BadUrlError as error:
            return str(error)
        if _TOKEN.search(url.path) or url.query:
            return "has a token in its URL; put it into ~/.netrc, as a password"
        if self._is_named(url) or self._permits(url.host, url.port):
            return ""
        return (
            f"is on {url.place}, which neither ~/.condarc nor "
            "`[packages] hosts` in config.toml names"
        )

    def _is_named(self, url: WebUrl) -> bool:
        is_public = url.scheme == "https" and url.host in PUBLIC
        return is_public or (url.scheme, url.place) in self._own


def _parsed(text: str) -> WebUrl | None:
    try:
        return parse_url(text)[0]
    except BadUrlError:
        return None


PYPI = "https://pypi.org/simple/"
NPM = "https://registry.npmjs.org/"

STRATEGIES = frozenset({"first-index", "unsafe-first-match", "unsafe-best-match"})
"""Values of uv's `index-strategy`."""

_SCOPE = re.compile(r"(@[a-z0-9~-][a-z0-9._~-]*):registry")

_PASSED = re.compile(
    r"ca|strict-ssl|fetch-timeout|fetch-retries|//[^\s=]+:(?:_authToken|_auth|username|_password)"
)
"""npm's settings that npm gets as they are."""

_LOGIN = re.compile(r"(?:(?!\$\{)[\x21-\x7e])+")
_TEXT = re.compile(r"[^\0]*")

_NONE = frozenset({"", "false", "null"})
"""Values of npm's settings that mean none."""

Number = TypeVar("Number", int, float)


def read_indexes(
    environ: Mapping[str, str],
    home: str,
    *,
    prefix: str | None = None,
    etc: str = "/etc",
    channels: Sequence[str] | None = None,
    permits: Callable[[Host, int], bool] = lambda _host, _port: False,
) -> Indexes:
    """Read the configuration of pip, uv, npm and conda, and netrc. Reads files, so it may block.

    If uv's configuration names an index, uv's indexes are used, else pip's. That holds for both
    programs, so that both get packages from the same places.

    Args:
        environ, home: the user's.
        prefix: prefix of the Python interpreter, where pip has a file, too.
        channels: channels of conda that a build asks; an empty list for the user's own, and None
            if it asks none.
        permits: whether the user lists a host and port for builds.
    """
    python = _Python(environ, home, etc=etc, prefix=prefix)
    npm = _Npm(environ, home, etc=etc)
    conda: list[Index] = []
    conda_problems: list[str] = []
    if channels is not None:
        settings = read_conda_settings(environ, home, etc=etc, problems=conda_problems)
        reader = ChannelReader(settings, python.logins, permits, conda_problems)
        conda = reader.read(channels or settings.channels)
    return Indexes(
        python=tuple(python.indexes),
        npm=tuple(npm.registries()),
        conda=tuple(conda),
        link_pages=tuple(python.link_pages),
        find_links=tuple(dict.fromkeys(python.find_links)),
        directories=tuple(python.directories()),
        constraints=tuple(python.constraints()),
        index_strategy=python.strategy(),
        python_access=python.access(),
        npm_access=npm.access(),
        npm_settings=npm.variables,
        logins=python.logins,
        python_problems=tuple(python.problems),
        npm_problems=tuple(npm.problems),
        conda_problems=tuple(conda_problems),
        notes=tuple(python.notes),
    )


class _Python:
    def __init__(
        self, environ: Mapping[str, str], home: str, *, etc: str, prefix: str | None
    ) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._environ, self._home = environ, home
        self._pip = read_pip_settings(environ, home, etc=etc, prefix=prefix, problems=self.problems)
        self._uv = read_uv_settings(environ, home, etc=etc, problems=self.problems)
        self.logins = read_netrc(environ, home, self.notes)
        self.indexes: list[Index] = []
        self.link_pages: list[Index] = []
        self.find_links: list[str] = []
        self._find_indexes()
        for text in (*self._pip.get("find-links", "").split(), *self._uv.find_links):
            self._add_links("", text, None)

    def _find_indexes(self) -> None:
        if self._uv.default or self._uv.others:
            rows = [self._uv.default or UvIndex(name="", url=PYPI), *self._uv.others]
        else:
            urls = [self._pip.get("index-url", PYPI), *self._pip.get("extra-index-url", "").split()]
            rows = [UvIndex(name="", url=url.strip()) for url in urls]
        for row in rows:
            if row.is_flat:
                self._add_links(row.name, row.url, row.login)
            elif index := self._index(row.name, row.url, row.login):
                self.indexes.append(index)
        if self._pip.get("no-index", "").lower() in TRUE or self._uv.no_index:
            self.indexes.clear()

    def _add_links(self, name: str, text: str, login: tuple[str, str] | None) -> None:
        index = self._index(name, text, login)
        if index is None:
            return
        if (path := local_path(index.url)) is not None:
            self.find_links.append(path)
        else:
            self.link_pages.append(index)

    def _index(self, name: str, text: str, login: tuple[str, str] | None) -> Index | None:
        path = self._local(text)
        if path is not None:
            if os.path.exists(path):
                return Index(name=name or path, url=f"file://{path}")
            self.notes.append(f"the local index {path} does not exist")
            return None
        try:
            url, written = parse_url(text)
        except BadUrlError as error:
            self.problems.append(f"an index in the configuration of pip or uv {error}")
            return None
        host = show_host(url.host)
        return Index(
            name=name or host, url=str(url), login=login or written or self.logins.get(host)
        )

    def _local(self, text: str) -> str | None:
        if text.lower().startswith("file:"):
            return local_path(text)
        path = expand(text, self._home)
        return os.path.normpath(path) if os.path.isabs(path) else None

    def directories(self) -> list[str]:
        """Return the local directories that a build has to see."""
        places = [local_path(index.url) for index in self.indexes]
        found: dict[str, None] = {}
        for place in (*places, *self.find_links):
            if place is not None:
                found.update(dict.fromkeys(linked_directories(place)))
        return list(found)

    def constraints(self) -> list[str]:
        """Return the files with constraints."""
        said = [*self._pip.get("constraint", "").split()]
        said += self._environ.get("UV_CONSTRAINT", "").split()
        found: list[str] = []
        for text in said:
            path = self._local(text)
            if path is not None and os.path.isfile(path):
                found.append(path)
            else:
                self.problems.append(
                    "a file with constraints, of the configuration of pip or uv, is not read: its "
                    "name has to be the absolute path of a file that exists"
                )
        return list(dict.fromkeys(found))

    def strategy(self) -> str:
        """Return uv's `index-strategy`, or an empty text."""
        return self._uv.strategy if self._uv.strategy in STRATEGIES else ""

    def access(self) -> IndexAccess:
        """Return the settings for connections to these indexes."""
        environ, pip = self._environ, self._pip
        proxy = pip.get("proxy")
        return IndexAccess(
            certificates=self._path(
                pip.get("cert"),
                *map(environ.get, ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")),
                *map(environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")),
            ),
            client_certificate=self._path(pip.get("client-cert"), environ.get("SSL_CLIENT_CERT")),
            insecure_hosts=tuple(
                each.lower()
                for each in (*pip.get("trusted-host", "").split(), *self._uv.insecure_hosts)
            ),
            proxies={"http": proxy, "https": proxy} if proxy else proxies_of(environ),
            no_proxy=no_proxy_of(environ),
            timeout_s=_first(
                to_seconds,
                pip.get("timeout"),
                *map(environ.get, ("UV_HTTP_TIMEOUT", "UV_REQUEST_TIMEOUT", "HTTP_TIMEOUT")),
            ),
            retries=_first(to_count, pip.get("retries"), environ.get("UV_HTTP_RETRIES")),
        )

    def _path(self, *texts: str | None) -> str | None:
        return next((expand(text, self._home) for text in texts if text), None)


class _Npm:
    """npm's settings: npm itself gets those that concern registries."""

    def __init__(self, environ: Mapping[str, str], home: str, *, etc: str) -> None:
        self.problems: list[str] = []
        self._environ, self._home = environ, home
        self._settings = read_npm_settings(environ, home, etc=etc, problems=self.problems)
        self.variables = dict(self._passed())

    def _get(self, key: str) -> str:
        return (self._settings.get(key) or [""])[-1]

    def _passed(self) -> Iterable[tuple[str, str]]:
        for key, values in self._settings.items():
            if not _PASSED.fullmatch(key):
                continue
            valid = _LOGIN if key.startswith("//") else _TEXT
            if not all(map(valid.fullmatch, values)):
                self.problems.append(
                    "a setting in the configuration of npm has a character that none has; is a "
                    "variable missing that its ${...} names?"
                )
                continue
            texts = [text.replace("\\n", "\n").strip() for text in values if text not in _NONE]
            if key == "strict-ssl":
                texts = values[-1:]
            if texts:
                yield f"npm_config_{key}", "\n\n".join(texts)

    def registries(self) -> Iterable[Index]:
        """Return the default registry, then those of scopes."""
        yield from self._registry("", self._get("registry") or NPM)
        for key in sorted(self._settings):
            if (found := _SCOPE.fullmatch(key)) is not None:
                yield from self._registry(found[1], self._get(key))

    def _registry(self, scope: str, text: str) -> Iterable[Index]:
        try:
            url, login = parse_url(text)
        except BadUrlError as error:
            self.problems.append(f"the registry{f' of {scope}' if scope else ''} of npm {error}")
            return
        url = url.as_directory()
        self.variables[f"npm_config_{scope}:registry" if scope else "npm_config_registry"] = str(
            url
        )
        if login is not None:  # npm takes none from a URL
            told = b64encode(":".join(login).encode()).decode()
            self.variables.setdefault(f"npm_config_//{url.authority}{url.path}:_auth", told)
        yield Index(name=show_host(url.host), url=str(url), scope=scope)

    def access(self) -> IndexAccess:
        """Return the settings for connections to these registries."""
        environ = self._environ
        proxies = proxies_of(environ)
        http, https = self._get("proxy"), self._get("https-proxy")
        if http not in _NONE:
            proxies = {"http": http, "https": http}
        if https not in _NONE:
            proxies["https"] = https
        excepted = self._get("noproxy")
        cafile = self._get("cafile")
        return IndexAccess(
            certificates=expand(cafile, self._home) if cafile not in _NONE else None,
            more_certificates=environ.get("NODE_EXTRA_CA_CERTS") or None,
            proxies=proxies,
            no_proxy=no_proxy_of({"no_proxy": excepted}) if excepted else no_proxy_of(environ),
        )


def _first(parse: Callable[[str], Number | None], *texts: str | None) -> Number | None:
    """Return the number in the first text that has one."""
    found = (parse(text) for text in texts if text)
    return next((number for number in found if number is not None), None)
