"""Configuration files and variables of uv."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, cast

from nsm.dataclass import dataclass
from nsmd.environments.packages.indexes.files import (
    TRUE,
    config_directories,
    config_home,
    read_text,
)

_NAMED = re.compile(r"([A-Za-z0-9._-]+)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class UvIndex:
    """One index as uv's configuration names it.

    Attributes:
        name: empty if it has none.
        url: as written, perhaps with credentials.
        login: user and password from variables for that name.
        is_flat: it is one page with links.
    """

    name: str
    url: str
    login: tuple[str, str] | None = None
    is_flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UvSettings:
    """Settings of uv that concern indexes.

    Attributes:
        default: None if none is named.
        others: other indexes, in uv's order.
        no_index: uv uses no index at all.
        insecure_hosts: hosts whose certificate is not checked.
        strategy: `index-strategy`, empty if it is not set.
    """

    default: UvIndex | None
    others: tuple[UvIndex, ...]
    find_links: tuple[str, ...]
    no_index: bool
    insecure_hosts: tuple[str, ...]
    strategy: str


def read_uv_settings(
    environ: Mapping[str, str], home: str, *, etc: str, problems: list[str]
) -> UvSettings:
    """Read uv's settings.

    Args:
        problems: gets a sentence for each file that cannot be read.
    """
    tables = [
        each
        for path in _paths(environ, home, etc)
        if (table := _read(path, problems, environ)) is not None
        for each in (_table(table, "pip"), table)  # `[pip]` is for `uv pip` alone
    ]
    default, others = _named_by_variables(environ)
    find_links = list(_split(environ.get("UV_FIND_LINKS", ""), ","))
    for table in tables:
        extra: list[UvIndex] = []
        for entry in _tables(table, "index"):
            found = _index(entry)
            if found is None or entry.get("explicit") is True:
                continue
            if entry.get("default") is True:
                default = default or found
            else:
                extra.append(found)
        extra += [UvIndex(name="", url=url) for url in _texts(table, "extra-index-url")]
        others += extra
        for url in _texts(table, "index-url"):
            default = default or UvIndex(name="", url=url)
        find_links += _texts(table, "find-links")
    hosts = _split(environ.get("UV_INSECURE_HOST", ""))
    return UvSettings(
        default=_with_login(default, environ) if default else None,
        others=tuple(_with_login(each, environ) for each in others),
        find_links=tuple(find_links),
        no_index=environ.get("UV_NO_INDEX", "").lower() in TRUE
        or any(table.get("no-index") is True for table in tables),
        insecure_hosts=(*hosts, *(x for t in tables for x in _texts(t, "allow-insecure-host"))),
        strategy=environ.get("UV_INDEX_STRATEGY")
        or next((x for t in tables for x in _texts(t, "index-strategy")), ""),
    )


def _paths(environ: Mapping[str, str], home: str, etc: str) -> list[str]:
    if environ.get("UV_NO_CONFIG", "").lower() in TRUE:
        return []
    if chosen := environ.get("UV_CONFIG_FILE"):
        return [chosen]
    machine = [os.path.join(each, "uv/uv.toml") for each in config_directories(environ, etc)]
    machine.append(os.path.join(etc, "uv/uv.toml"))
    first = next((path for path in machine if os.path.exists(path)), None)
    user = os.path.join(config_home(environ, home), "uv/uv.toml")
    return [user, first] if first else [user]


def _read(path: str, problems: list[str], environ: Mapping[str, str]) -> dict[str, Any] | None:
    text = read_text(path, problems, required=path == environ.get("UV_CONFIG_FILE"))
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        problems.append(f"{path} is no valid TOML and was not read")
        return None


def _named_by_variables(environ: Mapping[str, str]) -> tuple[UvIndex | None, list[UvIndex]]:
    default = environ.get("UV_DEFAULT_INDEX") or environ.get("UV_INDEX_URL")
    others = environ.get("UV_INDEX", "").split() + environ.get("UV_EXTRA_INDEX_URL", "").split()
    return _maybe_named(default) if default else None, [_maybe_named(each) for each in others]


def _maybe_named(text: str) -> UvIndex:
    if (named := _NAMED.fullmatch(text)) is not None:
        return UvIndex(name=named[1], url=named[2])
    return UvIndex(name="", url=text)


def _with_login(index: UvIndex, environ: Mapping[str, str]) -> UvIndex:
    if not index.name:
        return index
    name = re.sub(r"[^A-Z0-9]", "_", index.name.upper())
    user = environ.get(f"UV_INDEX_{name}_USERNAME", "")
    password = environ.get(f"UV_INDEX_{name}_PASSWORD", "")
    if not user and not password:
        return index
    return UvIndex(name=index.name, url=index.url, login=(user, password), is_flat=index.is_flat)


def _index(entry: Mapping[str, Any]) -> UvIndex | None:
    url, name = entry.get("url"), entry.get("name")
    if not isinstance(url, str):
        return None
    return UvIndex(
        name=name if isinstance(name, str) else "", url=url, is_flat=entry.get("format") == "flat"
    )


def _table(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _tables(table: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = table.get(name)
    if not isinstance(found, list):
        return []
    rows = cast("list[object]", found)
    return [cast("dict[str, Any]", row) for row in rows if isinstance(row, dict)]


def _texts(table: Mapping[str, Any], name: str) -> list[str]:
    found = table.get(name)
    if isinstance(found, str):
        return [found]
    if not isinstance(found, list):
        return []
    return [row for row in cast("list[object]", found) if isinstance(row, str)]


def _split(text: str, mark: str | None = None) -> list[str]:
    return [each.strip() for each in text.split(mark) if each.strip()]
