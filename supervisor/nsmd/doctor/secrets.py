"""Secrets of the configuration: whether their sources are there. None is read, since some ask."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator

from nsm.checks import HostCheck, ok, warn
from nsmd.model.secrets import SecretSource
from nsmd.model.settings import Settings, configured_secrets


def check_secrets(settings: Settings, search_path: str) -> HostCheck | None:
    """Check the secrets; None if there are none.

    Args:
        search_path: value of PATH to find programs on.
    """
    if not settings.secrets:
        return None
    if problems := list(_problems(settings, search_path)):
        return warn("; ".join(problems), "`nsm secrets test NAME` reads one as for a session.")
    return ok(f"{', '.join(settings.secrets)}; `nsm secrets test NAME` reads one, as for a session")


def _problems(settings: Settings, search_path: str) -> Iterator[str]:
    for name, secret in configured_secrets(settings).items():
        if why := _why_not(secret.source, search_path):
            yield f"{name}: {why}"
    for name, entry in settings.environments.items():
        if entry.secrets and entry.network_rule.mode != "allow":
            yield f"environment {name} has secrets, and no list of hosts as its network"
    if settings.box.secrets and isinstance(settings.box.net, str):
        yield "boxes have secrets, and [box] net is no list of hosts"


def _why_not(source: SecretSource, search_path: str) -> str:
    first = source.words[0]
    match source.kind:
        case "command" | "keyring":
            program = first if source.kind == "command" else "secret-tool"
            return "" if shutil.which(program, path=search_path) else f"{program} is not found"
        case "file":
            try:
                mode = os.stat(os.path.expanduser(first)).st_mode
            except OSError as error:
                return f"{first}: {error.strerror}"
            if mode & (stat.S_IRGRP | stat.S_IROTH):
                return f"{first} can be read by other users (`chmod 600 {first}`)"
            return ""
        case "environment":
            return ""  # of the supervisor, which may have another one
