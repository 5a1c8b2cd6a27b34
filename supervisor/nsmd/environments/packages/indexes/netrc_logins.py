"""Credentials in netrc."""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping

from nsmd.environments.packages.indexes.files import expand, read_text


def read_netrc(
    environ: Mapping[str, str], home: str, problems: list[str]
) -> dict[str, tuple[str, str]]:
    """Read users and passwords by host. The entry `default`, which is for every host, is left out.

    Args:
        problems: gets a sentence if the file cannot be read.
    """
    chosen = environ.get("NETRC")
    names = [expand(chosen, home)] if chosen else [f"{home}/.netrc", f"{home}/_netrc"]
    path = next((name for name in names if os.path.exists(name)), None)
    if path is None or read_text(path, problems) is None:
        return {}
    try:
        hosts = netrc.netrc(path).hosts
    except (netrc.NetrcParseError, OSError, ValueError):
        # The error's text may quote a password.
        problems.append(f"{path} is no valid netrc and was not read")
        return {}
    return {
        host.lower(): (user or "", password or "")
        for host, (user, _, password) in hosts.items()
        if host != "default"
    }
