"""Channels of conda packages: their names as URLs, with the user's own configuration of conda.

A project names channels, so a project's file may come from anybody. A channel is reached only if
its host is that of a public service, or if the user's configuration names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from nsm.dataclass import dataclass
from nsmd.environments.packages.indexes.files import config_home, expand, read_text
from nsmd.environments.packages.indexes.urls import BadUrlError, WebUrl, parse_url
from nsmd.environments.packages.indexes.values import Index
from nsmd.environments.packages.yaml_files import YamlError, parse, rows, table, words
from nsmd.model.host_rules import Host, show_host

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
    """Read the user's `.condarc` files; the last one that has a setting counts.

    Args:
        problems: gets a sentence for each file that cannot be read.
    """
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
                found.update(table(parse(text)))
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
    """Reader of channels.

    Args:
        settings: the user's.
        logins: users and passwords by host.
        permits: whether the user lists a host and port for builds.
        problems: gets a sentence for each channel that cannot be used.
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
                )
                if index.url not in (each.url for each in found):
                    found.append(index)
        return found

    def _why_not(self, text: str) -> str:
        """Why a channel is not used, as the end of a sentence; empty if it is."""
        try:
            url, _ = parse_url(text)
        except BadUrlError as error:
            return str(error)
        if _TOKEN.search(url.path) or url.query:
            return "has a token in its URL; put it into ~/.netrc, as a password"
        if url.scheme == "https" and url.host in PUBLIC:
            return ""
        if (url.scheme, url.place) in self._own or self._permits(url.host, url.port):
            return ""
        return (
            f"is on {url.place}, which neither ~/.condarc nor "
            "`[packages] hosts` in config.toml names"
        )


def _parsed(text: str) -> WebUrl | None:
    try:
        return parse_url(text)[0]
    except BadUrlError:
        return None
