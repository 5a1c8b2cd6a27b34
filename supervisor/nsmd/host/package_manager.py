"""The command that installs a package on this host."""

from __future__ import annotations

import os
from collections.abc import Mapping

_MANAGERS = {
    "apt-get": "sudo apt-get install",
    "dnf": "sudo dnf install",
    "pacman": "sudo pacman -S",
    "zypper": "sudo zypper install",
    "apk": "sudo apk add",
}

_NAMES: Mapping[str, Mapping[str, str]] = {
    "python3": {"pacman": "python"},
    "nodejs": {"pacman": "nodejs"},
}
"""Packages with other names in some package managers."""

_FOLDERS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")


def install_command(package: str, folders: tuple[str, ...] = _FOLDERS) -> str:
    """Find the command that installs a package here, by its name on Debian."""
    for manager, command in _MANAGERS.items():
        if any(os.access(os.path.join(folder, manager), os.X_OK) for folder in folders):
            return f"{command} {_NAMES.get(package, {}).get(manager, package)}"
    return f"install {package} with this system's package manager"
