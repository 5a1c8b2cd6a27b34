"""The network of a build: hosts that it may reach, and the user's settings for its programs.

The jail reaches hosts through the same proxy as sessions do, so TLS ends in the jail, and uv, npm
and py-rattler log in by themselves. Only jails in which no package's code runs have these settings.

Code of packages gets no password: scripts of Node packages and the linking of conda's run in jails
of their own, and uv, which builds beside itself, refuses to build with an index that needs one. A
proxy that adds passwords itself would have to read and rewrite the pages of every kind of index.
Hosts that an index links to are not reachable unless listed, since a page could lead anywhere.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from urllib.parse import quote

from nsm.dataclass import dataclass, field
from nsmd.model.host_rules import AllowList, BadHostError, Host, parse_host, show_host
from nsmd.model.values import NetworkRule
from nsmd.network.connections import UserHosts
from nsmd.network.gateway import Gateway
from nsmd.network.listener import NamespaceListener
from nsmd.network.session_proxy import SessionProxy
from nsmd.network.upstream import Upstream
from nsmd.packages.index_values import Index, IndexAccess, Indexes, parse_url
from nsmd.packages.jail_start import ADDRESS
from nsmd.packages.package_builds import InstallError

BELONGING: Mapping[str, Sequence[str]] = {
    "pypi.org:443": ("files.pythonhosted.org:443",),
    "test.pypi.org:443": ("test-files.pythonhosted.org:443",),
    "download.pytorch.org:443": ("download-r2.pytorch.org:443",),
    "conda.anaconda.org:443": ("binstar-cio-packages-prod.s3.amazonaws.com:443",),
    "npm.pkg.github.com:443": ("pkg-npm.githubusercontent.com:443",),
}
"""Hosts on which public indexes have their files."""

TIMEOUT_S = 60.0
"""Longest wait for the next bytes of an index, unless the user has set a timeout."""

MAX_PROBLEMS = 50

_PLACE = "/run/nsm/indexes"
"""Directory in the jail of files that belong to the settings."""

NOTHING = f"file://{_PLACE}/nothing"
"""URL of an index without packages."""

_TOKEN = re.compile(r"/[A-Za-z0-9_=~-]{24,}(?:/|$)")
"""A part of a path that may be a token."""


def proxy_variables() -> dict[str, str]:
    """Return the variables that lead all programs in a jail to the proxy."""
    proxy = f"http://{ADDRESS[0]}:{ADDRESS[1]}"
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    # npm's own settings come before these variables, and its word for "none" is an empty text.
    npm = {"npm_config_proxy": proxy, "npm_config_https_proxy": proxy, "npm_config_noproxy": ""}
    return {**dict.fromkeys(names, proxy), **npm, "no_proxy": "", "NO_PROXY": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """The user's settings for the programs of a build: indexes that they ask, how these are
    reached, and variables.

    Attributes:
        files: texts of files that the variables name, by their paths in the jail.
        shown: directories of the host that they name.
        logins: hosts, to which they send a login that is in no URL.
        secrets: texts that no log shows.
    """

    indexes: tuple[Index, ...]
    access: IndexAccess
    variables: Mapping[str, str] = field(repr=False)
    files: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    shown: tuple[str, ...] = ()
    logins: frozenset[Host] = frozenset()
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def plain_hosts(self) -> tuple[str, ...]:
        """Patterns of those hosts of the indexes that the user names with http://."""
        urls = [parse_url(each.url)[0] for each in self.indexes if each.url.startswith("http:")]
        return tuple(url.place for url in urls if url.place in self.hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Patterns of the hosts of the indexes that are named one by one."""
        own = dict.fromkeys(
            parse_url(each.url)[0].place
            for each in self.indexes
            if each.named and not each.url.startswith("file:")
        )
        return tuple(
            dict.fromkeys((*own, *(host for each in own for host in BELONGING.get(each, ()))))
        )


def python_settings(indexes: Indexes, listed: AllowList, *, builds: bool) -> BuildSettings:
    """Make uv's settings.

    If packages' code runs beside uv (`builds`), the settings must hold no credentials; InstallError
    if an index needs some. `listed` has further hosts that the user lists for builds.
    """
    asked = (*indexes.python, *indexes.link_pages)
    if builds:
        _check_for_code(asked, indexes.python_access)
    urls = [_with_login(each) for each in indexes.python] or [NOTHING]
    links = (*map(_link, indexes.find_links), *map(_with_login, indexes.link_pages))
    access = indexes.python_access
    # Mostly the configuration is pip's, so among several indexes this chooses as pip does. With
    # other strategies, uv says which index does not accept a login.
    strategy = indexes.index_strategy or ("unsafe-best-match" if urls[1:] else "")
    variables = {
        "UV_NO_CONFIG": "1",
        "UV_KEYRING_PROVIDER": "disabled",
        "UV_HTTP_TIMEOUT": str(round(access.timeout_s or TIMEOUT_S)),
        "UV_DEFAULT_INDEX": urls[0],
        "UV_INDEX": " ".join(urls[1:]),
        "UV_FIND_LINKS": ",".join(links),
        "UV_INDEX_STRATEGY": strategy,
        "UV_HTTP_RETRIES": "" if access.retries is None else str(access.retries),
        "UV_INSECURE_HOST": " ".join(access.insecure_hosts),
    }
    files: dict[str, str] = {}
    shown = _trust(access, variables, files)
    logins: dict[str, tuple[str, str]] = {}
    if not builds:
        if access.client_certificate:
            _add_file("SSL_CLIENT_CERT", access.client_certificate, variables, files)
        variables["NETRC"] = f"{_PLACE}/netrc"
        logins = _of_listed(indexes.logins, listed)
        files[variables["NETRC"]] = _netrc(logins)
    return BuildSettings(
        indexes=asked,
        access=access,
        variables={name: value for name, value in variables.items() if value and "\0" not in value},
        files=files,
        shown=shown,
        logins=_hosts(logins),
        secrets=_secrets([*(each.login for each in asked), *indexes.logins.values()]),
    )


def npm_settings(indexes: Indexes) -> BuildSettings:
    """Make npm's settings; they hold credentials."""
    access = indexes.npm_access
    variables, files = dict(indexes.npm_settings), dict[str, str]()
    for name, path in (
        ("npm_config_cafile", access.certificates),
        ("NODE_EXTRA_CA_CERTS", access.more_certificates),
    ):
        if path:
            _add_file(name, path, variables, files)
    return BuildSettings(
        indexes=indexes.npm,
        access=access,
        variables=variables,
        files=files,
        secrets=tuple(
            value
            for name, value in variables.items()
            if name.startswith("npm_config_//") and not name.endswith(":username")
        ),
    )


def conda_settings(indexes: Indexes, listed: AllowList) -> BuildSettings:
    """Make py-rattler's settings; they hold credentials."""
    access = indexes.python_access
    logins = _of_listed(indexes.logins, listed)
    for each in indexes.conda:
        if each.login is not None:
            logins[show_host(parse_url(each.url)[0].host)] = each.login
    told = {
        host: {"BasicHTTP": {"username": user, "password": password}}
        for host, (user, password) in logins.items()
    }
    variables = {"RATTLER_AUTH_FILE": f"{_PLACE}/logins.json"}
    files = {variables["RATTLER_AUTH_FILE"]: json.dumps(told)}
    shown = _trust(access, variables, files)
    return BuildSettings(
        indexes=indexes.conda,
        access=access,
        variables=variables,
        files=files,
        shown=shown,
        logins=_hosts(logins),
        secrets=_secrets(logins.values()),
    )


def _check_for_code(asked: Iterable[Index], access: IndexAccess) -> None:
    """Refuse indexes that need credentials, which packages' code could read."""
    hint = (
        "Leave out `--allow-builds` (`allow_builds`), so that wheels alone are installed; or put a "
        "wheel of what has to be built into that index, or into a directory of `find-links`."
    )
    code = "cannot be asked where packages are built: their code could read"
    for each in asked:
        if each.url.startswith("file:"):
            continue
        url, _ = parse_url(each.url)
        if each.login is not None:
            raise InstallError(f"The index {each.name} {code} your password for it", hint)
        if url.query or _TOKEN.search(url.path):
            raise InstallError(
                f"The index {each.name} {code} its URL, which seems to have a token in it",
                f"A password may stand in ~/.netrc instead. {hint}",
            )
    if access.client_certificate:
        raise InstallError(f"An index with a client certificate {code} its key", hint)


def _with_login(index: Index) -> str:
    if index.login is None:
        return index.url
    return parse_url(index.url)[0].with_login(*index.login)


def _link(path: str) -> str:
    """Quote a path for a variable that lists several, separated by spaces or commas."""
    return f"file://{quote(path)}" if re.search(r"[\s,]", path) else path


def _trust(
    access: IndexAccess, variables: dict[str, str], files: dict[str, str]
) -> tuple[str, ...]:
    """Add the certificates to trust. Returns directories of them, which the jail has to show."""
    places = access.certificates or ""
    directories = [places] if os.path.isdir(places) else places.split(os.pathsep)
    found = tuple(os.path.abspath(each) for each in directories if os.path.isdir(each))
    if found:
        variables["SSL_CERT_DIR"] = os.pathsep.join(found)
    elif places:
        _add_file("SSL_CERT_FILE", places, variables, files)
    else:
        variables["UV_SYSTEM_CERTS"] = "1"
    return found


def _add_file(name: str, path: str, variables: dict[str, str], files: dict[str, str]) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InstallError(
            f"The file of certificates {path} cannot be used: {why}",
            "The configuration of pip, uv or npm names it.",
        ) from None
    variables[name] = f"{_PLACE}/{name}.pem"
    files[variables[name]] = text


def _of_listed(
    logins: Mapping[str, tuple[str, str]], listed: AllowList
) -> dict[str, tuple[str, str]]:
    """Return the logins for hosts that the user lists."""
    found: dict[str, tuple[str, str]] = {}
    for text, login in logins.items():
        with suppress(BadHostError):
            if listed.knows(parse_host(text)):
                found[text] = login
    return found


def _hosts(texts: Iterable[str]) -> frozenset[Host]:
    return frozenset(parse_host(text.strip("[]")) for text in texts)


def _netrc(logins: Mapping[str, tuple[str, str]]) -> str:
    return "".join(
        f"machine {host} login {user} password {password}\n"
        for host, (user, password) in logins.items()
        if not re.search(r"\s", user + password)
    )


def _secrets(logins: Iterable[tuple[str, str] | None]) -> tuple[str, ...]:
    """Passwords as they may stand in a log; a user without one is a token."""
    found = (login[1] or login[0] for login in logins if login is not None)
    return tuple(dict.fromkeys(text for each in found if each for text in (each, quote(each, ""))))


class BuildNetwork:
    """The proxy of one build, for all its jails.

    Args:
        settings: name the hosts of indexes, and the user's own proxy.
        listed: patterns of further hosts that the user lists.

    Attributes:
        user: the hosts that are named one by one.
    """

    def __init__(self, name: str, settings: BuildSettings, listed: Sequence[str]) -> None:
        named = [rule.text for rule in AllowList.of(listed).rules if rule.name or rule.network]
        access = settings.access
        self._gateway = Gateway(upstream=Upstream(access.proxies, access.no_proxy))
        self.user = UserHosts(
            named=AllowList.of((*settings.hosts, *named)),
            logins=settings.logins,
            plain=AllowList.of(settings.plain_hosts),
        )
        self._open = partial(
            SessionProxy,
            f"build of {name}",
            NetworkRule(mode="allow", allow=(*settings.hosts, *listed)),
            f"build-{name}",
            gateway=self._gateway,
            user=self.user,
        )
        self._opened: list[SessionProxy] = []

    @property
    def bytes_received(self) -> int:
        """Bytes that came from hosts so far."""
        return self._gateway.counters.received_bytes

    @property
    def problems(self) -> list[str]:
        """Sentences without a dot about connections that were not made, each once."""
        told: dict[str, None] = {}
        for made in (each for hosts in self._opened for each in hosts.decisions_since()):
            if made.verdict in ("not-allowed", "port"):
                told[
                    f"{made.host}:{made.port} was asked for, which neither the configuration of "
                    "indexes nor `[packages] hosts` in config.toml names"
                ] = None
            elif made.verdict != "allowed":
                told[made.detail.rstrip(".")] = None
        return list(told)[:MAX_PROBLEMS]

    async def serve(self, descriptor: int) -> None:
        """Serve the listening socket of a jail until cancelled."""
        # Another broker for each jail: one that has ended may only be started again after a while.
        hosts = self._open()
        self._opened.append(hosts)
        with closing(NamespaceListener(descriptor)) as listener:
            await hosts.accept(listener)
