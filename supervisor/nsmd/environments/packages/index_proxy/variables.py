"""Variables for uv, npm and py-rattler in a jail; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from nsmd.environments.packages.index_proxy.proxy_urls import NOTHING
from nsmd.environments.packages.indexes.values import IndexAccess, Indexes

READ_TIMEOUT_S = 60.0
"""Longest wait for the next bytes of an index, unless the user has set a timeout."""

MARGIN_S = 30.0
"""Time that programs in the jail wait longer than the proxy, so that they get its error message."""


def proxy_variables(port: int) -> dict[str, str]:
    """Return the variables that lead all programs to the proxy."""
    proxy = f"http://127.0.0.1:{port}"
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    # Browsers' and npm's word for "no exception" is an empty text.
    return {**dict.fromkeys(names, proxy), "no_proxy": "", "NO_PROXY": ""}


def python_variables(
    indexes: Indexes, urls: Sequence[str], link_pages: Sequence[str]
) -> dict[str, str]:
    """Return the variables of uv.

    Args:
        urls: indexes as the jail names them, the default first.
        link_pages: pages with links, as the jail names them.
    """
    links = (*map(_link, indexes.find_links), *link_pages)
    variables = {
        "UV_NO_CONFIG": "1",
        "UV_KEYRING_PROVIDER": "disabled",
        "UV_HTTP_TIMEOUT": _timeout(indexes.python_access),
    }
    # uv has no variable for its --no-index.
    variables["UV_DEFAULT_INDEX"] = urls[0] if urls else NOTHING
    if urls[1:]:
        variables["UV_INDEX"] = " ".join(urls[1:])
    if links:
        variables["UV_FIND_LINKS"] = ",".join(links)
    if indexes.index_strategy:
        variables["UV_INDEX_STRATEGY"] = indexes.index_strategy
    if (retries := indexes.python_access.retries) is not None:
        variables["UV_HTTP_RETRIES"] = str(retries)
    return variables


def npm_variables(indexes: Indexes, registries: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of npm.

    Args:
        registries: registries as the jail names them, by scope.
    """
    variables = {
        "npm_config_audit": "false",
        "npm_config_fund": "false",
        "npm_config_update_notifier": "false",
        "npm_config_fetch_timeout": str(round(1000 * float(_timeout(indexes.npm_access)))),
    }
    for scope, url in registries.items():
        variables[f"npm_config_{scope}:registry" if scope else "npm_config_registry"] = url
    if (retries := indexes.npm_access.retries) is not None:
        variables["npm_config_fetch_retries"] = str(retries)
    return variables


def conda_variables(channels: Sequence[str]) -> dict[str, str]:
    """Return the variable of nsm's own program for conda.

    Args:
        channels: channels as the jail names them.
    """
    return {"NSM_CONDA_CHANNELS": " ".join(channels)} if channels else {}


def _link(path: str) -> str:
    """Quote a path for a variable that lists several, separated by spaces or commas."""
    return f"file://{quote(path)}" if re.search(r"[\s,]", path) else path


def _timeout(access: IndexAccess) -> str:
    return str(round((access.timeout_s or READ_TIMEOUT_S) + MARGIN_S))
